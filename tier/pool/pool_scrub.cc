// Scrubbing of a pool's disk, and what the pool does about damage.
#include <fmt/format.h>

#include "tier/pool/pool.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kDamagedSize = UINT64_MAX;  // no file has this size, so no content is found to be the same

}  // namespace

Result<void> Pool::start_scrub(uint64_t rate_bytes_per_s) {
  if (disk() == nullptr) return refuse_without_disk(away(), name_);
  if (auto started = disk()->scrubber.start(rate_bytes_per_s); !started)
    return fail(started.error().code, fmt::format("pool {}: {}", name_, started.error().message));
  return {};
}

Result<void> Pool::stop_scrub() {
  if (disk() == nullptr) return refuse_without_disk(away(), name_);
  disk()->scrubber.stop();
  return {};
}

ScrubProgress Pool::scrub_progress() const {
  return disk() == nullptr ? ScrubProgress{} : disk()->scrubber.progress();
}

std::vector<uint64_t> Pool::copied_entries() {
  std::vector<uint64_t> result;
  for (size_t index = 0; index < EntryTable::kShards; ++index) {
    EntryTable::Shard& shard = entries_.shard_at(index);
    MutexLock lock(shard.mutex);
    for (const auto& [ino, content] : shard.copies) {
      const Entry* entry = shard.find(ino);
      if (entry != nullptr && !entry->removed && entry->tier != Entry::Tier::kDirty) result.push_back(ino);
    }
  }
  return result;
}

std::optional<CatalogContent> Pool::begin_verify(uint64_t ino) {
  EntryTable::Shard& shard = entries_.shard(ino);
  MutexLock lock(shard.mutex);
  const Entry* entry = shard.find(ino);
  auto copy = shard.copies.find(ino);
  if (entry == nullptr || entry->removed || entry->tier == Entry::Tier::kDirty || copy == shard.copies.end())
    return std::nullopt;
  disk()->store->hold(copy->second);
  return copy->second;
}

bool Pool::end_verify(uint64_t ino, const CatalogContent& content, Finding finding) {
  disk()->store->let_go(content);
  if (finding.is_whole()) return false;
  EntryTable::Shard& shard = entries_.shard(ino);
  MutexLock lock(shard.mutex);
  Entry* entry = shard.find(ino);
  auto copy = shard.copies.find(ino);
  if (entry == nullptr || entry->removed || copy == shard.copies.end() ||
      copy->second.extents != content.extents)
    return false;
  const bool damaged = finding.is_damage();
  if (entry->promoting) return damaged;  // the promotion finds the same, and discards the entry at its end
  if (entry->tier == Entry::Tier::kCold) {
    report_bad_copy(content, finding, damaged ? "is discarded" : "stays as it is");
    if (damaged) (void)tree_.discard_cold(shard, *entry, RemovalReason::kDamaged);
    return damaged;
  }
  report_bad_copy(content, finding, "is written again");
  // A wrong size makes the spiller write the copy anew: with the right one it would find memory and disk to
  // agree, and write nothing.
  copy->second.size_bytes = kDamagedSize;
  if (entry->tier == Entry::Tier::kDirty) return damaged;  // it is spilled when its writers have closed it
  marks_.became_dirty(*entry);
  disk_.queue_spill(*entry, true);
  return damaged;
}

}  // namespace kvcachefs
