// `stats`: the counters as the daemon gives them.
#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <ostream>

#include "daemon/cli/commands.h"

namespace kvcachefs {
namespace {

std::string seconds_since_the_epoch() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return fmt::format("{:.3f}", std::chrono::duration<double>(now).count());
}

CliResult<std::string> json_line(const MountTree& tree, const std::string& pool) {
  Result<std::string> json =
      pool.empty() ? tree.read_daemon_file("stats.json") : tree.read_control(pool, "stats.json");
  if (!json) return pass(json);
  if (!json->starts_with('{') || json->size() < 3)
    return stop(kFailure, "the daemon's stats.json is no object");
  const std::string name = pool.empty() ? std::string() : fmt::format("\"pool\":\"{}\",", pool);
  return fmt::format("{{\"time_s\":{},{}{}\n", seconds_since_the_epoch(), name,
                     std::string_view(*json).substr(1));
}

CliResult<std::string> lines_of(const MountTree& tree, const CliArguments& arguments) {
  std::string out =
      arguments.watch_s > 0 ? fmt::format("time_s {}\n", seconds_since_the_epoch()) : std::string();
  std::vector<std::string> pools{arguments.pool};
  if (arguments.pool.empty()) {
    Result<std::string> text = tree.read_daemon_file("stats");
    if (!text) return pass(text);
    out += *text + '\n';
    Result<std::vector<std::string>> names = tree.pools();
    if (!names) return pass(names);
    pools = std::move(*names);
  }
  for (const std::string& pool : pools) {
    Result<std::string> text = tree.read_control(pool, "stats");
    // The pool may have been deleted since the pools were listed.
    if (!text && text.error().code == ENOENT && arguments.pool.empty()) continue;
    if (!text) return pass(text);
    if (arguments.pool.empty()) out += fmt::format("\npool {}\n", pool);
    out += *text + '\n';
  }
  return out;
}

}  // namespace

CliResult<void> stats(const MountTree& tree, const CliArguments& arguments,
                      const CliEnvironment& environment) {
  bool again = false;
  do {
    if (auto answers = await_answer(tree, environment); !answers) return answers;
    CliResult<std::string> text =
        arguments.json ? json_line(tree, arguments.pool) : lines_of(tree, arguments);
    if (!text) return std::unexpected(text.error());
    environment.out << (again && !arguments.json ? "\n" : "") << *text << std::flush;
    again = true;
  } while (arguments.watch_s > 0 && environment.out && environment.pause(arguments.watch_s));
  return {};
}

}  // namespace kvcachefs
