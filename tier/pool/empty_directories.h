// EmptyDirectories lists the directories of a pool that may be empty, in the order in which they leave when
// inodes run short (tier/pool/directory_reclaimer.h). A directory in the list
//
//   rests     for a minute after a client made it or was found to hold it, and for a second while inodes are
//             very short; then the evictor looks at it, and
//   is ripe   if it is empty. It leaves if the kernel does not know it; else
//   is asked  of the kernel, which lets go of it if only its caches hold it. One that is held rests again.
//
// Directories at the top of the pool leave last: some engines make a directory there when they start, and
// never again. A directory that is not empty when it is looked at is struck off, and noted again when it is
// emptied. Any thread; the lock here is below all others. Never fails. Each directory takes about 70 bytes.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "alloc/memory_arena.h"
#include "base/mutex.h"
#include "base/sys.h"

namespace kvcachefs {

class EmptyDirectories {
 public:
  struct Directory {
    sys::Handle handle;
    bool at_top = false;       // in the pool's root
    bool age_unknown = false;  // the directory's ctime has to tell whether it has rested long enough
  };
  struct Asked {
    Directory directory;
    uint64_t asked_ms = 0;
    bool by_name = false;  // the kernel was asked to drop its name, too
    bool told = false;     // the kernel has answered; then:
    bool known = false;    // the kernel still knows the inode
  };

  // Each does nothing for a directory that is noted already. rests(): a client made it or holds it.
  // emptied(): what was in it is gone. ask(): the kernel is to be asked; false if it was noted.
  void rests(const Directory& directory, uint64_t now_ms) EXCLUDES(mutex_);
  void emptied(const Directory& directory) EXCLUDES(mutex_);
  bool ask(const Directory& directory, bool by_name, uint64_t now_ms) EXCLUDES(mutex_);

  // The next directory that has rested since before `before_ms`, or the next ripe one. It is taken out of the
  // list before the caller looks at it, so that it is noted again if it is emptied meanwhile. take_asked()
  // does the same for a directory that was asked.
  std::optional<Directory> next_rested(uint64_t before_ms) EXCLUDES(mutex_);
  std::optional<Directory> next_ripe(bool even_at_top) EXCLUDES(mutex_);  // top: only if no other
  void take_asked(uint64_t ino) EXCLUDES(mutex_);

  // True if the directory stays because it is one of the first kKeptEach of its owner's that this was asked
  // of and that still exist. It is asked of directories in a directory with the sticky bit, where only the
  // owner removes them: another user who made the name anew would get what the owner stores next.
  static constexpr size_t kKeptEach = 64;
  bool keeps(uid_t owner, sys::Handle handle, const std::function<bool(sys::Handle)>& exists)
      EXCLUDES(mutex_);

  // The kernel's answer for a directory that was asked.
  void told(uint64_t ino, bool known) EXCLUDES(mutex_);
  std::vector<Asked> asked() const EXCLUDES(mutex_);

  struct Counts {
    size_t resting = 0;
    size_t ripe = 0;
    size_t asked = 0;
    size_t asked_by_name = 0;  // of the asked
    uint64_t heard_ms = 0;     // when one that was asked was answered or taken out
  };
  Counts counts() const EXCLUDES(mutex_);

 private:
  struct Resting {
    Directory directory;
    uint64_t since_ms;
  };
  mutable Mutex mutex_;
  std::unordered_set<uint64_t> noted_ GUARDED_BY(mutex_);  // the directories of all four lists
  std::deque<Resting> resting_ GUARDED_BY(mutex_);
  std::deque<Directory> ripe_ GUARDED_BY(mutex_);
  std::deque<Directory> ripe_at_top_ GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Asked> asked_ GUARDED_BY(mutex_);
  size_t asked_by_name_ GUARDED_BY(mutex_) = 0;
  uint64_t heard_ms_ GUARDED_BY(mutex_) = 0;
  std::unordered_map<uid_t, std::deque<sys::Handle>> kept_ GUARDED_BY(mutex_);
};

// Only a hint: a directory that has names cannot be removed.
bool looks_empty(const struct stat& directory);
bool is_at_top(const MemoryArena& arena, int directory);

}  // namespace kvcachefs
