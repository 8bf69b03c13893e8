#include "base/sys_beneath.h"

#include <linux/openat2.h>
#include <sys/syscall.h>

#include <cerrno>

#include "base/sys.h"

namespace kvcachefs::sys {

constexpr int kTries = 16;  // for EAGAIN, a rename anywhere on the machine, and for EINTR

static Result<UniqueFd> open_with(int directory, const char* path, int flags, uint64_t resolve) {
  open_how how{};
  how.flags = static_cast<uint64_t>(flags) | O_CLOEXEC;
  how.resolve = resolve;
  int fd = -1;
  for (int tries = 0; tries < kTries; ++tries) {
    fd = static_cast<int>(syscall(SYS_openat2, directory, path, &how, sizeof how));
    if (fd >= 0 || (errno != EAGAIN && errno != EINTR)) break;
  }
  return owned(fd);
}

Result<UniqueFd> open_beneath(int directory, const char* path, int flags) {
  return open_with(directory, path, flags,
                   RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV);
}

Result<UniqueFd> open_in_root(int directory, const char* path, int flags) {
  return open_with(directory, path, flags, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS);
}

}  // namespace kvcachefs::sys
