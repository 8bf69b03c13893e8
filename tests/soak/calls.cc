#include "tests/soak/calls.h"

#include <algorithm>
#include <array>
#include <cerrno>

namespace kvcachefs::soak {
namespace {

constexpr int kMostSeconds = 30;
// kvcachefsd(8): for room a call waits 30 s at most. It may have waited in a queue before that.
constexpr int kMostSecondsForRoom = 35;

// ENOENT: an entry or an empty directory has left. EACCES and EPERM: what modes and the sticky bit say. EIO
// of an order: a takeover found the disk locked for a moment by the process before it.
std::array<CallKind, kCalls> make_kinds() {
  std::array<CallKind, kCalls> kinds;
  const auto is = [&](Call call, const char* name, std::vector<int> documented, int most = kMostSeconds) {
    kinds[static_cast<int>(call)] = {name, std::move(documented), most};
  };
  is(Call::kOpenToRead, "open to read", {ENOENT, EACCES, EMFILE});
  is(Call::kOpenToWrite, "open to write", {ENOENT, EACCES, EMFILE, ENOSPC}, kMostSecondsForRoom);
  is(Call::kCreate, "create", {ENOENT, EACCES, EEXIST, EMFILE, ENOSPC}, kMostSecondsForRoom);
  is(Call::kOpenNameless, "open O_TMPFILE", {ENOENT, EACCES, EMFILE, ENOSPC, EDQUOT}, kMostSecondsForRoom);
  is(Call::kOpenDirectory, "open a directory", {ENOENT, EMFILE});
  is(Call::kOpenAsPath, "open O_PATH", {ENOENT, EMFILE});
  is(Call::kRead, "read", {});
  is(Call::kWrite, "write", {ENOSPC}, kMostSecondsForRoom);
  is(Call::kMap, "mmap", {});
  is(Call::kClose, "close", {});
  is(Call::kSync, "fsync", {EBUSY}, kMostSecondsForRoom);
  is(Call::kTruncate, "truncate", {ENOENT, EACCES, ENOSPC});
  is(Call::kAllocate, "fallocate", {ENOSPC}, kMostSecondsForRoom);
  is(Call::kPunch, "fallocate to punch", {});
  is(Call::kStat, "stat", {ENOENT});
  is(Call::kStatFileSystem, "statfs", {ENOENT});
  is(Call::kList, "getdents", {});
  is(Call::kRename, "rename", {ENOENT, EACCES, EPERM, ENOSPC});
  is(Call::kExchange, "rename to exchange", {ENOENT, EACCES, EPERM});
  is(Call::kLink, "link", {ENOENT, EACCES, EPERM, EEXIST, ENOSPC});
  is(Call::kLinkNameless, "link of a nameless file", {ENOENT, EACCES, EEXIST, ENOSPC}, kMostSecondsForRoom);
  is(Call::kSymlink, "symlink", {ENOENT, EACCES, EEXIST, ENOSPC, EDQUOT});
  is(Call::kReadLink, "readlink", {ENOENT});
  is(Call::kUnlink, "unlink", {ENOENT, EACCES, EPERM});
  is(Call::kMakeDirectory, "mkdir", {ENOENT, EACCES, EEXIST, ENOSPC});
  is(Call::kRemoveDirectory, "rmdir", {ENOENT, EACCES, EPERM, ENOTEMPTY});
  is(Call::kChangeMode, "chmod", {ENOENT, EPERM});
  is(Call::kChangeOwner, "chown", {ENOENT, EPERM});
  is(Call::kSetTimes, "utimensat", {ENOENT, EPERM});
  is(Call::kSetXattr, "setxattr", {ENOENT, EACCES, ENOSPC});
  is(Call::kPin, "setxattr to pin", {ENOENT, EACCES, ENOSPC});
  is(Call::kGetXattr, "getxattr", {ENOENT, ENODATA, EACCES});
  is(Call::kListXattrs, "listxattr", {ENOENT});
  is(Call::kRemoveXattr, "removexattr", {ENOENT, ENODATA, EACCES});
  is(Call::kWatch, "inotify_add_watch", {ENOENT, EACCES});
  is(Call::kReadControl, "read a control file", {EMFILE});
  is(Call::kOrder, "write a control file", {EBUSY, EIO}, kMostSecondsForRoom);
  return kinds;
}

}  // namespace

const CallKind& kind_of(Call call) {
  static const std::array<CallKind, kCalls> kKinds = make_kinds();
  return kKinds[static_cast<int>(call)];
}

bool is_documented(Call call, int error) {
  return error == 0 || std::ranges::count(kind_of(call).documented, error) > 0;
}

}  // namespace kvcachefs::soak
