// A pool: one budget of memory, one policy, one name tree. It makes its parts, in the order in which they use
// one another, and hands them out; what each owns, its header says. A part calls only those before it, and
// none calls the pool. It makes no FUSE call. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "alloc/memory_arena.h"
#include "tier/counters.h"
#include "tier/entries/parked.h"
#include "tier/pool/capacity.h"
#include "tier/pool/copy_marks.h"
#include "tier/pool/disk_requests.h"
#include "tier/pool/evictor.h"
#include "tier/pool/inodes.h"
#include "tier/pool/insight.h"
#include "tier/pool/open_files.h"
#include "tier/pool/pool_disk.h"
#include "tier/pool/pool_observers.h"
#include "tier/pool/pool_residency.h"
#include "tier/pool/recovery.h"
#include "tier/pool/reservations.h"
#include "tier/pool/settings.h"
#include "tier/pool/tree.h"
#include "tier/pool_options.h"

namespace kvcachefs {

class Pool {
 public:
  using Surroundings = PoolSurroundings;

  static Result<std::shared_ptr<Pool>> create(uint16_t number, const PoolOptions& options,
                                              const Surroundings& surroundings);
  // Takes over the memory that a process that died has left, as its Survivors tell of it. After
  // Recovery::begin_adopting(), adopt_files() finds what is in it; a disk tier is attached afterwards
  // (attach_adopted_disk).
  static Result<std::shared_ptr<Pool>> adopt(uint16_t number, const PoolOptions& options,
                                             const Surroundings& surroundings);
  // EIO if not all of its files could be looked at: then the pool must not serve, nor end but with the
  // process.
  static Result<void> adopt_files(const std::shared_ptr<Pool>& pool);
  Pool(uint16_t number, const PoolOptions& options, const Surroundings& surroundings, MemoryArena arena);
  ~Pool();

  uint16_t number() const { return number_; }
  const std::string& name() const { return name_; }
  uint64_t root_ino() const { return arena_.tree().ino; }
  const std::string& arena_path() const { return arena_.path(); }
  PoolCounters& counters() { return counters_; }
  Capacity& capacity() { return capacity_; }
  NameLimits& limits() { return limits_; }
  Insight& insight() { return insight_; }
  Inodes& inodes() { return inodes_; }
  Tree& tree() { return tree_; }
  OpenFiles& open_files() { return open_files_; }
  Prefetcher& prefetcher() { return prefetcher_; }
  const PoolDisk& disk() const { return disk_; }
  NamesToCome& names_to_come() { return disk_.names_to_come(); }
  DiskRequests& disk_requests() { return disk_requests_; }
  Evictor& evictor() { return evictor_; }
  Settings& settings() { return settings_; }
  Recovery& recovery() { return recovery_; }

  // --- life ---
  Result<void> retire();    // removes the tree (ENOTEMPTY); what clients have open of it goes on
  bool serves_from_disk();  // some client reads an entry that is not in memory
  bool retired() const { return capacity_.closed(); }
  bool forgotten();  // the kernel knows none of its inodes any more

 private:
  const uint16_t number_;
  const std::string name_;
  const Surroundings surroundings_;
  MemoryArena arena_;
  Entries entries_;
  PoolCounters counters_;
  CountingObserver counting_{counters_};
  KernelObserver kernel_{*surroundings_.listener, number_, *surroundings_.backing_store};
  Capacity capacity_;
  NameLimits limits_;
  const PoolPart part_{number_, name_, surroundings_, arena_, capacity_, entries_, counters_, limits_};
  Reservations reservations_{part_};
  Parked parked_{entries_};
  PoolDisk disk_{part_};
  const DiskPart disk_part_{part_, disk_};
  CopyMarks marks_{disk_part_};
  Lifetimes lifetimes_{disk_part_};
  Insight insight_{disk_part_, lifetimes_};
  Inodes inodes_{disk_part_, reservations_};
  Tree tree_{disk_part_, insight_, parked_, inodes_};
  Prefetcher prefetcher_{disk_part_};
  PoolResidency residency_{disk_part_, reservations_, marks_, parked_, inodes_, tree_};
  DiskRequests disk_requests_{disk_part_, marks_, inodes_};
  OpenFiles open_files_{disk_part_, reservations_, insight_, marks_, inodes_, tree_, prefetcher_};
  Evictor evictor_{disk_part_, reservations_, marks_, parked_, tree_, lifetimes_, insight_.index()};
  Settings settings_;
  Recovery recovery_{
      disk_part_,
      {reservations_, marks_, insight_, inodes_, tree_, residency_, disk_requests_, open_files_, settings_}};
};

}  // namespace kvcachefs
