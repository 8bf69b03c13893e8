#include "daemon/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <ranges>
#include <string_view>

#include "base/key_value.h"
#include "daemon/kept_settings.h"

namespace kvcachefs {
namespace {

// Options that mount(8) and fstab pass along: they mean nothing to the daemon, or mount(8) handles them
// itself.
constexpr std::array<std::string_view, 15> kIgnoredOptions{
    "rw",     "dev",     "nodev",  "suid",     "nosuid",  "exec",     "noexec",     "auto",
    "noauto", "_netdev", "nofail", "defaults", "noatime", "relatime", "allow_other"};

struct Arguments {
  std::string config_file;
  std::vector<std::string> pools;
  std::vector<std::string> options;
  std::string mountpoint;
  bool daemonize = false;
  bool check_config = false;
  bool print_config = false;
  bool version = false;
  std::vector<std::string> disk_paths;
  std::optional<std::string> can_succeed;
};

void declare(CLI::App& app, Arguments& arguments) {
  std::string own;
  for (const DaemonSetting& setting : kDaemonSettings)
    own += fmt::format("{}{}, ", setting.key, setting.value);
  app.add_option("--config", arguments.config_file, "Configuration file (TOML)")->type_name("FILE");
  app.add_option("--pool", arguments.pools, "A pool; may be given several times")
      ->type_name("NAME[:KEY=VALUE,...]")
      ->allow_extra_args(false);
  app.add_option("-o", arguments.options, own + "runtime_dir=DIR, state_dir=DIR; may be given several times")
      ->type_name("OPTION[,OPTION...]")
      ->allow_extra_args(false);
  app.add_flag("--daemonize", arguments.daemonize, "Go to the background once the mount serves");
  app.add_flag("--check-config", arguments.check_config, "Check the configuration and exit");
  app.add_flag("--print-config", arguments.print_config, "Print the configuration as TOML and exit");
  app.add_option("--check-system", arguments.disk_paths,
                 "Print what this machine gives, with a PATH also for a disk tier there, and exit")
      ->type_name("[PATH]")
      ->expected(0, 1);
  app.add_flag("--version", arguments.version, "Print the version and exit");
  // A running daemon passes this option to the program that it is to become; the help does not show it.
  app.add_option("--can-succeed", arguments.can_succeed)->group("");
  app.add_option("MOUNTPOINT", arguments.mountpoint, "Where to mount");
  app.footer(fmt::format("Keys of a pool: {}. See kvcachefsd(8).",
                         fmt::join(std::views::transform(pool_settings(), &PoolSetting::key), " ")));
}

Result<std::filesystem::path> absolute_path(std::string_view option, const std::string& text) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(text, error);
  if (text.empty() || error) return fail(EINVAL, fmt::format("{}: '{}' is not a path", option, text));
  return path.lexically_normal();
}

}  // namespace

Result<void> set_daemon_option(Config& config, std::string_view option, uint64_t memory_bytes) {
  const auto [key, given] = split_key_value(option);
  const DaemonSetting* const setting = find_daemon_setting(key);
  const bool is_directory = key == "runtime_dir" || key == "state_dir";
  if (setting == nullptr && !is_directory) {
    if (std::ranges::find(kIgnoredOptions, option) != kIgnoredOptions.end()) return {};
    return fail(EINVAL, fmt::format("-o {}: unknown option", option));
  }
  const bool takes_value = setting == nullptr || !setting->is_flag();
  if (takes_value != given.has_value()) {
    return fail(EINVAL, fmt::format("-o {}: {}", key, takes_value ? "needs a value" : "takes no value"));
  }
  if (setting == nullptr) {
    std::filesystem::path& directory = key == "state_dir" ? config.state_dir : config.runtime_dir;
    if (key == "state_dir" && *given == kNoStateDir) {
      directory.clear();
      return {};
    }
    Result<std::filesystem::path> path = absolute_path(fmt::format("-o {}", key), std::string(*given));
    if (!path) return pass(path);
    directory = std::move(*path);
    return {};
  }
  const Result<void> set = setting->set(config, given.value_or("true"), memory_bytes);
  return set ? set : fail(EINVAL, fmt::format("-o {}: '{}' {}", key, *given, set.error().message));
}

