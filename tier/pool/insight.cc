#include "tier/pool/insight.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>

#include "alloc/placement.h"
#include "base/clock.h"
#include "base/fault_point.h"
#include "base/log_limit.h"
#include "base/size.h"

namespace kvcachefs {

PoolUsage Insight::usage() const {
  const ArenaUsage arena = arena_.usage();
  // Bytes that may leave memory: without the disk what it has or is to have stays; with one that takes
  // nothing more, what it is to have.
  const bool is_promised = disk_.durability() != Durability::kNone;
  uint64_t most_evictable = arena.used_bytes();
  if (disk_.away() != nullptr)
    most_evictable = is_promised ? 0 : entries_.sums().stored_bytes(Entry::Tier::kDirty);
  else if (disk_.tier() != nullptr && !disk_.takes_more() && is_promised)
    most_evictable = entries_.sums().stored_bytes(Entry::Tier::kClean);
  const auto users = entries_.shares().users();
  return {.size_bytes = capacity_.size_bytes(),
          .limit_bytes = capacity_.limit().bytes(),
          .used_bytes = arena.used_bytes(),
          .free_bytes = arena.free_bytes,
          .evictable_bytes = std::min(entries_.sums().evictable_bytes(), most_evictable),
          .pinned_bytes = entries_.sums().pinned_bytes(),
          .pinned_max_bytes = capacity_.limit().pinned_max_bytes(),
          .entries = entries_.sums().files(),
          .open_entries = entries_.sums().open_files(),
          .users = users.size(),
          .users_over = static_cast<uint64_t>(std::ranges::count(users, true, &Shares::User::over)),
          .user_share_bytes = entries_.shares().share_bytes()};
}

std::vector<Shares::User> Insight::users() const {
  auto users = entries_.shares().users();
  std::ranges::sort(users, std::greater(), &Shares::User::memory_bytes);
  return users;
}

std::vector<NodeUsage> Insight::numa_usage(uint64_t most_entries) {
  std::map<int, NodeUsage> nodes;
  for (const int node : surroundings_.topology->node_ids()) nodes[node].node = node;
  const uint64_t stride = entries_.sums().files() / most_entries + 1;
  uint64_t position = 0, all_bytes = 0, sampled_bytes = 0;
  for (EntryTable::Shard& shard : entries_.shards()) {
    fault_point("survey");
    surroundings_.still_at_it();
    std::vector<sys::Handle> handles;
    {
      MutexLock lock(shard.mutex);
      for (const auto& [ino, entry] : shard.entries) {
        if (!entry.is_file() || entry.removed) continue;
        all_bytes += entry.memory.charged_bytes;
        if (position++ % stride != 0) continue;
        sampled_bytes += entry.memory.charged_bytes;
        handles.push_back(handle_of(entry));
      }
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
  const double scale = stride > 1 && sampled_bytes > 0
                           ? static_cast<double>(all_bytes) / static_cast<double>(sampled_bytes)
                           : 1;
  const auto of_all = [scale](uint64_t bytes) {
    return static_cast<uint64_t>(static_cast<double>(bytes) * scale);
  };
  std::vector<NodeUsage> result;
  for (const auto& [id, node] : nodes)
    result.push_back({.node = id, .bytes = of_all(node.bytes), .huge_bytes = of_all(node.huge_bytes)});
  return result;
}

std::vector<EntryListing> Insight::list_entries(size_t shard_index) {
  std::vector<EntryListing> result;
  if (shard_index >= EntryTable::kShards) return result;
  fault_point("survey");
  surroundings_.still_at_it();
  std::vector<std::pair<sys::Handle, EntryListing>> found;
  {
    EntryTable::Shard& shard = entries_.shards()[shard_index];
    MutexLock lock(shard.mutex);
    const uint64_t now_ms = now_coarse_ms();  // under the lock: no entry found below is stored later
    for (const auto& [ino, entry] : shard.entries) {
      if (!entry.is_file() || entry.removed) continue;
      found.emplace_back(handle_of(entry), EntryListing{.name = {},
                                                        .size_bytes = 0,
                                                        .tier = entry.tier,
                                                        .node = entry.memory.node,
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
    listing.size_bytes = size_of(*attributes);
    result.push_back(std::move(listing));
  }
  return result;
}

SpillUsage Insight::spill_usage() const {
  SpillUsage usage;
  usage.dirty_entries = entries_.sums().stored_entries(Entry::Tier::kDirty);
  usage.dirty_bytes = entries_.sums().stored_bytes(Entry::Tier::kDirty);
  usage.clean_entries = entries_.sums().stored_entries(Entry::Tier::kClean);
  usage.clean_bytes = entries_.sums().stored_bytes(Entry::Tier::kClean);
  usage.cold_entries = entries_.sums().stored_entries(Entry::Tier::kCold);
  usage.cold_bytes = entries_.sums().stored_bytes(Entry::Tier::kCold);
  usage.away = disk_.away() != nullptr;
  if (DiskTier* const tier = disk_.tier()) {
    const uint64_t unit = tier->store->unit_bytes();
    const ExtentAllocator& space = tier->store->space();
    usage.size_bytes = space.units() * unit;
    usage.free_bytes = space.free_units() * unit;
    usage.used_bytes = usage.size_bytes - usage.free_bytes;
    usage.failed = tier->store->log().frozen();
    usage.largest_free_run_bytes = space.long_free_run() * unit;
  }
  return usage;
}

Result<EntryFacts> Insight::facts(uint64_t ino) {
  const LockedEntry entry(entries_.shard(ino), ino);
  if (entry == nullptr) {
    if (ino == root_ino()) return EntryFacts{};
    return fail(ESTALE);
  }
  const CatalogContent* const copy = entry->tier == Entry::Tier::kDirty ? nullptr : entry->disk.copy();
  return EntryFacts{
      .is_file = entry->is_file(),
      .tier = std::string(tier_name(entry->tier)),
      .checksum = copy ? fmt::format("{:016x}{:016x}", copy->checksum.high, copy->checksum.low) : "",
      .node = entry->memory.node,
      .hits = entry->hits,
      .version = entry->version,
      .pinned = entry->pinned};
}

void Insight::report_full(bool told) const {
  count(counters_.no_space_errors);
  static LogLimit log_limit;
  const PoolUsage now = usage();
  log_limit.warning(
      "pool {}: {}: {} of {} are in use, {} of it could be evicted; {} entries are open", name_,
      told ? "a client was told that there is no space" : "a client's write has met the end of the memory",
      format_size(now.used_bytes), format_size(now.size_bytes), format_size(now.evictable_bytes),
      now.open_entries);
}

}  // namespace kvcachefs
