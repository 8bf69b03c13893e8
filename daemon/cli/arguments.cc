#include "daemon/cli/arguments.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <iterator>
#include <map>
#include <ranges>

#include "base/key_value.h"
#include "base/size.h"
#include "daemon/cli/completion.h"
#include "daemon/cli/declare.h"
#include "fs/control/orders.h"
#include "tier/pool_options.h"

namespace kvcachefs {
namespace {

constexpr double kShortestIntervalS = 0.1;

struct Raw {
  std::map<std::string_view, std::string> settings;
  std::string percent, bytes, entries;
  std::string rate;
  bool stop = false;
  std::vector<std::string> pairs;
  std::string listen;
  bool any_address = false;
};

std::unexpected<Error> usage(std::string message) {
  return fail(EINVAL, std::move(message));
}

std::string option_of(std::string_view key) {
  std::string option = fmt::format("--{}", key);
  std::ranges::replace(option, '_', '-');
  return option;
}

void declare_pool_commands(CLI::App& app, CliArguments& arguments, Raw& raw) {
  CLI::App* create = on_pool(app, arguments, "create", "Create a pool");
  for (const PoolSetting& setting : pool_settings()) {
    if (setting.help.empty()) continue;
    create->add_option(option_of(setting.key), raw.settings[setting.key], std::string(setting.help));
  }
  create->get_option("--size")->required();
  create->get_option("--spill")->type_name("PATH");
  create->get_option("--catalog")->type_name("DIR");
  create->add_flag("--force", arguments.force, "Take the device whatever it carries");

  CLI::App* status = app.add_subcommand("status", "Show all pools, or one in full");
  status->add_option("NAME", arguments.pool, "The pool");
  status->add_flag("--json", arguments.json, "As JSON");

  CLI::App* evict = on_pool(app, arguments, "evict", "Evict entries that are not in use");
  CLI::Option_group* amount = evict->add_option_group("amount");
  amount->add_option("--percent", raw.percent, "Percent of what can be evicted");
  amount->add_option("--bytes", raw.bytes, "At least so much: 512M, 10G");
  amount->add_option("--entries", raw.entries, "So many entries");
  amount->require_option(1);

  CLI::App* set = on_pool(app, arguments, "set", "Change settings of a pool while it serves");
  // CLI11 2.4 takes no `=` in an option's name.
  auto shown = pool_settings() | std::views::filter(&PoolSetting::is_shown);
  set->add_option("SETTING", raw.pairs,
                  fmt::format("{}", fmt::join(std::views::transform(shown, &PoolSetting::key), " ")))
      ->required()
      ->type_name("KEY=VALUE");

  on_pool(app, arguments, "get", "Show settings of a pool, and where they come from")
      ->add_option("KEY", arguments.key, "The setting; default: all");
  on_pool(app, arguments, "reset", "Take back what was set: the configuration's value comes back")
      ->add_option("KEY", arguments.key, "The setting")
      ->required();

  CLI::App* remove = on_pool(app, arguments, "delete", "Delete a pool");
  remove->add_flag("--force", arguments.force, "Remove its content first");
}

void declare_other_commands(CLI::App& app, CliArguments& arguments) {
  app.add_subcommand("policies", "List the eviction policies");
  for (CLI::App* command : {app.add_subcommand("pin", "Keep entries in memory"),
                            app.add_subcommand("unpin", "Let entries go again"),
                            app.add_subcommand("stat", "Show what the daemon knows of entries")})
    command->add_option("PATH", arguments.paths, "Files on the mount")->required();
  CLI::App* top = app.add_subcommand("top", "Watch the pools live");
  top->add_option("--interval", arguments.interval_s, "Seconds between two views")->capture_default_str();
  top->add_flag("--once", arguments.once, "Show one view and exit; rates are means since the daemon's start");
  CLI::App* upgrade = app.add_subcommand(
      "upgrade", "Have the daemon go on as the program that is installed now; clients do not notice");
  upgrade->add_option("--pid", arguments.pid, "The daemon's process, wherever it is mounted")
      ->check(CLI::PositiveNumber);
  CLI::App* stop =
      app.add_subcommand("stop", "Stop the daemon, mounted here or not, if no process uses the mount");
  stop->add_flag("--force", arguments.force, "Stop it even if processes use the mount");
  CLI::App* report =
      app.add_subcommand("report", "Print what a ticket about this machine's kvcachefs should have");
  report->add_flag("--names", arguments.names, "With what the log says of names of entries");
  for (CLI::App* command : {stop, report})
    command->add_option("--runtime-dir", arguments.runtime_dir, "The daemon's runtime_dir")
        ->type_name("DIR")
        ->capture_default_str();
  app.add_subcommand("version", "Show the version of the tool, and of the daemon if it is mounted");
}

void declare_disk_commands(CLI::App& app, CliArguments& arguments, Raw& raw) {
  CLI::App* prefetch = on_pool(app, arguments, "prefetch", "Bring entries from disk to memory", "POOL");
  prefetch
      ->add_option("NAME", arguments.paths,
                   "Entries, relative to the pool or as paths; - reads them from the input, one a line")
      ->required();
  prefetch->add_option("--priority", arguments.priority, "Higher comes first")
      ->check(CLI::Range(-kMaximumPrefetchPriority, kMaximumPrefetchPriority));
  prefetch->add_flag("--no-wait", arguments.no_wait, "Return as soon as they are queued");
  CLI::App* scrub = on_pool(app, arguments, "scrub", "Read all that is on disk and check it", "POOL");
  CLI::Option* rate = scrub->add_option("--rate", raw.rate, "Bytes a second at most (200M)");
  scrub->add_flag("--stop", raw.stop, "Stop the one that runs")->excludes(rate);

  CLI::App* check =
      on_pool(app, arguments, "check", "Check the disk tier of a pool that no daemon serves", "POOL");
  CLI::Option_group* place = check->add_option_group("place");
  place->add_option("--config", arguments.config_file, "The daemon's configuration")->type_name("FILE");
  CLI::Option* spill =
      place->add_option("--spill", raw.settings["spill"], "The block device or file")->type_name("PATH");
  place->require_option(1);
  check->add_option("--catalog", raw.settings["catalog"], "Its catalog, if it is elsewhere than by default")
      ->type_name("DIR")
      ->needs(spill);
  check->add_flag("--data", arguments.data, "Read all entries and verify their checksums");
  check->add_flag("--repair", arguments.repair, "Discard what is damaged");
}

void declare_watch_commands(CLI::App& app, CliArguments& arguments, Raw& raw) {
  CLI::App* stats = app.add_subcommand("stats", "Print the counters as they are");
  stats->add_option("POOL", arguments.pool, "The pool; default: the daemon and all pools");
  stats->add_option("--watch", arguments.watch_s, "Again every so many seconds, until interrupted")
      ->type_name("SECONDS");
  stats->add_flag("--json", arguments.json, "One JSON object a line, with the time in it");
  CLI::App* metrics = app.add_subcommand("metrics", "Print the metrics, write them to a file, or serve them");
  CLI::Option* file =
      metrics->add_option("--textfile", arguments.textfile, "Write them there: a name that ends with .prom");
  file->type_name("FILE");
  metrics->add_option("--interval", arguments.metrics_interval_s, "Write them again every so many seconds")
      ->type_name("SECONDS")
      ->needs(file);
  CLI::Option* listen = metrics->add_option("--listen", raw.listen, "Serve them over HTTP, at /metrics");
  listen->type_name("ADDRESS:PORT")->excludes(file);
  metrics->add_flag("--any-address", raw.any_address, "Also where others than this machine reach it")
      ->needs(listen);
}

// The option may be missing.
Result<void> check_pace(const CLI::App& app, const char* command, const char* option, double seconds) {
  constexpr double kLongestS = 86400;
  const CLI::App& its = *app.get_subcommand(command);
  if (!its.parsed() || its.count(option) == 0 || (seconds >= kShortestIntervalS && seconds <= kLongestS))
    return {};
  return usage(fmt::format("{}: at least {} seconds and at most a day", option, kShortestIntervalS));
}

Result<void> check_metrics(const Raw& raw, CliArguments& arguments) {
  if (!raw.listen.empty()) {
    auto address = parse_listen_address(raw.listen, raw.any_address);
    if (!address) return usage("--listen: " + address.error().message);
    arguments.listen = *address;
  }
  const std::string& file = arguments.textfile;
  if (!file.empty() && (!file.ends_with(".prom") || file.ends_with("/.prom") || file == ".prom"))
    return usage(
        fmt::format("--textfile: '{}' does not end with NAME.prom, and a collector would not read it", file));
  return {};
}

// The tool checks a setting because its message names the mistake, and the daemon could only answer EINVAL.
// Only the daemon knows how much memory there is, so a percentage is not resolved here.
Result<void> add_setting(GivenSettings& settings, std::string_view option, std::string_view key,
                         std::string_view value) {
  constexpr uint64_t kAnyMemoryBytes = uint64_t{1} << 40;
  PoolOptions scratch;
  if (Result<void> good = set_pool_option(scratch, key, value, kAnyMemoryBytes); !good) {
    return usage(option == key ? good.error().message : fmt::format("{}: {}", option, good.error().message));
  }
  settings.emplace_back(key, value);
  return {};
}

// The check refuses settings that are only parts of a disk tier, for a pool that has none yet as far as the
// settings tell.
Result<void> check_disk(const GivenSettings& settings) {
  PoolOptions scratch;
  for (const auto& [key, value] : settings) {
    if (key != "size") (void)set_pool_option(scratch, key, value, 0);
  }
  Result<void> good = check_spill_options(scratch);
  if (!good) return usage(good.error().message);
  return {};
}

Result<void> create_settings(const Raw& raw, bool force, GivenSettings& settings) {
  // The size comes first, because settings that are relative to it are checked against the pool's own size.
  for (const PoolSetting& setting : pool_settings()) {
    const auto given = raw.settings.find(setting.key);
    if (given == raw.settings.end() || given->second.empty()) continue;
    Result<void> added = add_setting(settings, option_of(setting.key), setting.key, given->second);
    if (!added) return added;
  }
  if (force) settings.emplace_back("spill_force", "on");
  return check_disk(settings);
}

Result<void> set_settings(const Raw& raw, GivenSettings& settings) {
  for (const std::string& pair : raw.pairs) {
    const auto [key, value] = split_key_value(pair);
    if (!value) return usage(fmt::format("'{}' is not key=value", pair));
    if (const PoolSetting* setting = find_pool_setting(key); setting != nullptr && !setting->is_live()) {
      return usage(fmt::format("{} is the pool directory's own: chmod and chown change it", key));
    }
    if (Result<void> added = add_setting(settings, key, key, *value); !added) return added;
  }
  return {};
}

Result<std::string> evict_order(const Raw& raw) {
  if (!raw.percent.empty()) {
    Result<unsigned> percent = parse_percent(raw.percent, 1);
    if (!percent) return usage(fmt::format("--percent: {}", percent.error().message));
    return fmt::format("{}%", *percent);
  }
  if (!raw.bytes.empty()) {
    Result<uint64_t> bytes = parse_size(raw.bytes);
    if (!bytes) return usage(fmt::format("--bytes: {}", bytes.error().message));
    // The control file takes a plain number for a count of entries, so a size needs its unit.
    const uint64_t whole_k = *bytes / 1024 + (*bytes % 1024 != 0 ? 1 : 0);
    return fmt::format("{}K", whole_k);
  }
  Result<uint64_t> entries = parse_number(raw.entries);
  if (!entries) return usage(fmt::format("--entries: {}", entries.error().message));
  return fmt::format("{} entries", *entries);
}

Result<std::string> scrub_order(const Raw& raw) {
  if (raw.stop) return "stop";
  if (raw.rate.empty()) return "start";
  const std::string order = "start " + raw.rate;
  if (Result<ScrubOrder> good = parse_scrub_order(order); !good) {
    return usage(fmt::format("--rate: '{}' is not a size a second", raw.rate));
  }
  return order;
}

Result<void> complete(const Raw& raw, CliArguments& arguments) {
  if (!arguments.pool.empty()) {
    if (Result<void> good = check_pool_name(arguments.pool); !good) return good;
  }
  if (arguments.command == "create" || (arguments.command == "check" && arguments.config_file.empty()))
    return create_settings(raw, arguments.force, arguments.settings);
  if (!arguments.key.empty() && find_pool_setting(arguments.key) == nullptr)
    return usage(fmt::format("unknown pool option '{}'", arguments.key));
  if (arguments.command == "set") return set_settings(raw, arguments.settings);
  if (arguments.command == "evict" || arguments.command == "scrub") {
    Result<std::string> order = arguments.command == "evict" ? evict_order(raw) : scrub_order(raw);
    if (!order) return pass(order);
    arguments.order = *order;
  }
  return {};
}

// Names of arguments say what they are; the last one of a command may be given several times.
std::vector<CompletedCommand> completed_commands(const CLI::App& app) {
  using Argument = CompletedCommand::Argument;
  static const std::map<std::string_view, Argument> kArguments{{"POOL", Argument::kPool},
                                                               {"PATH", Argument::kFile},
                                                               {"FILE", Argument::kFile},
                                                               {"KEY", Argument::kKey},
                                                               {"SETTING", Argument::kSetting}};
  std::vector<CompletedCommand> commands;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_group().empty()) continue;
    CompletedCommand& its = commands.emplace_back(CompletedCommand{
        .name = command->get_name(), .help = command->get_description(), .options = {}, .arguments = {}});
    for (const CLI::Option* option : command->get_options()) {
      const std::string name = option->get_name();
      if (option->nonpositional())
        its.options.push_back(name);
      else if (its.name != "create" && name == "NAME" && its.arguments.empty())
        its.arguments.push_back(Argument::kPool);
      else if (const auto known = kArguments.find(name); known != kArguments.end())
        its.arguments.push_back(known->second);
    }
  }
  return commands;
}

