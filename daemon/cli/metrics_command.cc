// `metrics`: the mount's metrics as a text, as a file for a collector, or over HTTP. The daemon itself opens
// no port.
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ostream>

#include "base/sys.h"
#include "base/sys_disk.h"
#include "daemon/cli/commands.h"

namespace kvcachefs {
namespace {

// Shorter than the 10 s that a collector waits by default, and than the patience of other commands, because
// the next collection is soon.
constexpr std::chrono::seconds kMostPatience(5);

CliResult<std::string> metrics_of(const CliArguments& arguments, const CliEnvironment& environment,
                                  Asker& asker) {
  CliResult<MountTree> tree = find_tree(arguments, environment, asker);
  if (!tree) return std::unexpected(tree.error());
  Result<std::string> text = asker.ask(tree->root(), [&] { return tree->read_daemon_file("metrics"); });
  if (text) return *text + '\n';
  if (is_daemon_gone(text.error().code)) return stop(kNotMounted, daemon_is_gone(tree->root()));
  return pass(text);
}

CliResult<void> write_textfile(const CliArguments& arguments, const CliEnvironment& environment,
                               Asker& asker) {
  CliResult<std::string> text = metrics_of(arguments, environment, asker);
  if (!text) {
    // Old numbers would pass for current ones.
    (void)sys::unlink_at(AT_FDCWD, arguments.textfile.c_str(), 0);
    return std::unexpected(text.error());
  }
  // A collector reads the whole of one text or of the next.
  if (auto replaced = sys::replace_file(AT_FDCWD, arguments.textfile, *text, 0644); !replaced)
    return stop(kFailure, fmt::format("{}: {}", arguments.textfile, sys::error_text(replaced.error().code)));
  return {};
}

// A message that stays the same from one interval to the next is printed once.
CliResult<void> keep_textfile(const CliArguments& arguments, const CliEnvironment& environment,
                              Asker& asker) {
  std::string said;
  do {
    const CliResult<void> written = write_textfile(arguments, environment, asker);
    const std::string message = written ? std::string() : written.error().message;
    if (message != said)
      environment.error << "kvcachefs: " << (written ? "written again" : message) << std::endl;
    said = message;
  } while (environment.wait(arguments.metrics_interval_s));
  return {};
}

}  // namespace

CliResult<void> metrics(const CliArguments& arguments, const CliEnvironment& environment) {
  Asker asker(std::min<std::chrono::milliseconds>(environment.patience, kMostPatience));
  if (arguments.listen) {
    const auto source = [&]() -> Result<std::string> {
      CliResult<std::string> text = metrics_of(arguments, environment, asker);
      if (!text) return fail(ENOTCONN, text.error().message);
      return *text;
    };
    Result<void> served = environment.serve_metrics(
        *arguments.listen, source, [&](const std::string& url) { environment.out << url << std::endl; });
    if (!served) return pass(served);
    return {};
  }
  if (!arguments.textfile.empty())
    return arguments.metrics_interval_s > 0 ? keep_textfile(arguments, environment, asker)
                                            : write_textfile(arguments, environment, asker);
  CliResult<std::string> text = metrics_of(arguments, environment, asker);
  if (!text) return std::unexpected(text.error());
  environment.out << *text;
  return {};
}

}  // namespace kvcachefs
