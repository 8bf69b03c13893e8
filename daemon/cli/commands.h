// How a command of the kvcachefs tool ends, and the commands with a file of their own. One thread. A command
// fails with an exit code and a sentence.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <utility>

#include "base/result.h"
#include "daemon/cli/arguments.h"
#include "daemon/cli/cli.h"
#include "daemon/cli/mount_tree.h"

namespace kvcachefs {

enum ExitCode { kOk = 0, kFailure = 1, kUsage = 2, kNotMounted = 3 };

struct CliError {
  CliError(int code, std::string text) : exit_code(code), message(std::move(text)) {}
  // The mount may go away at any time, also after the tool has first looked at it.
  CliError(Error error)
      : CliError(is_daemon_gone(error.code) ? kNotMounted : kFailure, std::move(error.message)) {}

  int exit_code;
  std::string message;
};
// The tool evaluates no size in percent of the memory, so any memory will do where it reads settings.
inline constexpr uint64_t kAnyMemoryBytes = uint64_t{1} << 40;
// A Result becomes one by itself.
template <class T>
using CliResult = std::expected<T, CliError>;

inline std::unexpected<CliError> stop(int exit_code, std::string message) {
  return std::unexpected<CliError>(CliError{exit_code, std::move(message)});
}

// The root of the only kvcachefs that is mounted; `none` is said if there is none.
CliResult<std::string> only_root(const std::vector<MountPoint>& mounts, std::string none);

// `check` examines the disk tier of a pool that no daemon serves, on its disk and in its catalog. It fails
// when the tier is in use, or is damaged and was not repaired.
CliResult<void> check(const CliArguments& arguments, const CliEnvironment& environment);

// `stop` ends a daemon, whether its file system is mounted here or not.
CliResult<void> stop_daemon(const CliArguments& arguments, const CliEnvironment& environment);

// `get` shows settings and where they come from; `reset` takes back what was set of one.
CliResult<void> get(const MountTree& tree, const CliArguments& arguments, const CliEnvironment& environment);
CliResult<void> reset(const MountTree& tree, const CliArguments& arguments,
                      const CliEnvironment& environment);

// `prefetch` and `scrub` wait for the disk tier: until each named entry was brought to memory or given up
// (with `--no-wait`, until all are queued), and until the scrub has ended.
CliResult<void> prefetch(const MountTree& tree, const CliArguments& arguments,
                         const CliEnvironment& environment);
CliResult<void> scrub(const MountTree& tree, const CliArguments& arguments,
                      const CliEnvironment& environment);

}  // namespace kvcachefs
