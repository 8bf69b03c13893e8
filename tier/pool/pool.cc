#include "tier/pool/pool.h"

#include <algorithm>

#include "base/clock.h"
#include "base/fault_point.h"
#include "base/log.h"

namespace kvcachefs {

// A removed pool may still grow by this: less than what a tmpfs counts in batches would be no limit.
constexpr uint64_t kRemovedSlackBytes = uint64_t{1} << 20;

Result<std::shared_ptr<Pool>> Pool::create(uint16_t number, const PoolOptions& options,
                                           const Surroundings& surroundings) {
  auto arena = MemoryArena::create({.path = surroundings.arena_path,
                                    .size_bytes = options.size_bytes,
                                    .mode = options.mode,
                                    .uid = options.uid,
                                    .gid = options.gid});
  if (!arena) return pass(arena);
  return std::make_shared<Pool>(number, options, surroundings, std::move(*arena));
}

Result<std::shared_ptr<Pool>> Pool::adopt(uint16_t number, const PoolOptions& options,
                                          const Surroundings& surroundings) {
  std::vector<int> nameless;
  for (const auto& [place, kept] : surroundings.survivors->kept_inodes().list())
    if (kept.inode.pool == number) nameless.push_back(kept.fd);
  auto arena = MemoryArena::adopt(surroundings.arena_path, nameless);
  if (!arena) return pass(arena);
  const bool removed = arena->tree_is_removed();
  auto pool = std::make_shared<Pool>(number, options, surroundings, std::move(*arena));
  if (removed) pool->capacity_.close();
  return pool;
}

Result<void> Pool::adopt_files(const std::shared_ptr<Pool>& pool) {
  const uint64_t begun_ns = now_ns();
  auto nameless_directories = pool->recovery_.adopt();
  if (!nameless_directories) return pass(nameless_directories);
  // The kernel says once that it has forgotten an inode, and may have said so to the process that died.
  if (!nameless_directories->empty())
    pool->surroundings_.listener->let_go(pool->number_, std::move(*nameless_directories),
                                         [left = std::weak_ptr(pool)](uint64_t ino, bool known) {
                                           const auto its = left.lock();
                                           if (its && !known) its->inodes().forget(ino, UINT64_MAX);
                                         });
  log_info("pool {}: taken over with {} entries in {} ms", pool->name_, pool->entries_.sums().files(),
           (now_ns() - begun_ns) / 1'000'000);
  return {};
}

Pool::Pool(uint16_t number, const PoolOptions& options, const Surroundings& surroundings, MemoryArena arena)
    : number_(number),
      name_(options.name),
      surroundings_(surroundings),
      arena_(std::move(arena)),
      entries_(options.policy),
      capacity_(options, surroundings_, arena_, counters_, entries_.shares()),
      limits_(options, entries_.sums()),
      settings_(disk_part_, options, prefetcher_, disk_requests_, evictor_) {
  entries_.observe(counting_);
  entries_.observe(kernel_);
  entries_.observe(prefetcher_);
  entries_.observe(insight_.index());
}

Pool::~Pool() {
  for (EntryTable::Shard& shard : entries_.shards()) {
    MutexLock lock(shard.mutex);
    for (auto& [ino, entry] : shard.entries)
      if (entry.kernel.backing >= 0) surroundings_.backing_store->give_back(entry.kernel.backing);
  }
}

Result<void> Pool::retire() {
  EntryTable::Shard& shard = entries_.shard(root_ino());
  {
    const LockedEntry root(shard, root_ino());
    KeptByDescriptor keep;
    // A process that works in the root keeps its attributes, and the pool its number: another pool would get
    // it with the kernel's inodes and open control files of this one. So no user's share of descriptors is
    // asked, and a pool whose root cannot be kept stays.
    if (root != nullptr) {
      auto copy = sys::duplicate(arena_.tree_fd());
      auto kept = copy ? tree_.keep_inode(arena_.tree(), std::move(*copy), false) : pass(copy);
      if (!kept) return pass(kept);
      keep = std::move(*kept);
    }
    if (auto removed = arena_.remove_tree(); !removed) return removed;
    fault_point("pool removed");
    if (root != nullptr) {
      entries_.removed(*root, RemovalReason::kDeleted);
      if (keep) shard.kept[root_ino()] = std::move(keep);
    }
    capacity_.close();
  }
  // Other pools may get the memory from now on, but for what is open.
  const ArenaUsage now = arena_.usage();
  (void)arena_.resize(std::min(now.size_bytes, now.used_bytes() + kRemovedSlackBytes));
  return {};
}

bool Pool::serves_from_disk() {
  for (EntryTable::Shard& shard : entries_.shards())
    if (MutexLock lock(shard.mutex); std::ranges::any_of(
            shard.entries, [](const auto& each) { return each.second.disk.held() != nullptr; }))
      return true;
  return false;
}

bool Pool::forgotten() {
  for (EntryTable::Shard& shard : entries_.shards())
    if (MutexLock lock(shard.mutex); !shard.entries.empty()) return false;
  return true;
}

}  // namespace kvcachefs
