// The configuration file is read and written here, the only includer of toml++.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <sstream>

#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include "daemon/config.h"
#include "daemon/kept_settings.h"

namespace kvcachefs {
namespace {

class Reader {
 public:
  // A file of `pools_alone` has no other settings.
  Reader(const std::filesystem::path& file, uint64_t memory_bytes, bool pools_alone)
      : file_(file.native()), memory_bytes_(memory_bytes), pools_alone_(pools_alone) {}

  Result<void> read(const toml::table& table, Config& config, PoolOrigins& origins) {
    for (const auto& [key, node] : table) {
      Result<void> done = read_setting(key, node, config, origins);
      if (!done) return done;
    }
    return {};
  }

  std::string at(const toml::source_region& source) const {
    return fmt::format("{}:{}", file_, source.begin.line);
  }

 private:
  std::unexpected<Error> wrong(const toml::source_region& source, std::string_view message) const {
    return fail(EINVAL, fmt::format("{}: {}", at(source), message));
  }

  Result<void> read_setting(const toml::key& key, const toml::node& node, Config& config,
                            PoolOrigins& origins) {
    const std::string_view name = key.str();
    if (pools_alone_ && name != "pools")
      return wrong(key.source(), fmt::format("'{}': this file has pools alone: [pools.NAME]", name));
    if (name == "mountpoint") return read_path(name, node, config.mountpoint);
    if (name == "runtime_dir") return read_path(name, node, config.runtime_dir);
    if (name == "state_dir") return read_state_dir(node, config);
    if (const DaemonSetting* setting = find_daemon_setting(name)) {
      const auto set = setting->set(config, text_of(node, *setting), memory_bytes_);
      return set ? set : wrong(node.source(), fmt::format("{} {}", name, set.error().message));
    }
    if (name == "pools") return read_pools(node, config, origins);
    return wrong(key.source(), fmt::format("unknown key '{}'", name));
  }

  Result<void> read_path(std::string_view name, const toml::node& node, std::filesystem::path& path) {
    const auto text = node.value_exact<std::string>();
    // A relative path is refused, because it would depend on the daemon's working directory when the file is
    // read.
    if (!text || !text->starts_with('/') || text->find('\0') != std::string::npos) {
      return wrong(node.source(), fmt::format("{} is not an absolute path", name));
    }
    path = *text;
    return {};
  }

  Result<void> read_state_dir(const toml::node& node, Config& config) {
    if (node.value_exact<std::string>() != kNoStateDir) return read_path("state_dir", node, config.state_dir);
    config.state_dir.clear();
    return {};
  }

  Result<void> read_pools(const toml::node& node, Config& config, PoolOrigins& origins) {
    const toml::table* pools = node.as_table();
    if (pools == nullptr) return wrong(node.source(), "pools is not a table of pools: [pools.NAME]");
    for (const auto& [key, pool] : *pools) {
      const toml::table* settings = pool.as_table();
      if (settings == nullptr) {
        return wrong(key.source(), fmt::format("pools.{} is not a pool: [pools.{}]", key.str(), key.str()));
      }
      if (Result<void> good = check_pool_name(key.str()); !good)
        return wrong(key.source(), good.error().message);
      if (const auto other = origins.find(key.str()); other != origins.end())
        return wrong(key.source(), fmt::format("pool {} is defined in {} already", key.str(), other->second));
      PoolOptions options = default_pool(std::string(key.str()), memory_bytes_);
      if (Result<void> done = read_pool(*settings, options); !done) return done;
      origins[options.name] = at(key.source());
      config.pools.push_back(std::move(options));
    }
    return {};
  }

  Result<void> read_pool(const toml::table& settings, PoolOptions& options) {
    for (const auto& [key, node] : settings) {
      if (node.is_table()) {
        return wrong(key.source(),
                     fmt::format("unknown pool option '{}' (a pool's name with a dot in it is written "
                                 "in quotes: [pools.\"{}.{}\"])",
                                 key.str(), options.name, key.str()));
      }
      const std::optional<std::string> text = text_of(node, is_pool_switch(key.str()));
      if (!text) return wrong(node.source(), fmt::format("{} is neither text nor a number", key.str()));
      if (Result<void> set = set_pool_option(options, key.str(), *text, memory_bytes_); !set) {
        return wrong(key.source(), set.error().message);
      }
    }
    return {};
  }

  // The text that the command line would have; empty for a value of a wrong kind.
  static std::string text_of(const toml::node& node, const DaemonSetting& setting) {
    if (const auto flag = node.value_exact<bool>(); flag && setting.is_flag())
      return *flag ? "true" : "false";
    if (const auto number = node.value_exact<int64_t>(); number && !setting.is_flag())
      return std::to_string(*number);
    if (setting.is_flag() || setting.is_number()) return {};
    return node.value_exact<std::string>().value_or("");
  }

