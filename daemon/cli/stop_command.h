// `kvcachefs stop` ends a daemon, whether its file system is mounted here or not. One thread. Fails with an
// exit code and a sentence.
#pragma once

#include "daemon/cli/arguments.h"
#include "daemon/cli/cli.h"
#include "daemon/cli/result.h"

namespace kvcachefs {

CliResult<void> stop_daemon(const CliArguments& arguments, const CliEnvironment& environment);

}  // namespace kvcachefs
