// Facts of an entry that xattrs show and set.
#include <fmt/format.h>

#include <cerrno>

#include "base/size.h"
#include "tier/pool/pool.h"

namespace kvcachefs {

Result<Pool::Facts> Pool::facts(uint64_t ino) {
  EntryTable::Shard& shard = entries_.shard(ino);
  MutexLock lock(shard.mutex);
  const Entry* entry = shard.find(ino);
  if (entry == nullptr) {
    if (ino == root_ino()) return Facts{};
    return fail(ESTALE);
  }
  const auto copy = shard.copies.find(ino);
  const bool true_copy = copy != shard.copies.end() && entry->tier != Entry::Tier::kDirty;
  const Checksum checksum = true_copy ? copy->second.checksum : Checksum{};
  return Facts{.is_file = entry->is_file(),
               .tier = std::string(tier_name(entry->tier)),
               .checksum = true_copy ? fmt::format("{:016x}{:016x}", checksum.high, checksum.low) : "",
               .node = entry->node,
               .hits = entry->hits,
               .version = entry->version,
               .pinned = entry->pinned};
}

Result<void> Pool::set_pinned(uint64_t ino, bool pinned) {
  const uint64_t limit = usage().pinned_max_bytes;
  EntryTable::Shard& shard = entries_.shard(ino);
  MutexLock lock(shard.mutex);
  Entry* entry = shard.find(ino);
  if (entry == nullptr) return fail(ESTALE);
  if (!entry->is_file()) return fail(EPERM, "only regular files can be pinned");
  if (entry->pinned == pinned) return {};
  auto fd = arena_.open(handle_of(*entry), O_PATH);
  auto attributes = fd ? sys::stat_of(fd->get()) : pass(fd);
  if (!attributes) return pass(attributes);
  if (!pinned)
    entries_.unpinned(*entry);
  else if (!entries_.pinned(*entry, bytes_of(*attributes).whole, limit))
    return fail(ENOSPC, fmt::format("pool {}: {} are pinned and pinned_max is {}: no room to pin {} more",
                                    name_, format_size(entries_.pinned_bytes()), format_size(limit),
                                    format_size(entry->pin_bytes())));
  {
    if (pinned)
      (void)sys::set_xattr(fd->get(), kPinnedXattr, "1", 0);
    else
      (void)sys::remove_xattr(fd->get(), kPinnedXattr);
  }
  tell_attributes(shard, *entry);
  if (DiskTier* const tier = disk()) {
    // A pinned entry has to be in memory.
    if (pinned && entry->tier == Entry::Tier::kCold)
      (void)tier->promoter.request(ino, Promoter::kOpenPriority - 1);
  }
  return {};
}

void Pool::set_priority(uint64_t ino, int priority) {
  EntryTable::Shard& shard = entries_.shard(ino);
  MutexLock lock(shard.mutex);
  if (Entry* entry = shard.find(ino)) entries_.reprioritised(*entry, priority);
}

}  // namespace kvcachefs
