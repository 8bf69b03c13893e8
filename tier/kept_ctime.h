// The daemon's own changes of an inode are hidden from its users. The daemon reserves memory and gives it
// back, marks what the disk has, drops pages and brings them back; each of these moves the inode's times. The
// mtime is put back. The ctime cannot be set by any call, so it is answered from a KeptCtime for as long as
// the mtime is still the one kept with it. A write moves both times. A change that moves the ctime alone
// (chmod, rename, an xattr, …) comes through the daemon, which then calls forget_ctime(). An xattr of the
// inode (kTimesXattr) tells a successor the kept ctime.
//
// The caller holds the lock that guards the KeptCtime. Failure: users see the times of the tmpfs; no call
// fails for it.
#pragma once

#include <sys/stat.h>

#include <cstdint>

namespace kvcachefs {

struct KeptCtime {
  uint64_t mtime_ns = 0;  // while the inode's mtime is this one,
  uint64_t ctime_ns = 0;  // its ctime is this one; 0: no ctime is kept
};

inline constexpr const char* kTimesXattr = "trusted.kvcachefs.times";

void show_ctime(const KeptCtime& kept, struct stat& attributes);

// The caller calls this before a change that moves the ctime. `survives`: a successor may come.
void keep_ctime(KeptCtime& kept, int fd, bool survives);
// restore_ctime() keeps the catalog's times of an inode that is made anew; `modified` is the mtime that it
// has been given.
KeptCtime restore_ctime(int fd, const timespec& modified, const timespec& changed, bool survives);
// The caller calls this after a change made by the inode's users.
void forget_ctime(KeptCtime& kept, int fd, bool survives);

// A pair around a change that moves the mtime too and may take long. Until end_unseen(), a successor that
// finds no writer puts the mtime back itself. The times kept are those of `shown`, which users see.
void begin_unseen(KeptCtime& kept, int fd, const struct stat& shown, bool survives);
void end_unseen(KeptCtime& kept, int fd, const timespec& modified, bool survives);

// The same pair around a change that is made at once. If a writer made the file longer meanwhile, the time of
// that write stands; if it wrote over existing bytes, the file keeps the time of the write before.
class UnseenChange {
 public:
  UnseenChange(KeptCtime& kept, int fd, bool survives);
  ~UnseenChange();
  UnseenChange(const UnseenChange&) = delete;
  UnseenChange& operator=(const UnseenChange&) = delete;

 private:
  KeptCtime& kept_;
  const int fd_;
  const bool survives_;
  bool begun_ = false;
  struct stat before_ {};
};

// The times that a process which died has kept, put back by now in the inode and in `attributes`. `written`:
// the file has writers, so an unfinished change's mtime is not put back, and nothing is written down: a write
// past the daemon may hold the inode's lock until this process serves.
KeptCtime adopt_ctime(int fd, struct stat& attributes, bool written);

}  // namespace kvcachefs
