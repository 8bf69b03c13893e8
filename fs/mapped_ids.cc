#include "fs/mapped_ids.h"

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace kvcachefs {
namespace {

// The constants are from include/uapi/linux/fuse.h of Linux 6.12; Debian 12's is older.
constexpr uint32_t kInitExtended = 1u << 30;
constexpr uint32_t kAllowIdmap = 1u << (40 - 32);  // in flags2
struct InitAnswer {
  uint32_t major, minor, max_readahead, flags;
  uint16_t max_background, congestion_threshold;
  uint32_t max_write, time_gran;
  uint16_t max_pages, map_alignment;
  uint32_t flags2;
};
static_assert(offsetof(InitAnswer, flags2) == 32);

thread_local bool answers_init = false;

}  // namespace

void allow_mapped_ids() {
  answers_init = true;
}

}  // namespace kvcachefs

extern "C" ssize_t __real_writev(int fd, const iovec* pieces, int count);
extern "C" ssize_t __wrap_writev(int fd, const iovec* pieces, int count);

// The first piece is the header; the second is the answer, in libfuse's own memory.
ssize_t __wrap_writev(int fd, const iovec* pieces, int count) {
  using namespace kvcachefs;
  if (std::exchange(answers_init, false) && count >= 2 && pieces[1].iov_len >= sizeof(InitAnswer)) {
    auto* const answer = static_cast<InitAnswer*>(pieces[1].iov_base);
    if ((answer->flags & kInitExtended) != 0) answer->flags2 |= kAllowIdmap;
  }
  return __real_writev(fd, pieces, count);
}
