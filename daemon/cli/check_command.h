// `kvcachefs check`: the disk tier of a pool that no daemon serves, looked at where it lies. One thread.
// Fails with an exit code and a sentence: 1 when it is in use, or damaged and not repaired.
#pragma once

#include "daemon/cli/arguments.h"
#include "daemon/cli/cli.h"
#include "daemon/cli/result.h"

namespace kvcachefs {

CliResult<void> check(const CliArguments& arguments, const CliEnvironment& environment);

}  // namespace kvcachefs
