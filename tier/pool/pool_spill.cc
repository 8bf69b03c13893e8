// A pool's way to its disk: what is copied there, when, and what follows from it.
#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "base/clock.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "tier/catalog/content_layout.h"
#include "tier/pool/pool.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kStatBlockBytes = 512;

}  // namespace

std::expected<SpillTask, Residency::Refusal> Pool::begin_spill(uint64_t ino, bool urgent) {
  EntryTable::Shard& shard = entries_.shard(ino);
  MutexLock lock(shard.mutex);
  Entry* entry = shard.find(ino);
  if (entry == nullptr) return std::unexpected(Refusal::kNever);
  if (entry->spilling) return std::unexpected(Refusal::kSoon);
  const bool settled = entry->is_stored() && entry->writer_count == 0;
  if (settled && entry->reserved_end > 0) reservations_.give_back_holes(*entry);
  if (entry->removed || entry->tier != Entry::Tier::kDirty || (!urgent && !settled) || !disk_.takes_more()) {
    entry->spill_queued = entry->spill_urgent = false;
    entries_.unpark_if_evictable(*entry);
    return std::unexpected(Refusal::kNever);
  }
  auto fd = arena_.open(handle_of(*entry), O_RDONLY | O_NONBLOCK | O_NOATIME);
  if (!fd) return std::unexpected(Refusal::kLater);
  auto attributes = sys::stat_of(fd->get());
  if (!attributes) return std::unexpected(Refusal::kLater);
  // F_RDLCK is granted exactly when no process can write the file, mappings included. From here on a writer
  // has to come by begin_open, which changes the epoch. In daemon I/O all writes come by the daemon: its own
  // descriptor of an open file prevents the lease, and a mapping keeps its file open.
  const bool daemon_writes = surroundings_.backing_store->needs_write_access();
  const bool leased = sys::set_lease(fd->get(), F_RDLCK).has_value();
  if (leased) (void)sys::set_lease(fd->get(), F_UNLCK);
  const bool proven = leased || (daemon_writes && settled);
  if (!proven && !urgent) return std::unexpected(Refusal::kLater);
  entries_.spill_begun(*entry);
  const auto size = static_cast<uint64_t>(attributes->st_size);
  const bool whole = static_cast<uint64_t>(attributes->st_blocks) * kStatBlockBytes >= size;
  SpillTask task{.ino = ino,
                 .fd = std::move(*fd),
                 .size_bytes = size,
                 .version = entry->version,
                 .content_epoch = entry->content_epoch,
                 .proven = proven && settled,
                 .mappable = proven && settled && whole,
                 .before = {}};
  if (auto found = shard.copies.find(ino); found != shard.copies.end()) task.before = found->second;
  return task;
}

bool Pool::end_spill(const SpillTask& task, SpillOutcome outcome) {
  using Kind = SpillOutcome::Kind;
  EntryTable::Shard& shard = entries_.shard(task.ino);
  bool taken = false;
  {
    MutexLock lock(shard.mutex);
    Entry* entry = shard.find(task.ino);
    if (entry == nullptr) return false;
    entries_.spill_ended(*entry);
    if (outcome.kind == Kind::kAgain) return false;
    const bool copied = outcome.kind == Kind::kCopied || outcome.kind == Kind::kUnchanged;
    // The spiller also tries again what is refused; by then no waiter is left.
    entry->spill_queued = outcome.kind == Kind::kRefused;
    entry->spill_urgent = false;
    if (!copied) count(counters_.spill_errors);
    if (outcome.kind == Kind::kNoRoom) PoolDisk::set_unspillable(*entry);
    if (entry->spill_queued) report_refusal(outcome.why);
    if (copied && !entry->removed)
      taken = take_copy(shard, *entry, task, std::move(outcome.content), outcome.kind == Kind::kCopied);
    if (!entry->spill_queued) entries_.unpark_if_evictable(*entry);
    if (taken && entry->tier == Entry::Tier::kDirty) disk_.spill_by_itself(*entry);
  }
  if (capacity_.wants_eviction()) surroundings_.evictor->wake();
  return taken;
}

void Pool::report_refusal(const Error& error) {
  disk()->errors.write.error(
      "pool {}: {}: write error {}{}: what is dirty stays in memory until it can be written", name_,
      options().spill_path, error.code, error.message);
}

bool Pool::take_copy(EntryTable::Shard& shard, Entry& entry, const SpillTask& task, CatalogContent content,
                     bool written) {
  fault_point("copied to the disk");
  const bool same_epoch = entry.content_epoch == task.content_epoch;
  if (task.proven && !(same_epoch && entry.writer_count == 0)) return false;
  if (entry.emptied && !same_epoch) return false;  // the copy may be older than the truncation
  // The copy was found to be the same as one that has meanwhile gone or been found damaged.
  if (auto before = shard.copies.find(task.ino);
      !written && (before == shard.copies.end() || before->second.size_bytes != content.size_bytes))
    return false;
  if (!disk_.takes_more()) return false;
  auto changes = disk()->names.introduce(entry, task.fd.get());
  if (!changes) return false;
  if (written) {
    count(counters_.spills);
    count(counters_.spilled_bytes, data_bytes_of(content, disk()->store->unit_bytes()));
  }
  entry.emptied = false;
  entry.synced_nameless = false;
  CatalogContent& copy = shard.copies[task.ino];
  if (written) disk()->store->expect_back(copy.extents);
  copy = std::move(content);
  // The catalog has the copy that was found to be still true; putting it again would free its extents.
  if (written) changes->push_back(PutContent{entry.node_id, copy});
  // The mark comes before the commit: a successor drops a node of the catalog that no file's mark names.
  if (!task.proven) (void)marks_.mark_copy(entry, task.fd.get(), CopyMark::State::kNone, nullptr);
  disk()->store->log().append(std::move(*changes));
  if (!task.proven) return true;
  // A failed mark is harmless: without it a successor takes the entry for dirty, which is allowed.
  (void)marks_.mark_copy(entry, task.fd.get(), CopyMark::State::kClean, &copy);
  fault_point("marked clean");
  entries_.spilled(entry);
  return true;
}

}  // namespace kvcachefs
