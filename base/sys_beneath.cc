#include "base/sys_beneath.h"

#include <linux/openat2.h>
#include <sys/syscall.h>

#include <cerrno>

#include "base/sys.h"

namespace kvcachefs::sys {

constexpr int kTries = 16;  // for EAGAIN, a rename anywhere on the machine, and for EINTR

Result<UniqueFd> open_beneath(int directory, const char* path, int flags) {
  open_how how{};
  how.flags = static_cast<uint64_t>(flags) | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV;
  int fd = -1;
  for (int tries = 0; tries < kTries; ++tries) {
    fd = static_cast<int>(syscall(SYS_openat2, directory, path, &how, sizeof how));
    if (fd >= 0 || (errno != EAGAIN && errno != EINTR)) break;
  }
  return owned(fd);
}

}  // namespace kvcachefs::sys