std::string completion(const CLI::App& app, const std::string& shell) {
  std::vector<std::string> keys, live;
  for (const PoolSetting& setting : pool_settings()) {
    keys.emplace_back(setting.key);
    if (setting.is_shown()) live.emplace_back(setting.key);
  }
  return completion_of(shell, completed_commands(app), keys, live);
}

}  // namespace

Result<CliArguments> parse_cli_arguments(int argc, const char* const* argv) {
  CLI::App app("Shows and changes the pools of a mounted kvcachefs.", "kvcachefs");
  CliArguments arguments;
  Raw raw;
  bool version = false;
  app.add_option("--mount", arguments.mount, "Where it is mounted; only needed if it is in several places")
      ->type_name("DIR");
  app.add_flag("--version", version, "The same as: kvcachefs version");
  app.fallthrough();  // so that --mount may follow the command; subcommands inherit it
  declare_pool_commands(app, arguments, raw);
  declare_disk_commands(app, arguments, raw);
  declare_other_commands(app, arguments);
  declare_watch_commands(app, arguments, raw);
  declare_find_commands(app, arguments);
  // For who installs it; the help does not show it.
  std::string shell;
  app.add_subcommand("completion", "Print what a shell completes")
      ->group("")
      ->add_option("SHELL", shell, "The shell")
      ->required()
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(kShells), std::end(kShells))));
  app.require_subcommand(0, 1);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const auto chosen = app.get_subcommands();
    arguments.help = chosen.empty() ? app.help() : chosen.front()->help();
    return arguments;
  } catch (const CLI::ParseError& error) {
    const std::string message = error.what();
    return usage(message.substr(0, message.find('\n')));
  }
  const auto chosen = app.get_subcommands();
  if (version) {
    arguments.command = "version";
    return arguments;
  }
  if (chosen.empty()) return usage("a command is missing (see --help)");
  arguments.command = chosen.front()->get_name();
  if (arguments.command == "completion") {
    arguments.help = completion(app, shell);
    arguments.command = "help";
    return arguments;
  }
  if (Result<void> good = complete(raw, arguments); !good) return pass(good);
  if (Result<void> good = check_metrics(raw, arguments); !good) return pass(good);
  for (const Result<void>& good : {check_pace(app, "top", "--interval", arguments.interval_s),
                                   check_pace(app, "stats", "--watch", arguments.watch_s),
                                   check_pace(app, "metrics", "--interval", arguments.metrics_interval_s)})
    if (!good) return std::unexpected(good.error());
  return arguments;
}

}  // namespace kvcachefs
