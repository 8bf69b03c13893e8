// How a command of the kvcachefs tool ends, and the commands with a file of their own. One thread. A command
// fails with an exit code and a sentence.
#pragma once

#include <cstdint>
#include <expected>
#include <filesystem>
#include <string>
#include <utility>

#include "base/result.h"
#include "daemon/cli/arguments.h"
#include "daemon/cli/asker.h"
#include "daemon/cli/cli.h"
#include "daemon/cli/mount_tree.h"
#include "daemon/cli/views.h"

namespace kvcachefs {

enum ExitCode { kOk = 0, kFailure = 1, kUsage = 2, kNotMounted = 3, kNotKnownYet = 4 };

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

// The root of the only kvcachefs that is mounted. `none` is the message if there is none.
CliResult<std::string> only_root(const std::vector<MountPoint>& mounts, std::string none);

// The mount point that the arguments name, whether or not a kvcachefs is mounted there, or the only one. No
// request goes to an existing mount, because its daemon may hang.
CliResult<std::string> mount_point_of(const CliArguments& arguments, const CliEnvironment& environment,
                                      std::string none);

// The mount that the arguments name, or the only one. Fails if its daemon is gone, or does not answer in
// time.
CliResult<MountTree> find_tree(const CliArguments& arguments, const CliEnvironment& environment);
CliResult<MountTree> find_tree(const CliArguments& arguments, const CliEnvironment& environment,
                               Asker& asker);
// Checks again that the daemon of a mount answers in time. If the daemon hangs after this check, a later read
// of the mount waits.
CliResult<void> await_answer(const MountTree& tree, Asker& asker);
CliResult<void> await_answer(const MountTree& tree, const CliEnvironment& environment);
std::string daemon_is_gone(const std::filesystem::path& root);

// `metrics` prints them, writes them to a file, or serves them until a signal ends the process.
CliResult<void> metrics(const CliArguments& arguments, const CliEnvironment& environment);

// `stats` prints the counters as the daemon gives them, once or again and again.
CliResult<void> stats(const MountTree& tree, const CliArguments& arguments,
                      const CliEnvironment& environment);

// The counters of the daemon and of all pools.
CliResult<Sample> take_sample(const MountTree& tree, const CliEnvironment& environment);
// `top` shows them live until a key or a signal ends it.
CliResult<void> top(const MountTree& tree, const CliArguments& arguments, const CliEnvironment& environment);

// `report` prints what a ticket asks for, whether or not a daemon serves.
CliResult<void> report(const CliArguments& arguments, const CliEnvironment& environment);

// `check` examines the disk tier of a pool that no daemon serves, on its disk and in its catalog. It fails
// when the tier is in use, or is damaged and was not repaired.
CliResult<void> check(const CliArguments& arguments, const CliEnvironment& environment);

// `stop` ends a daemon, whether its file system is mounted here or not.
CliResult<void> stop_daemon(const CliArguments& arguments, const CliEnvironment& environment);

// `set` and `create` warn of what they could not have written down. `get` shows settings and where they come
// from; `reset` takes back what was set of one.
CliResult<void> set(const MountTree& tree, const CliArguments& arguments, const CliEnvironment& environment);
CliResult<void> create(const MountTree& tree, const CliArguments& arguments,
                       const CliEnvironment& environment);
CliResult<void> get(const MountTree& tree, const CliArguments& arguments, const CliEnvironment& environment);
CliResult<void> reset(const MountTree& tree, const CliArguments& arguments,
                      const CliEnvironment& environment);

// `index` says of entries what they hold, by records.
CliResult<void> index_records(const MountTree& tree, const CliArguments& arguments,
                              const CliEnvironment& environment);

// `match` shows which entries hold a prefix, or are there; `similar` blocks that are nearly those of a
// prompt; `list` which entries have some attributes. `forget-agent` takes one attribute from all that have
// it; `remove` removes all that have some.
CliResult<void> match(const MountTree& tree, const CliArguments& arguments,
                      const CliEnvironment& environment);
CliResult<void> similar(const MountTree& tree, const CliArguments& arguments,
                        const CliEnvironment& environment);
CliResult<void> forget_agent(const MountTree& tree, const CliArguments& arguments,
                             const CliEnvironment& environment);
CliResult<void> prefix_hash(const CliArguments& arguments, const CliEnvironment& environment);
CliResult<void> list(const MountTree& tree, const CliArguments& arguments, const CliEnvironment& environment);
CliResult<void> remove_entries(const MountTree& tree, const CliArguments& arguments,
                               const CliEnvironment& environment);

// `prefetch` and `scrub` wait for the disk tier: until each named entry was brought to memory or given up
// (with `--no-wait`, until all are queued), and until the scrub has ended.
CliResult<void> prefetch(const MountTree& tree, const CliArguments& arguments,
                         const CliEnvironment& environment);
CliResult<void> scrub(const MountTree& tree, const CliArguments& arguments,
                      const CliEnvironment& environment);

}  // namespace kvcachefs
