// How a command of the kvcachefs tool ends: well, or with an exit code and a sentence. Any thread.
#pragma once

#include <expected>
#include <string>
#include <utility>

#include "base/result.h"
#include "daemon/cli/mount_tree.h"

namespace kvcachefs {

enum ExitCode { kOk = 0, kFailure = 1, kUsage = 2, kNotMounted = 3 };

struct CliError {
  int exit_code = kFailure;
  std::string message;
};
template <class T>
using CliResult = std::expected<T, CliError>;

inline std::unexpected<CliError> stop(int exit_code, std::string message) {
  return std::unexpected<CliError>(CliError{exit_code, std::move(message)});
}

template <class T>
std::unexpected<CliError> failed(Result<T>& result) {
  // The mount may go away at any time, also after the tool has first looked at it.
  return stop(is_daemon_gone(result.error().code) ? kNotMounted : kFailure,
              std::move(result.error().message));
}

}  // namespace kvcachefs