  // A number becomes the text that the command line would have; 0o1777 is the mode 1777. A switch may be true
  // or false.
  static std::optional<std::string> text_of(const toml::node& node, bool is_switch) {
    if (const auto flag = node.value_exact<bool>(); flag && is_switch) return *flag ? "on" : "off";
    if (const auto text = node.value_exact<std::string>()) return text;
    const toml::value<int64_t>* number = node.as_integer();
    if (number == nullptr) return std::nullopt;
    const bool octal = (number->flags() & toml::value_flags::format_as_octal) != toml::value_flags::none;
    return octal ? fmt::format("{:o}", number->get()) : std::to_string(number->get());
  }

  std::string file_;
  uint64_t memory_bytes_;
  bool pools_alone_;
};

constexpr std::string_view kCreated = "created";
constexpr std::string_view kDeleted = "deleted";
// A file that lacks it was cut short, unless it is of a version that did not write it.
constexpr std::string_view kLastLine = "\n# end\n";
constexpr std::string_view kFirstWordsWithoutIt = "# kvcachefsd wrote this: ";

std::string one_line(std::string_view text) {
  std::string line(text.substr(0, text.find('\n')));
  std::ranges::replace_if(
      line, [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  return line;
}

// The result is on one line, but for a long array.
std::string toml_text(const toml::node& node) {
  std::ostringstream out;
  constexpr auto kFlags = toml::format_flags::allow_unicode_strings;
  if (const toml::table* const table = node.as_table()) {
    toml::table inline_table = *table;
    inline_table.is_inline(true);
    out << toml::toml_formatter(inline_table, kFlags);
  } else {
    out << toml::toml_formatter(node, kFlags);
  }
  return out.str();
}

// The result is a basic string, whatever the text: literal and multi-line strings are not allowed.
std::string toml_string(std::string text) {
  return toml_text(toml::value<std::string>(std::move(text)));
}

// What the daemon has written itself, so that the text of a value is a string, always.
class KeptReader {
 public:
  KeptReader(const std::string& file, uint64_t memory_bytes) : file_(file), memory_bytes_(memory_bytes) {}

  Result<KeptPools> read(const toml::table& table) const {
    KeptPools pools;
    for (const auto& [key, node] : table) {
      if (key.str() != "pools") {
        pools[""].unknown.emplace(key.str(), toml_text(node));
        continue;
      }
      const toml::table* const named = node.as_table();
      if (named == nullptr) return wrong(key.source(), "pools is not a table of pools");
      for (const auto& [name, pool] : *named) {
        const toml::table* const settings = pool.as_table();
        if (settings == nullptr) return wrong(name.source(), fmt::format("{} is not a pool", name.str()));
        if (auto good = check_pool_name(name.str()); !good) return wrong(name.source(), good.error().message);
        auto kept = read_pool(*settings);
        if (!kept) return pass(kept);
        if (kept->is_created && !kept->values.contains("size"))
          return wrong(name.source(), fmt::format("pool {} has no size", name.str()));
        pools.emplace(name.str(), std::move(*kept));
      }
    }
    return pools;
  }

 private:
  std::unexpected<Error> wrong(const toml::source_region& source, std::string_view message) const {
    return fail(EINVAL, fmt::format("{}:{}: {}", file_, source.begin.line, message));
  }

  Result<KeptPool> read_pool(const toml::table& settings) const {
    KeptPool pool;
    PoolOptions scratch;
    for (const auto& [key, node] : settings) {
      if (key.str() == kCreated || key.str() == kDeleted) {
        const auto flag = node.value_exact<bool>();
        if (!flag) return wrong(node.source(), fmt::format("{} is not true or false", key.str()));
        (key.str() == kCreated ? pool.is_created : pool.is_deleted) = *flag;
      } else if (find_pool_setting(key.str()) == nullptr) {
        pool.unknown.emplace(key.str(), toml_text(node));
      } else {
        const auto text = node.value_exact<std::string>();
        if (!text) return wrong(node.source(), fmt::format("{} is no text", key.str()));
        if (auto set = set_pool_option(scratch, key.str(), *text, memory_bytes_); !set)
          return wrong(key.source(), set.error().message);
        pool.values.emplace(key.str(), *text);
      }
    }
    return pool;
  }

  const std::string& file_;
  const uint64_t memory_bytes_;
};

Result<void> read_file(const std::filesystem::path& file, uint64_t memory_bytes, bool pools_alone,
                       Config& config, PoolOrigins& origins) {
  std::error_code error;
  // toml++ would read a directory as an empty file, and would wait for a writer of a FIFO.
  if (!std::filesystem::is_regular_file(file, error)) {
    return fail(EINVAL, fmt::format("--config: {} cannot be read{}", file.native(),
                                    std::filesystem::exists(file, error) ? ": it is no regular file" : ""));
  }
  toml::parse_result parsed = toml::parse_file(file.native());
  Reader reader(file, memory_bytes, pools_alone);
  if (!parsed) {
    if (parsed.error().source().begin.line == 0) {
      return fail(EINVAL, fmt::format("--config: {} cannot be read", file.native()));
    }
    return fail(EINVAL, fmt::format("{}: {}", reader.at(parsed.error().source()),
                                    one_line(parsed.error().description())));
  }
  return reader.read(parsed.table(), config, origins);
}

}  // namespace

std::filesystem::path further_config_directory(std::filesystem::path file) {
  return file.replace_extension(".d");
}

Result<std::vector<std::filesystem::path>> further_config_files(const std::filesystem::path& directory) {
  std::error_code error;
  std::vector<std::filesystem::path> files;
  if (!std::filesystem::exists(directory, error)) return files;
  for (std::filesystem::directory_iterator each(directory, error), end; !error && each != end;
       each.increment(error))
    if (each->path().extension() == ".toml") files.push_back(each->path());
  if (error) return fail(EINVAL, fmt::format("--config: {} cannot be read", directory.native()));
  std::ranges::sort(files);
  return files;
}

Result<void> read_config_file(const std::filesystem::path& file, uint64_t memory_bytes, Config& config,
                              PoolOrigins& origins) {
  Config changed = config;
  PoolOrigins changed_origins = origins;
  if (auto done = read_file(file, memory_bytes, false, changed, changed_origins); !done) return done;
  auto further = further_config_files(further_config_directory(file));
  if (!further) return pass(further);
  for (const std::filesystem::path& each : *further)
    if (auto done = read_file(each, memory_bytes, true, changed, changed_origins); !done) return done;
  config = std::move(changed);
  origins = std::move(changed_origins);
  return {};
}

Result<KeptPools> parse_kept_pools(const std::string& file, std::string_view text, uint64_t memory_bytes) {
  toml::parse_result parsed = toml::parse(text);
  if (!parsed)
    return fail(EINVAL, fmt::format("{}:{}: {}", file, parsed.error().source().begin.line,
                                    one_line(parsed.error().description())));
  auto kept = KeptReader(file, memory_bytes).read(parsed.table());
  if (kept && !text.ends_with(kLastLine) && !text.starts_with(kFirstWordsWithoutIt))
    return fail(EINVAL,
                file +
                    ": was cut short: its last line, `# end`, is missing. Without the file the pools are "
                    "as they are configured");
  return kept;
}

std::string format_kept_pools(const KeptPools& pools) {
  std::string out =
      "# kvcachefsd wrote this, down to the last line: what was changed of its pools while it served, over "
      "its configuration.\n"
      "# `kvcachefs get` shows it, and `kvcachefs reset` takes it back.\n";
  // The empty name comes first: its keys are in no table.
  for (const auto& [name, pool] : pools) {
    out += name.empty() ? "\n" : fmt::format("\n[pools.{}]\n", toml_string(name));
    if (pool.is_created) out += fmt::format("{} = true\n", kCreated);
    if (pool.is_deleted) out += fmt::format("{} = true\n", kDeleted);
    for (const auto& [key, value] : pool.values) out += fmt::format("{} = {}\n", key, toml_string(value));
    for (const auto& [key, value] : pool.unknown) out += fmt::format("{} = {}\n", toml_string(key), value);
  }
  out += kLastLine;
  return out;
}

std::string format_config(const Config& config) {
  std::string out;
  if (!config.mountpoint.empty())
    out += fmt::format("mountpoint = {}\n", toml_string(config.mountpoint.native()));
  out += fmt::format("runtime_dir = {}\n", toml_string(config.runtime_dir.native()));
  out += fmt::format("state_dir = {}\n", toml_string(config.state_dir.empty() ? std::string(kNoStateDir)
                                                                              : config.state_dir.native()));
  for (const DaemonSetting& setting : kDaemonSettings)
    if (const std::string value = setting.text(config); !value.empty())
      out += fmt::format("{} = {}\n", setting.key, value);
  for (const PoolOptions& pool : config.pools) {
    out += fmt::format("\n[pools.{}]\n", toml_string(pool.name));
    for (const PoolSetting& setting : pool_settings()) {
      const std::string value = setting.get(pool);
      if (!value.empty()) out += fmt::format("{} = {}\n", setting.key, toml_string(value));
    }
  }
  return out;
}

}  // namespace kvcachefs
