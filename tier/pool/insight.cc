#include "tier/pool/insight.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>

#include "alloc/placement.h"
#include "base/clock.h"
#include "base/fault_point.h"
#include "base/log.h"
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
  const EntryIndex::Usage index = index_.usage();
  return {.size_bytes = capacity_.size_bytes(),
          .limit_bytes = capacity_.limit().bytes(),
          .used_bytes = arena.used_bytes(),
          .free_bytes = arena.free_bytes,
          .evictable_bytes = std::min(entries_.sums().evictable_bytes(), most_evictable),
          .pinned_bytes = entries_.sums().pinned_bytes(),
          .pinned_max_bytes = capacity_.limit().pinned_max_bytes(),
          .entries = limits_.entries.count(),
          .max_entries = limits_.entries.most(),
          .open_entries = entries_.sums().open_files(),
          .directories = limits_.directories.count(),
          .max_directories = limits_.directories.most(),
          .users = users.size(),
          .users_over = static_cast<uint64_t>(std::ranges::count(users, true, &Shares::User::over)),
          .user_share_bytes = entries_.shares().share_bytes(),
          .indexed_entries = index.entries,
          .indexed_blocks = index.blocks,
          .index_bytes = index.bytes,
          .index_refused = index.refused,
          .index_missing = index.missing};
}

std::vector<Shares::User> Insight::users() const {
  auto users = entries_.shares().users();
  std::ranges::sort(users, std::greater(), &Shares::User::memory_bytes);
  return users;
}

// Some of the files are found by buckets spread over the table, because a walk of a million takes 0.1 s. In a
// table that most entries have left these may be fewer than `most`. Cold entries have no memory to find: in a
// pool whose disk has ten times its memory, a sample of 16 would now and then be of these alone.
std::vector<sys::Handle> Insight::files_of(EntryTable::Shard& shard, uint64_t most, bool all) {
  constexpr uint64_t kBucketsAPlace = 256;  // 5 us
  std::vector<sys::Handle> files;
  MutexLock lock(shard.mutex);
  const auto takes = [&](const auto& each) {
    const auto& [ino, entry] = each;
    if (!entry.is_file() || entry.removed || entry.tier == Entry::Tier::kCold) return false;
    files.push_back(handle_of(entry));
    return true;
  };
  if (all || shard.entries.size() <= most) {
    for (const auto& each : shard.entries) takes(each);
    return files;
  }
  const uint64_t buckets = shard.entries.bucket_count();
  const uint64_t places = std::min(most, buckets);
  const uint64_t first = samples_.fetch_add(1, std::memory_order_relaxed) * 7919 % (buckets / places);
  for (uint64_t place = 0; place < places; ++place) {
    const uint64_t from = place * buckets / places;
    const uint64_t next = (place + 1) * buckets / places;
    bool found = false;
    for (uint64_t bucket = from + first; bucket < std::min(next, from + first + kBucketsAPlace) && !found;
         ++bucket)
      found = std::any_of(shard.entries.begin(bucket), shard.entries.end(bucket), takes);
  }
  return files;
}

// An eviction that meets a file which is open and mapped for a look passes it by. So a look that comes at any
// time, the worker's, holds the shard, as an eviction does, and is short: 44 us for 2 MiB.
std::vector<PlacedBytes> Insight::placement_of(EntryTable::Shard& shard, sys::Handle handle,
                                               uint64_t most_bytes) {
  const auto look = [&]() -> std::vector<PlacedBytes> {
    const auto fd = arena_.open(handle, O_RDONLY | O_NONBLOCK | O_NOATIME);
    return fd ? measure_placement(fd->get(), most_bytes) : std::vector<PlacedBytes>();
  };
  if (most_bytes == UINT64_MAX) return look();
  MutexLock lock(shard.mutex);
  return look();
}

