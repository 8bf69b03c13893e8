#include "fs/mapped_ids.h"

#include <sys/uio.h>

#include <cstddef>
#include <utility>

#include "fs/newer_fuse.h"

namespace kvcachefs {
namespace {

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
  if (std::exchange(answers_init, false) && count >= 2 && pieces[1].iov_len >= kInitFlagsEnd) {
    auto* const answer = static_cast<InitAnswer*>(pieces[1].iov_base);
    if ((answer->flags & kInitExtended) != 0) answer->flags2 |= kInitMappedIds;
  }
  return __real_writev(fd, pieces, count);
}
