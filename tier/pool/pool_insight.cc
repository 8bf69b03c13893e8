// Reports of a pool on itself.
#include <algorithm>
#include <map>

#include "alloc/placement.h"
#include "base/clock.h"
#include "base/fault_point.h"
#include "tier/pool/pool.h"

namespace kvcachefs {
PoolUsage Pool::usage() const {
  const ArenaUsage arena = arena_.usage();
  const uint64_t size = capacity_.size_bytes();
  // Bytes that may leave memory.
  const uint64_t most_evictable = away() == nullptr ? arena.used_bytes()
                                  : durability() == Durability::kNone
                                      ? entries_.stored_bytes(Entry::Tier::kDirty)
                                      : 0;
  unsigned pinned_max_percent;
  {
    MutexLock lock(settings_mutex_);
    pinned_max_percent = options_.pinned_max_percent;
  }
  return {.size_bytes = size,
          .used_bytes = arena.used_bytes(),
          .free_bytes = arena.free_bytes,
          .evictable_bytes = std::min(entries_.evictable_bytes(), most_evictable),
          .pinned_bytes = entries_.pinned_bytes(),
          .pinned_max_bytes = size / 100 * pinned_max_percent + size % 100 * pinned_max_percent / 100,
          .entries = entries_.files(),
          .open_entries = entries_.open_files()};
}

std::vector<NodeUsage> Pool::numa_usage() {
  std::map<int, NodeUsage> nodes;
  for (const int node : surroundings_.topology->node_ids()) nodes[node].node = node;
  for (size_t index = 0; index < EntryTable::kShards; ++index) {
    fault_point("survey");
    surroundings_.still_at_it();
    std::vector<sys::Handle> handles;
    {
      EntryTable::Shard& shard = entries_.shard_at(index);
      MutexLock lock(shard.mutex);
      for (const auto& [ino, entry] : shard.entries)
        if (entry.is_file() && !entry.removed) handles.push_back(handle_of(entry));
    }
    for (const sys::Handle handle : handles) {
      surroundings_.still_at_it();
      // Each file in turn is open and mapped for a moment; an eviction that meets it passes it by.
      auto fd = arena_.open(handle, O_RDONLY | O_NONBLOCK | O_NOATIME);
      if (!fd) continue;
      for (const PlacedBytes& placed : measure_placement(fd->get())) {
        NodeUsage& node = nodes[placed.node];
        node.node = placed.node;
        node.bytes += placed.bytes;
        node.huge_bytes += placed.huge_bytes;
      }
    }
  }
  std::vector<NodeUsage> result;
  for (const auto& [id, node] : nodes) result.push_back(node);
  return result;
}

std::vector<EntryListing> Pool::list_entries(size_t shard_index) {
  std::vector<EntryListing> result;
  if (shard_index >= EntryTable::kShards) return result;
  fault_point("survey");
  surroundings_.still_at_it();
  std::vector<std::pair<sys::Handle, EntryListing>> found;
  {
    EntryTable::Shard& shard = entries_.shard_at(shard_index);
    MutexLock lock(shard.mutex);
    const uint64_t now_ms = now_coarse_ms();  // under the lock: no entry found below is stored later
    for (const auto& [ino, entry] : shard.entries) {
      if (!entry.is_file() || entry.removed) continue;
      found.emplace_back(handle_of(entry), EntryListing{.name = {},
                                                        .size_bytes = 0,
                                                        .tier = entry.tier,
                                                        .node = entry.node,
                                                        .hits = entry.hits,
                                                        .age_s = (now_ms - entry.stored_ms) / 1000,
                                                        .priority = entry.policy.priority,
                                                        .pinned = entry.pinned});
    }
  }
  for (auto& [handle, listing] : found) {
    surroundings_.still_at_it();
    auto fd = arena_.open(handle, O_PATH | O_NOFOLLOW);
    if (!fd) continue;
    auto name = arena_.name_of(fd->get());
    auto attributes = sys::stat_of(fd->get());
    if (!name || !attributes) continue;
    listing.name = std::move(*name);
    listing.size_bytes = static_cast<uint64_t>(attributes->st_size);
    result.push_back(std::move(listing));
  }
  return result;
}

}  // namespace kvcachefs