namespace {

Result<void> set_options(Config& config, std::string_view list, uint64_t memory_bytes) {
  while (!list.empty()) {
    const std::string_view option = take_part(list, ',');
    if (option.empty()) continue;
    if (Result<void> set = set_daemon_option(config, option, memory_bytes); !set) return set;
  }
  return {};
}

// A pool of the configuration file keeps the settings that --pool does not name.
Result<void> add_pool(Config& config, PoolOrigins& origins, const std::string& spec, uint64_t memory_bytes) {
  std::string_view pairs = spec;
  const std::string_view name = take_part(pairs, ':');
  if (origins.contains(name) && origins.find(name)->second == "--pool") {
    return fail(EINVAL, fmt::format("--pool: pool {} is given twice", name));
  }
  auto pool = std::ranges::find(config.pools, name, &PoolOptions::name);
  if (pool == config.pools.end()) {
    Result<PoolOptions> parsed = parse_pool_spec(spec, memory_bytes);
    if (!parsed) return fail(EINVAL, fmt::format("--pool: {}", parsed.error().message));
    config.pools.push_back(std::move(*parsed));
  } else if (Result<void> set = set_pool_options(*pool, pairs, memory_bytes); !set) {
    return fail(EINVAL, fmt::format("--pool: pool {}: {}", name, set.error().message));
  }
  origins[std::string(name)] = "--pool";
  return {};
}

Result<Config> make_config(const Arguments& arguments, bool mountpoint_needed, uint64_t memory_bytes,
                           PoolOrigins& origins) {
  Config config;
  if (!arguments.config_file.empty()) {
    Result<void> read = read_config_file(arguments.config_file, memory_bytes, config, origins);
    if (!read) return pass(read);
  }
  for (const std::string& list : arguments.options) {
    if (Result<void> set = set_options(config, list, memory_bytes); !set) return pass(set);
  }
  for (const std::string& spec : arguments.pools) {
    if (Result<void> added = add_pool(config, origins, spec, memory_bytes); !added) return pass(added);
  }
  if (config.pools.empty()) config.pools.push_back(default_pool("default", memory_bytes));
  if (Result<void> checked = check_transport(config, origins); !checked) return pass(checked);
  if (!arguments.mountpoint.empty()) {
    Result<std::filesystem::path> path = absolute_path("MOUNTPOINT", arguments.mountpoint);
    if (!path) return pass(path);
    config.mountpoint = std::move(*path);
  }
  if (config.mountpoint.empty() && mountpoint_needed)
    return fail(EINVAL, "MOUNTPOINT: is missing (see --help)");
  config.daemonize = arguments.daemonize;
  return config;
}

}  // namespace

Result<CommandLine> parse_command_line(int argc, const char* const* argv, uint64_t memory_bytes) {
  CLI::App app("Serves pools of KV-cache entries as a file system.", "kvcachefsd");
  Arguments arguments;
  CommandLine result;
  declare(app, arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    result.action = CommandLine::Action::kHelp;
    result.output = app.help();
    return result;
  } catch (const CLI::ParseError& error) {
    const std::string message = error.what();
    return fail(EINVAL, message.substr(0, message.find('\n')));
  }
  if (arguments.version) {
    result.action = CommandLine::Action::kVersion;
    result.output = "kvcachefs " KVCACHEFS_VERSION "\n";
    return result;
  }
  if (app.count("--check-system") > 0) {
    result.action = CommandLine::Action::kCheckSystem;
    if (!arguments.disk_paths.empty() && !arguments.disk_paths.front().empty())
      result.disk_path = arguments.disk_paths.front();
    return result;
  }
  if (arguments.check_config) result.action = CommandLine::Action::kCheckConfig;
  if (arguments.print_config) result.action = CommandLine::Action::kPrintConfig;
  if (arguments.can_succeed) {
    result.action = CommandLine::Action::kCanSucceed;
    result.formats = *arguments.can_succeed;
  }
  const bool serves = result.action == CommandLine::Action::kServe;
  Result<Config> config = make_config(arguments, serves, memory_bytes, result.origins);
  if (!config) return pass(config);
  const bool goes_on = result.action == CommandLine::Action::kCanSucceed;
  result.config = std::move(*config);
  if (!serves && !goes_on) {
    // What is kept is found by the mount point as the kernel has it.
    Config whole = result.config;
    std::error_code error;
    whole.mountpoint = std::filesystem::weakly_canonical(whole.mountpoint, error);
    if (whole.mountpoint.empty()) whole.state_dir.clear();
    auto served = KeptSettings::served(whole, result.origins, memory_bytes);
    if (!served) return pass(served);
    result.config.pools = std::move(*served);
  }
  if (arguments.print_config) result.output = format_config(result.config);
  return result;
}

}  // namespace kvcachefs
