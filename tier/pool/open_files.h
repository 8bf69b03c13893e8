// The open files of a pool: what each rests on, how often it is open, by how many writers, and the I/O on it
// that comes to the daemon. Any thread. Where the memory is full, calls wait for room with no lock held, and
// every wait is bounded. Failure: ESTALE or Presence::kGone for an inode that is gone; ENOSPC.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tier/pool/copy_marks.h"
#include "tier/pool/insight.h"
#include "tier/pool/opened.h"
#include "tier/pool/prefetcher.h"
#include "tier/pool/reservations.h"
#include "tier/pool/tree.h"

namespace kvcachefs {

class OpenFiles : DiskPart {
 public:
  OpenFiles(const DiskPart& part, Reservations& reservations, const Insight& insight, CopyMarks& marks,
            Inodes& inodes, Tree& tree, Prefetcher& prefetcher)
      : DiskPart(part),
        reservations_(reservations),
        insight_(insight),
        marks_(marks),
        inodes_(inodes),
        tree_(tree),
        prefetcher_(prefetcher) {}

  // Called before a file of this user's is made. Makes an entry's room if its writer will be promised that.
  // Waits without a lock.
  Tried make_way(Patience patience, uid_t uid = 0);
  // Places a new file on the caller's node, or the nearest with room, and answers the node.
  int place(int fd, int caller_thread);
  Result<Opened> created(const Created& file);
  // `client` tells one client's opens from another's.
  Result<OpenAnswer> begin_open(uint64_t ino, OpenMode mode, uint64_t client);
  // Answers an open that a process that died has counted without telling the kernel, or has it made anew.
  std::optional<Opened> adopted_open(uint64_t ino, bool from_disk);
  // The open that has begun is this user's. end_open() is told so, too.
  void held_by(uint64_t ino, uid_t user);
  void end_open(uint64_t ino, OpenMode mode);
  // False: what has been open since before this process began is not stored by a reader's last close. A
  // takeover publishes it itself.
  void publish_at_close(bool publishes) { publishes_at_close_ = publishes; }
  // A writer closed a descriptor, perhaps not its last: what is stored may be complete.
  void flushed(uint64_t ino);
  // Opens for writing over a connection that has ended (OpenHandle::lost). With passthrough their clients may
  // go on past the daemon. found_lost_writers() is called before the pool's threads start; of the evictor's
  // thread is end_lost_writers(), which ends each open as its RELEASE would, once the file's lease says that
  // no process can write it.
  void found_lost_writers(std::vector<OpenHandle> lost) { lost_writers_ = std::move(lost); }
  void end_lost_writers();
  Result<void> back(Entry& entry);  // gives the entry a backing if it has none; its shard is held

  // --- I/O that comes to the daemon (open_files_data.cc). In a full pool a write waits for the evictor, as a
  // create does.
  Tried begin_writing(uint64_t ino, Patience patience = {}) {
    return reservations_.begin_writing(ino, patience);
  }
  Result<size_t> read(uint64_t ino, std::span<char> bytes, uint64_t offset);
  struct Written {
    size_t bytes = 0;  // that were written; what remains of them if it would wait is for another call
    Tried tried = Tried::kDone;
  };
  Result<Written> write(uint64_t ino, std::span<const char> bytes, uint64_t offset, Patience patience = {});
  // Copies between descriptors, into a file of this pool, in every I/O mode; waits for room as write() does.
  struct Range {
    int file;
    uint64_t offset;
  };
  Result<Written> copy_range(Range from, Range to, size_t bytes, Patience patience = {});
  Result<Presence> truncate(uint64_t ino, uint64_t size_bytes);
  Result<Tried> allocate(uint64_t ino, int mode, uint64_t offset, uint64_t length, Patience patience = {});

 private:
  // Called before another open is served from the disk: the content stays there as long as one is.
  void hold_on_disk(Entry& entry);
  // Makes what a new file rests on; answers what keeps a nameless one.
  Result<KeptByDescriptor> rest_on(Entry& entry, const Created& file);
  Result<void> may_be_written_now(Entry& entry);  // before an open for writing is answered
  void settle(Entry& entry);                      // called when its last writer has closed it
  // The descriptor that the daemon's I/O on an open file goes through.
  Result<int> io_descriptor(uint64_t ino, int access, UniqueFd& own);
  void io_done(uint64_t ino);  // orders I/O before the descriptor's close
  // Counts the memory that the file takes now, before the evictor's next look at its writer.
  void count_memory(uint64_t ino, int fd);

  bool may_be_written_past(uint64_t ino);  // by a client of an ended connection

  std::atomic<bool> publishes_at_close_{true};
  std::vector<OpenHandle> lost_writers_;
  uint64_t looked_at_lost_ms_ = 0;
  Reservations& reservations_;
  const Insight& insight_;
  CopyMarks& marks_;
  Inodes& inodes_;
  Tree& tree_;
  Prefetcher& prefetcher_;
};

}  // namespace kvcachefs
