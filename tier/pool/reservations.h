// Reservations: memory that is allocated to a file before its writer has filled it, so that it comes in huge
// pages and is charged to the daemon, and given back when the writer needs it no more. Any thread; functions
// that take an Entry are called with its shard held. Failures make a write slower, never wrong.
#pragma once

#include <cstdint>

#include "tier/pool/pool_part.h"

namespace kvcachefs {

class Reservations : PoolPart {
 public:
  explicit Reservations(const PoolPart& part) : PoolPart(part) {}

  // Called before a file's first write: allocates memory for an entry of the expected size, if the file has
  // none. Waits without a lock; if it would wait, it is called once more, with patience.
  Tried begin_writing(uint64_t ino, Patience patience = {});
  // Looks at the files that are being written, and promises more memory to writers that outgrow theirs.
  // Returns true while there are writers. For the evictor's thread.
  bool follow_writers();
  // Gives back what is reserved beyond the end; answers the size. Only while no process can write: a write
  // after the look at the size would be lost. (The kernel sends none while it asks for an fallocate.)
  uint64_t trim(Entry& entry, int fd);
  // Trims a file that its last writer has closed; answers the memory that it takes.
  Entries::FileBytes settle(Entry& entry);
  // Gives back reserved memory that became holes, once no process can write.
  void give_back_holes(Entry& entry);

 private:
  // Returns how much a writer of this user may reserve without making another writer wait.
  uint64_t unclaimed_bytes(uint64_t own_promise_bytes, uid_t user, Patience patience) const;
  Waited claim(uint64_t ino, int fd, Capacity::Reservation its, Patience patience);
  // The bytes by which a file may grow before the next round.
  struct Growth {
    uint64_t bytes = 0;
    uint8_t owner = 0;
  };
  Growth follow(uint64_t ino);

  uint64_t last_activity_ = 0;  // Capacity::activity() at the last round
};

}  // namespace kvcachefs