std::vector<NodeUsage> Insight::numa_usage(uint64_t most_entries) {
  constexpr uint64_t kGlanceBytes = uint64_t{4} << 20;
  constexpr uint64_t kLookBytes = uint64_t{64} << 20;
  std::map<int, NodeUsage> nodes;
  for (const int node : surroundings_.topology->node_ids()) nodes[node].node = node;
  const bool all = entries_.sums().files() <= most_entries;
  const uint64_t most_bytes = most_entries > NumaSurvey::kGlance ? kLookBytes
                              : all                              ? UINT64_MAX
                                                                 : kGlanceBytes;
  uint64_t left = most_entries;
  uint64_t seen_bytes = 0, largest_bytes = 0;
  for (size_t index = 0; index < EntryTable::kShards && left > 0; ++index) {
    fault_point("survey");
    surroundings_.still_at_it();
    const uint64_t shards_left = EntryTable::kShards - index;
    EntryTable::Shard& shard = entries_.shards()[index];
    for (const sys::Handle handle : files_of(shard, (left + shards_left - 1) / shards_left, all)) {
      if (numa_survey_.ended()) return {};
      surroundings_.still_at_it();
      left -= left > 0 ? 1 : 0;
      uint64_t its_bytes = 0;
      for (const PlacedBytes& placed : placement_of(shard, handle, most_bytes)) {
        NodeUsage& node = nodes[placed.node];
        node.node = placed.node;
        node.bytes += placed.bytes;
        node.huge_bytes += placed.huge_bytes;
        its_bytes += placed.bytes;
      }
      seen_bytes += its_bytes;
      largest_bytes = std::max(largest_bytes, its_bytes);
    }
  }
  const bool exact = all && largest_bytes < most_bytes;
  const double scale = exact || seen_bytes == 0 ? 1
                                                : static_cast<double>(arena_.usage().data_bytes()) /
                                                      static_cast<double>(seen_bytes);
  const auto of_all = [scale](uint64_t bytes) {
    return static_cast<uint64_t>(static_cast<double>(bytes) * scale);
  };
  std::vector<NodeUsage> result;
  for (const auto& [id, node] : nodes)
    result.push_back({.node = id, .bytes = of_all(node.bytes), .huge_bytes = of_all(node.huge_bytes)});
  return result;
}

std::vector<sys::Handle> Insight::entries_of(size_t shard_index) {
  std::vector<sys::Handle> files;
  if (shard_index >= EntryTable::kShards) return files;
  fault_point("survey");
  surroundings_.still_at_it();
  EntryTable::Shard& shard = entries_.shards()[shard_index];
  MutexLock lock(shard.mutex);
  files.reserve(shard.entries.size());
  for (const auto& [ino, entry] : shard.entries)
    if (entry.is_file() && !entry.removed) files.push_back(handle_of(entry));
  return files;
}

std::optional<EntryListing> Insight::listing_of(sys::Handle file) {
  surroundings_.still_at_it();
  EntryListing listing;
  {
    const LockedEntry entry(entries_.shard(file.ino), file.ino);
    if (entry == nullptr || entry->removed) return std::nullopt;
    listing = {.name = {},
               .size_bytes = 0,
               .tier = entry->tier,
               .node = entry->memory.node,
               .hits = entry->hits,
               // read under the lock: the entry is not stored later
               .age_s = (now_coarse_ms() - entry->stored_ms) / 1000,
               .priority = entry->policy.priority,
               .pinned = entry->pinned};
  }
  const auto fd = arena_.open(file, O_PATH | O_NOFOLLOW);
  if (!fd) return std::nullopt;
  auto name = arena_.name_of(fd->get());
  const auto attributes = sys::stat_of(fd->get());
  if (!name || !attributes) return std::nullopt;
  listing.name = std::move(*name);
  listing.size_bytes = size_of(*attributes);
  return listing;
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
  usage.restoring = disk_.restoring();
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

Result<std::string> Insight::path_of(uint64_t ino) {
  sys::Handle handle;
  {
    const LockedEntry entry(entries_.shard(ino), ino);
    if (entry == nullptr) return fail(ESTALE);
    handle = handle_of(*entry);
  }
  auto fd = arena_.open(handle, O_PATH | O_NOFOLLOW);
  if (!fd) return pass(fd);
  return arena_.name_of(fd->get());
}

std::string Insight::path_in(int directory, std::string_view name) const {
  std::string path = arena_.name_of(directory).value_or("");
  if (!path.empty()) path += '/';
  return path.append(name);
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

bool Insight::step_index() {
  const bool is_more = index_.step();
  const uint64_t missing = index_.usage().missing;
  if (missing > 0 && !index_is_part_ && index_log_limit_.due()) {
    log_warning(
        "pool {}: its index is full: entries are missing from answers of .pool/match and .pool/similar",
        name_);
    index_is_part_ = true;
  } else if (missing == 0 && !is_more && index_is_part_) {
    log_info("pool {}: its index has all entries again", name_);
    index_is_part_ = false;
  }
  return is_more;
}

}  // namespace kvcachefs
