#include "base/sys_durable.h"

#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

namespace kvcachefs::sys {
namespace {

template <class Call>
Result<void> done(Call call) {
  int rc;
  do {
    rc = call();
  } while (rc != 0 && errno == EINTR);
  if (rc != 0) return fail(errno);
  return {};
}

}  // namespace

Result<void> lock_exclusively(int fd) {
  return done([&] { return flock(fd, LOCK_EX | LOCK_NB); });
}

Result<void> sync_file(int fd) {
  return done([&] { return fsync(fd); });
}

}  // namespace kvcachefs::sys
