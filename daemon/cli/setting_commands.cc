// `set`, `create`, `get` and `reset`: the settings of a pool, and where they come from.
#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "base/key_value.h"
#include "daemon/cli/commands.h"
#include "daemon/cli/table.h"
#include "tier/pool_options.h"

namespace kvcachefs {
namespace {

struct Setting {
  std::string key, value, origin;
};

CliResult<std::vector<Setting>> settings_of(const MountTree& tree, const std::string& pool) {
  auto shown = tree.read_control(pool, "settings");
  if (!shown) return pass(shown);
  std::vector<Setting> settings;
  for (std::string_view rest = *shown; !rest.empty();) {
    std::string_view line = take_part(rest, '\n');
    const std::string_view key = take_part(line, ' '), origin = take_part(line, ' ');
    settings.push_back({std::string(key), std::string(line), std::string(origin)});
  }
  return settings;
}

// Also after an order that failed: the daemon may have carried it out before it could not write it down.
// Earlier changes may not be written down yet, as those of the directory's mode.
void warn_of_what_is_lost(const MountTree& tree, const std::string& pool, std::ostream& error) {
  std::string keys;
  for (const Setting& its : settings_of(tree, pool).value_or(std::vector<Setting>()))
    if (its.origin == "set_not_kept") keys += " " + its.key;
  if (!keys.empty())
    error << "kvcachefs: in effect, but not written down (the daemon's log, or state_dir, says why), and "
             "lost at the daemon's next start:"
          << keys << '\n';
}

bool is_set(const MountTree& tree, const std::string& pool, const std::string& key) {
  const std::vector<Setting> settings = settings_of(tree, pool).value_or(std::vector<Setting>());
  const auto found = std::ranges::find(settings, key, &Setting::key);
  return found != settings.end() && found->origin.starts_with("set");
}

}  // namespace

CliResult<void> set(const MountTree& tree, const CliArguments& arguments, const CliEnvironment& environment) {
  auto done = tree.write_settings(arguments.pool, arguments.settings);
  warn_of_what_is_lost(tree, arguments.pool, environment.error);
  return done ? CliResult<void>() : pass(done);
}

CliResult<void> create(const MountTree& tree, const CliArguments& arguments,
                       const CliEnvironment& environment) {
  if (auto done = tree.create_pool(arguments.pool, arguments.settings); !done) return pass(done);
  warn_of_what_is_lost(tree, arguments.pool, environment.error);
  return {};
}

CliResult<void> get(const MountTree& tree, const CliArguments& arguments, const CliEnvironment& environment) {
  auto settings = settings_of(tree, arguments.pool);
  if (!settings) return std::unexpected(settings.error());
  if (!arguments.key.empty()) {
    const auto found = std::ranges::find(*settings, arguments.key, &Setting::key);
    if (found == settings->end()) return stop(kFailure, fmt::format("the daemon has no {}", arguments.key));
    environment.out << found->value << '\t' << found->origin << '\n';
    return {};
  }
  Table table({{"SETTING", Align::kLeft}, {"VALUE", Align::kLeft}, {"FROM", Align::kLeft}});
  for (Setting& its : *settings)
    table.add({its.key, its.value.empty() ? "-" : std::move(its.value), std::move(its.origin)});
  environment.out << table.text();
  return {};
}

CliResult<void> reset(const MountTree& tree, const CliArguments& arguments,
                      const CliEnvironment& environment) {
  const bool was_set = is_set(tree, arguments.pool, arguments.key);
  auto done = tree.write_control(arguments.pool, "reset", arguments.key);
  if (!done && was_set && tree.has_pool(arguments.pool) && !is_set(tree, arguments.pool, arguments.key))
    environment.error << fmt::format(
        "kvcachefs: {} is taken back, but this is not written down (the daemon's log says why): the daemon's "
        "next start has what was set\n",
        arguments.key);
  if (!done) return pass(done);
  const PoolSetting* const setting = find_pool_setting(arguments.key);
  if (setting != nullptr && setting->file == kSpillFile)
    environment.out << fmt::format("{}: from the next start on\n", arguments.key);
  return {};
}

}  // namespace kvcachefs
