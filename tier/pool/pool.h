// A pool: one budget of memory, one policy, one name tree. It has its entries (EntryTable), what may leave
// (Candidates) and the memory (MemoryArena); it makes no FUSE call. Any thread. Functions on inodes fail with
// ESTALE when the inode is gone: that is how a late caller sees that it was discarded.
#pragma once

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "alloc/memory_arena.h"
#include "alloc/numa_topology.h"
#include "base/mutex.h"
#include "tier/counters.h"
#include "tier/entries/entries.h"
#include "tier/entries/parked.h"
#include "tier/pool/capacity.h"
#include "tier/pool/copy_marks.h"
#include "tier/pool/disk_requests.h"
#include "tier/pool/evictor.h"
#include "tier/pool/inodes.h"
#include "tier/pool/insight.h"
#include "tier/pool/kernel_side.h"
#include "tier/pool/open_files.h"
#include "tier/pool/pool_disk.h"
#include "tier/pool/pool_observers.h"
#include "tier/pool/pool_residency.h"
#include "tier/pool/reservations.h"
#include "tier/pool/surroundings.h"
#include "tier/pool/tree.h"
#include "tier/pool_options.h"
#include "tier/room.h"

namespace kvcachefs {

class Pool {
 public:
  using Surroundings = PoolSurroundings;

  static Result<std::shared_ptr<Pool>> create(uint16_t number, const PoolOptions& options,
                                              const Surroundings& surroundings);
  // Takes over the memory that a process that died has left, as its Survivors tell of it (pool_adopt.cc). A
  // disk tier is attached afterwards (attach_adopted_disk).
  static Result<std::shared_ptr<Pool>> adopt(uint16_t number, const PoolOptions& options,
                                             const Surroundings& surroundings);
  Pool(uint16_t number, const PoolOptions& options, const Surroundings& surroundings, MemoryArena arena);
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool();

  uint16_t number() const { return number_; }
  const std::string& name() const { return name_; }
  uint64_t root_ino() const { return arena_.tree().ino; }
  const std::string& arena_path() const { return arena_.path(); }
  PoolCounters& counters() { return counters_; }

  // --- settings (pool_settings.cc) ---
  PoolOptions options() const EXCLUDES(settings_mutex_);
  // A smaller size evicts the excess. EBUSY: too much cannot be evicted, and the size stays as it was.
  Result<void> set_size(uint64_t size_bytes);
  Result<void> set_size_max(uint64_t size_max_bytes);  // EINVAL below the size
  Result<void> set_policy(std::string_view name);
  Result<void> set_watermarks(Watermarks watermarks);
  Result<void> set_entry_size(uint64_t entry_size_bytes);
  Result<void> set_pinned_max(unsigned percent, Authority authority);  // EPERM for an owner that raises it
  Capacity& capacity() { return capacity_; }

  static constexpr size_t kListingShards = EntryTable::kShards;
  Insight& insight() { return insight_; }
  Inodes& inodes() { return inodes_; }
  Tree& tree() { return tree_; }
  OpenFiles& open_files() { return open_files_; }
  Prefetcher& prefetcher() { return prefetcher_; }
  DiskRequests& disk_requests() { return disk_requests_; }
  Evictor& evictor() { return evictor_; }

  // --- the disk tier (pool_disk.cc, pool_spill.cc, pool_promote.cc, pool_scrub.cc, pool_restore.cc) ---
  // To be called once: what the catalog has comes back, cold. The pool may be served already: its entries
  // then get the disk too, and until all is back directories and what has come back cannot be renamed or
  // removed (EBUSY).
  Result<void> attach_disk(std::unique_ptr<BlockDevice> device, std::unique_ptr<Catalog> catalog,
                           uint64_t unit_bytes, const PoolOptions& spill);
  // Attaches an adopted pool's disk: the marks on its files say what the disk has of them, and the catalog is
  // made to agree with them.
  Result<void> attach_adopted_disk(std::unique_ptr<BlockDevice> device, std::unique_ptr<Catalog> catalog,
                                   uint64_t unit_bytes, const PoolOptions& spill);
  // An adopted pool without its disk goes on with what is in memory (tier/disk/away_disk.h).
  void go_on_without_disk(const PoolOptions& spill, const Error& why);
  AwayDisk* away() const { return disk_.away(); }
  // The catalog is being read while the pool serves: names appear.
  bool restoring() const { return disk_.restoring(); }
  DiskTier* disk() const { return disk_.tier(); }
  Durability durability() const { return disk_.durability(); }
  uint64_t cold_bytes() const { return entries_.stored_bytes(Entry::Tier::kCold); }
  Result<void> set_durability(Durability durability);
  Result<void> set_admission(Admission admission);
  Result<void> set_auto_prefetch(bool on);

  // --- life ---
  Result<void> retire();    // removes the tree (ENOTEMPTY); what clients have open of it goes on
  bool serves_from_disk();  // some client reads an entry that is not in memory
  bool retired() const { return capacity_.closed(); }
  bool forgotten();  // the kernel knows none of its inodes any more

 private:
  class Adopter;
  class Restorer;
  class Reconciler;
  using KnownNodes = std::unordered_map<uint64_t, sys::Handle>;  // by the catalog's number
  Result<void> make_disk(std::unique_ptr<BlockDevice> device, std::unique_ptr<Catalog> catalog,
                         uint64_t unit_bytes, const PoolOptions& spill);
  void use_disk(const PoolOptions& spill);
  void adopt_mark(uint64_t ino, const std::string& name, CopyMark mark);
  void name_disk(const PoolOptions& spill);
  Result<void> begin_restoring(const PoolOptions& spill);
  Result<void> restore(DiskTier& tier, const KnownNodes& there);
  // `unfinished`: what the catalog has and the tree lacks is still to be restored. Answers the tree's nodes.
  Result<KnownNodes> reconcile(DiskTier& tier, bool unfinished);
  bool is_supervised() const { return surroundings_.is_supervised(); }

  const uint16_t number_;
  const std::string name_;
  const Surroundings surroundings_;
  MemoryArena arena_;
  Entries entries_;
  PoolCounters counters_;
  CountingObserver counting_{counters_};
  KernelObserver kernel_{*surroundings_.listener, number_, *surroundings_.backing_store};
  Capacity capacity_;
  Reservations reservations_{capacity_, entries_, arena_, counters_, surroundings_, number_};
  const PoolPart part_{number_, name_, surroundings_, arena_, entries_, counters_};
  CopyMarks marks_{part_};
  Parked parked_{entries_};
  PoolDisk disk_{part_, capacity_};
  Insight insight_{part_, capacity_, disk_};
  Inodes inodes_{part_, reservations_, disk_};
  Tree tree_{part_, capacity_, disk_, insight_, parked_, inodes_};
  Prefetcher prefetcher_{part_, disk_};
  PoolResidency residency_{part_, capacity_, reservations_, disk_, marks_, inodes_, tree_};
  DiskRequests disk_requests_{part_, capacity_, disk_, marks_, inodes_};
  OpenFiles open_files_{part_,  capacity_, reservations_, disk_,      insight_,
                        marks_, inodes_,   tree_,         prefetcher_};
  Evictor evictor_{part_, capacity_, reservations_, disk_, insight_, marks_, parked_, tree_};

  mutable Mutex settings_mutex_;
  PoolOptions options_ GUARDED_BY(settings_mutex_);
};

}  // namespace kvcachefs
