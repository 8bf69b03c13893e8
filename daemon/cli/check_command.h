// `kvcachefs check` examines the disk tier of a pool that no daemon serves, on its disk and in its catalog.
// One thread. Fails with an exit code and a sentence; the code is 1 when the tier is in use, or is damaged
// and was not repaired.
#pragma once

#include "daemon/cli/arguments.h"
#include "daemon/cli/cli.h"
#include "daemon/cli/result.h"

namespace kvcachefs {

CliResult<void> check(const CliArguments& arguments, const CliEnvironment& environment);

}  // namespace kvcachefs
