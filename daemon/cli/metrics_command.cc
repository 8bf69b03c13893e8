// `metrics`: the mount's metrics as a text, as a file for a collector, or over HTTP. The daemon itself opens
// no port.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <ostream>

#include "base/sys.h"
#include "base/sys_disk.h"
#include "daemon/cli/commands.h"

namespace kvcachefs {
namespace {

CliResult<std::string> metrics_of(const CliArguments& arguments, const CliEnvironment& environment) {
  CliResult<MountTree> tree = find_tree(arguments, environment);
  if (!tree) return std::unexpected(tree.error());
  Result<std::string> text = tree->read_daemon_file("metrics");
  if (text) return *text + '\n';
  if (is_daemon_gone(text.error().code)) return stop(kNotMounted, daemon_is_gone(tree->root()));
  return pass(text);
}

// A collector reads the whole of one text or of the next, because the file is renamed into its place.
Result<void> replace_file(const std::string& file, std::string_view text) {
  const std::string temporary = fmt::format("{}.{}.tmp", file, ::getpid());
  (void)sys::unlink_at(AT_FDCWD, temporary.c_str(), 0);
  const auto failed = [&](const std::string& what, const Error& error) {
    return fail(error.code, fmt::format("{}: {}", what, sys::error_text(error.code)));
  };
  Result<UniqueFd> made =
      sys::open_at(AT_FDCWD, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0644);
  if (!made) return failed(temporary, made.error());
  Result<size_t> written = sys::write_at(made->get(), text, 0);
  if (written && *written < text.size()) written = fail(ENOSPC);
  Result<void> renamed =
      written ? sys::rename_at(AT_FDCWD, temporary.c_str(), AT_FDCWD, file.c_str(), 0) : pass(written);
  if (renamed) return {};
  (void)sys::unlink_at(AT_FDCWD, temporary.c_str(), 0);
  return failed(file, renamed.error());
}

CliResult<void> write_textfile(const CliArguments& arguments, const CliEnvironment& environment) {
  CliResult<std::string> text = metrics_of(arguments, environment);
  if (!text) {
    // Old numbers would pass for those of now.
    (void)sys::unlink_at(AT_FDCWD, arguments.textfile.c_str(), 0);
    return std::unexpected(text.error());
  }
  Result<void> replaced = replace_file(arguments.textfile, *text);
  if (!replaced) return pass(replaced);
  return {};
}

// What lasts is said once.
CliResult<void> keep_textfile(const CliArguments& arguments, const CliEnvironment& environment) {
  std::string said;
  do {
    const CliResult<void> written = write_textfile(arguments, environment);
    const std::string message = written ? std::string() : written.error().message;
    if (message != said)
      environment.error << "kvcachefs: " << (written ? "written again" : message) << std::endl;
    said = message;
  } while (environment.wait(arguments.metrics_interval_s));
  return {};
}

}  // namespace

CliResult<void> metrics(const CliArguments& arguments, const CliEnvironment& environment) {
  if (arguments.listen) {
    const auto source = [&]() -> Result<std::string> {
      CliResult<std::string> text = metrics_of(arguments, environment);
      if (!text) return fail(ENOTCONN, text.error().message);
      return *text;
    };
    Result<void> served = environment.serve_metrics(
        *arguments.listen, source, [&](const std::string& url) { environment.out << url << std::endl; });
    if (!served) return pass(served);
    return {};
  }
  if (!arguments.textfile.empty())
    return arguments.metrics_interval_s > 0 ? keep_textfile(arguments, environment)
                                            : write_textfile(arguments, environment);
  CliResult<std::string> text = metrics_of(arguments, environment);
  if (!text) return std::unexpected(text.error());
  environment.out << *text;
  return {};
}

}  // namespace kvcachefs
