// The kvcachefs tool's commands that wait for the disk tier: prefetch and scrub. One thread. Fails with an
// exit code and a sentence.
#pragma once

#include "daemon/cli/arguments.h"
#include "daemon/cli/cli.h"
#include "daemon/cli/mount_tree.h"
#include "daemon/cli/result.h"

namespace kvcachefs {

// Returns when all names were brought to memory or given up, unless it is not to wait.
CliResult<void> prefetch(const MountTree& tree, const CliArguments& arguments,
                         const CliEnvironment& environment);
CliResult<void> scrub(const MountTree& tree, const CliArguments& arguments,
                      const CliEnvironment& environment);

}  // namespace kvcachefs
