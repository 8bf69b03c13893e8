// What a pool's users ask of its disk: to have an entry in memory, to read it from where it is, to have it
// durable, and to look for damage. Any thread, with no lock held. Waiters are called with no lock held, by a
// worker's thread; or by the call itself, if there is nothing to wait for or the threads have ended (kEnding;
// ESHUTDOWN). Failure: without a disk as PoolDisk::needed().
#pragma once

#include <cstdint>
#include <optional>

#include "tier/disk/spill_orders.h"
#include "tier/pool/copy_marks.h"
#include "tier/pool/inodes.h"
#include "tier/pool/pool_disk.h"

namespace kvcachefs {

class DiskRequests : DiskPart {
 public:
  DiskRequests(const DiskPart& part, CopyMarks& marks, Inodes& inodes)
      : DiskPart(part), marks_(marks), inodes_(inodes) {}

  // A writer's waiter hears that there is no memory when `patience_ends_ms` (now_coarse_ms()) is over.
  void promote(uint64_t ino, PromoteWaiter waiter, Room::Whose whose = Room::Whose::kPromotion,
               uint64_t patience_ends_ms = 0);
  void read_from_disk(uint64_t ino, uint64_t offset, size_t size, Promoter::ReadWaiter waiter);
  // lseek(2) for a file that is opened from_disk; ENXIO as there.
  Result<uint64_t> seek_on_disk(uint64_t ino, uint64_t offset, int whence);
  // Calls the waiter when the entry, or each closed file in the directory (root: the pool), is in the
  // catalog. `locked`: the kernel lets no client write the file until the waiter is called. A close has no
  // such lock: it fails (EIO) for a file that was opened for writing before durability was `sync`.
  void sync(uint64_t ino, Waiter waiter, bool locked = true);
  void sync_directory(uint64_t ino, Waiter waiter);
  // sync_name() does so for the file that a rename has given this name: file and name are durable.
  void sync_name(int directory, const char* name, Waiter waiter);
  void when_committed(Waiter waiter);
  void when_catalog_takes_more(Waiter waiter);  // CatalogLog::when_it_takes_more()
  // Queues all stored, admitted dirty entries for the disk, unless durability is none.
  void spill_all();
  void run_near_disk();                                 // runs the calling thread on the disk's node
  Result<void> start_scrub(uint64_t rate_bytes_per_s);  // EBUSY while a scrub runs
  Result<void> stop_scrub();
  ScrubProgress scrub_progress() const;

 private:
  // The tier that is to make something durable. Null: the waiter was taken. It is called at once for a pool
  // that is removed or has no disk, of which nothing is kept, and waits for a disk that is away.
  DiskTier* durable_tier(Waiter& waiter);
  // The result is for an earlier step: it passes on an error of that step, and else waits for the commit.
  Waiter committed_after(Waiter waiter);
  // Makes it possible to copy the dirty entry while it is written; an error if that cannot be done.
  Result<void> make_copyable(Entry& entry, bool locked);
  // The entry's size if it is dirty. The caller then asks the spiller for the copy, after it has given up the
  // shard, because its waiter may be called at once.
  std::optional<uint64_t> claim_copy(Entry& entry);

  CopyMarks& marks_;
  Inodes& inodes_;
};

}  // namespace kvcachefs
