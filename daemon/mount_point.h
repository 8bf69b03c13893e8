// Mount points whose daemon may have died. Any thread. Failure: errno and a sentence that names the path.
#pragma once

#include <filesystem>
#include <string_view>

#include "base/result.h"

namespace kvcachefs {

// What calls on a mount whose daemon has died fail with: ENOTCONN; over io_uring, while its rings come down,
// ECONNABORTED and ECANCELED too.
bool is_daemon_gone(int code);

// Absolute and without symlinks. A directory of a dead mount cannot be resolved itself, but its parent can.
Result<std::filesystem::path> resolve_mount_point(std::string_view text);

}  // namespace kvcachefs
