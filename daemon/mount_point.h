// Mount points whose daemon may have died. Any thread. Failure: errno and a sentence that names the path.
#pragma once

#include <filesystem>
#include <string_view>

#include "base/result.h"

namespace kvcachefs {

// True for the errors of calls on a mount whose daemon has died: ENOTCONN, and over io_uring, while the rings
// are taken down, also ECONNABORTED and ECANCELED.
bool is_daemon_gone(int code);

// The result is absolute and without symbolic links. A directory of a dead mount cannot be resolved itself,
// but its parent directory can.
Result<std::filesystem::path> resolve_mount_point(std::string_view text);

}  // namespace kvcachefs
