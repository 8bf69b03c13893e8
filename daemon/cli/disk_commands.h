// The commands of the kvcachefs tool that wait for the disk tier: prefetch and scrub. One thread. They fail
// with an exit code and a sentence.
#pragma once

#include "daemon/cli/arguments.h"
#include "daemon/cli/cli.h"
#include "daemon/cli/mount_tree.h"
#include "daemon/cli/result.h"

namespace kvcachefs {

// The call returns when each named entry was brought to memory or given up; with `--no-wait`, when all are
// queued.
CliResult<void> prefetch(const MountTree& tree, const CliArguments& arguments,
                         const CliEnvironment& environment);
CliResult<void> scrub(const MountTree& tree, const CliArguments& arguments,
                      const CliEnvironment& environment);

}  // namespace kvcachefs
