#include "tier/pool/pool_residency.h"

#include <fmt/format.h>

#include "base/clock.h"
#include "base/fault_point.h"
#include "tier/catalog/content_layout.h"
#include "tier/pool/headroom.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kDamagedSize = UINT64_MAX;  // no file has this size, so no content is found to be the same

}  // namespace

std::expected<SpillTask, Residency::Refusal> PoolResidency::begin_spill(uint64_t ino, bool urgent) {
  const LockedEntry entry(entries_.shard(ino), ino);
  if (entry == nullptr) return std::unexpected(Refusal::kNever);
  if (entry->disk.spilling()) return std::unexpected(Refusal::kSoon);
  const bool settled = entry->is_settled();
  if (settled && entry->memory.reserved_end > 0) reservations_.give_back_holes(*entry);
  if (entry->removed || entry->tier != Entry::Tier::kDirty || (!urgent && !settled) || !disk_.takes_more()) {
    entries_.contents().spill_asked(*entry, DiskFacts::Spill::kNotAsked);
    return std::unexpected(Refusal::kNever);
  }
  auto fd = arena_.open(handle_of(*entry), O_RDONLY | O_NONBLOCK | O_NOATIME);
  if (!fd) return std::unexpected(Refusal::kLater);
  auto attributes = sys::stat_of(fd->get());
  if (!attributes) return std::unexpected(Refusal::kLater);
  // One that could not be introduced once is not copied again before it can: under pressure that would be the
  // same bytes again and again.
  if (entry->disk.unspillable_until_ms != 0 && !disk_.tier()->names.can_describe(fd->get())) {
    entry->disk.set_unspillable();
    entries_.contents().spill_asked(*entry, DiskFacts::Spill::kNotAsked);
    return std::unexpected(Refusal::kCannot);
  }
  // F_RDLCK is granted exactly when no process can write the file, mappings included. From here on a writer
  // has to come by begin_open, which changes the epoch. In daemon I/O all writes come by the daemon: its own
  // descriptor of an open file prevents the lease, and a mapping keeps its file open.
  const bool daemon_writes = surroundings_.backing_store->needs_write_access();
  const bool leased = sys::set_lease(fd->get(), F_RDLCK).has_value();
  if (leased) (void)sys::set_lease(fd->get(), F_UNLCK);
  const bool proven = leased || (daemon_writes && settled);
  if (!proven && !urgent) {
    parked_.held(*entry);
    return std::unexpected(Refusal::kLater);
  }
  // The copy of a file that is not settled is a snapshot, which the entry's mark has to number. That was done
  // when the copy was asked for (tier/pool/disk_requests.cc): now a write past the daemon may hold the
  // inode's lock as long as a user likes, so that no mark can be written.
  const bool snapshot = !proven || !settled;
  if (snapshot && !marks_.is_numbered(*entry, fd->get())) return std::unexpected(Refusal::kLater);
  entries_.contents().moves(*entry, DiskFacts::Move::kSpilling);
  const auto size = size_of(*attributes);
  const bool whole = allocated_bytes_of(*attributes) >= size;
  SpillTask task{.ino = ino,
                 .fd = std::move(*fd),
                 .size_bytes = size,
                 .version = entry->version,
                 .content_epoch = entry->disk.content_epoch,
                 .proven = !snapshot,
                 .mappable = !snapshot && whole,
                 .before = {},
                 .begun_ns = now_ns()};
  if (entry->disk.copy() != nullptr) task.before = *entry->disk.copy();
  return task;
}

bool PoolResidency::end_spill(const SpillTask& task, SpillOutcome outcome) {
  using Kind = SpillOutcome::Kind;
  bool taken = false;
  {
    const LockedEntry entry(entries_.shard(task.ino), task.ino);
    if (entry == nullptr) return false;
    entries_.contents().moves(*entry, DiskFacts::Move::kNone);
    if (outcome.kind == Kind::kAgain) return false;
    const bool copied = outcome.kind == Kind::kCopied || outcome.kind == Kind::kUnchanged;
    const bool refused = outcome.kind == Kind::kRefused;
    if (!copied) count(refused ? counters_.spill_errors : counters_.spills_not_made);
    if (outcome.kind == Kind::kNoRoom) entry->disk.set_unspillable();
    if (refused) report_refusal(outcome.why);
    if (copied && !entry->removed)
      taken = take_copy(*entry, task, std::move(outcome.content), outcome.kind == Kind::kCopied);
    // The spiller also tries again what is refused; by then no waiter is left.
    entries_.contents().spill_asked(*entry,
                                    refused ? DiskFacts::Spill::kQueued : DiskFacts::Spill::kNotAsked);
    if (taken && entry->tier == Entry::Tier::kDirty) disk_.spill_by_itself(*entry);
  }
  if (capacity_.wants_eviction()) surroundings_.evictor->wake();
  return taken;
}

void PoolResidency::report_refusal(const Error& error) {
  disk_.tier()->errors.write.error(
      "pool {}: {}: write error {}{}: dirty entries stay in memory until they can be written", name_,
      disk_.tier()->path, error.code, error.message);
}

bool PoolResidency::take_copy(Entry& entry, const SpillTask& task, CatalogContent content, bool written) {
  fault_point("copied to the disk");
  const bool same_epoch = entry.disk.content_epoch == task.content_epoch;
  if (task.proven && !(same_epoch && entry.writer_count == 0)) return false;
  // The copy may be older than a truncation, also of an entry that the catalog does not have yet.
  if (!same_epoch && (entry.disk.emptied || task.version < entry.disk.first_version)) return false;
  // The copy was found to be the same as one that has meanwhile gone or been found damaged.
  const CatalogContent* const before = entry.disk.copy();
  if (!written && (before == nullptr || before->size_bytes != content.size_bytes)) return false;
  if (!disk_.takes_more() || (!task.proven && !marks_.is_numbered(entry, task.fd.get()))) return false;
  auto changes = disk_.tier()->names.introduce(entry, task.fd.get());
  if (!changes) {
    count(counters_.spills_not_made);
    entry.disk.set_unspillable();
    return false;
  }
  if (written) {
    count(counters_.spills);
    count(counters_.spilled_bytes, data_bytes_of(content, disk_.tier()->store->unit_bytes()));
    const uint64_t took_ns = now_ns() - task.begun_ns;
    counters_.spill_ns.record(took_ns);
    if (AccessLog* const log = surroundings_.read_log())
      log->add(AccessRecord::of(AccessRecord::Event::kSpill, number_, entry, took_ns));
  }
  entry.disk.emptied = false;
  entry.disk.synced_nameless = false;
  if (written && before != nullptr) disk_.tier()->store->expect_back(before->extents);
  const CatalogContent& copy = entries_.contents().copied(entry, std::move(content));
  // A copy that was found to be still true is put with its extents again, for its version: to a successor
  // that of before a truncation says that the content is older than the truncation.
  changes->push_back(PutContent{entry.disk.node_id, copy});
  // The mark came before the commit: a successor drops a node of the catalog that no file's mark names.
  disk_.tier()->store->log().append(std::move(*changes));
  if (!task.proven) return true;
  // A failed mark is harmless: without it a successor takes the entry for dirty, which is allowed.
  (void)marks_.mark_copy(entry, task.fd.get(), CopyMark::State::kClean, &copy);
  fault_point("marked clean");
  entries_.contents().spilled(entry);
  return true;
}

Result<std::optional<PromoteTask>> PoolResidency::begin_promote(uint64_t ino) {
  const LockedEntry entry(entries_.shard(ino), ino);
  // An entry that was unlinked while it is served from the disk stays there.
  if (entry == nullptr || entry->tier != Entry::Tier::kCold || entry->disk.promoting()) return std::nullopt;
  if (disk_.tier() == nullptr) return begin_verification(*entry);
  if (entry->removed || entry->disk.copy() == nullptr) return std::nullopt;
  const CatalogContent& copy = *entry->disk.copy();
  auto fd = arena_.open(handle_of(*entry), O_RDWR | O_NONBLOCK | O_NOATIME);
  if (!fd) return pass(fd);
  auto attributes = sys::stat_of(fd->get());
  if (!attributes) return pass(attributes);
  if (surroundings_.topology->node_count() > 1) {
    const int node = surroundings_.topology->node_with_room(
        entry->memory.node, data_bytes_of(copy, disk_.tier()->store->unit_bytes()));
    if (surroundings_.topology->place_file(fd->get(), node)) entry->memory.node = static_cast<int8_t>(node);
  }
  entries_.contents().moves(*entry, DiskFacts::Move::kPromoting);
  inodes_.show(*entry, *attributes);
  entry->disk.copies->times =
      std::make_unique<KeptTimes>(KeptTimes{attributes->st_atim, attributes->st_mtim, attributes->st_ctim});
  begin_unseen(entry->kept, fd->get(), *attributes, is_supervised());
  fault_point("promotion begun");
  return PromoteTask{.ino = ino, .fd = std::move(*fd), .content = copy, .begun_ns = now_ns()};
}

// If the entry was not reconciled yet, its mark says what the disk stores. The file is not changed, because
// the walk would see the change.
Result<std::optional<PromoteTask>> PoolResidency::begin_verification(Entry& entry) {
  const uint64_t ino = entry.policy.ino;
  auto fd = arena_.open(handle_of(entry), kReadForFacts);
  if (!fd) return pass(fd);
  if (entry.disk.copy() == nullptr && entry.disk.held() == nullptr) {
    auto mark = copy_mark_of(fd->get());
    if (!mark || mark->state != CopyMark::State::kCold) return fail(EIO);
    (void)entries_.contents().held_on_disk(entry, std::move(mark->content));
  }
  entries_.contents().moves(entry, DiskFacts::Move::kPromoting);
  const CatalogContent& content = entry.disk.copy() != nullptr ? *entry.disk.copy() : *entry.disk.held();
  fault_point("verification begun");
  return PromoteTask{
      .ino = ino, .fd = std::move(*fd), .content = content, .begun_ns = now_ns(), .stays_on_disk = true};
}

void PoolResidency::end_verification(const PromoteTask& task, const PromoteOutcome& outcome) {
  const LockedEntry entry(entries_.shard(task.ino), task.ino);
  if (entry == nullptr) return;
  entries_.contents().moves(*entry, DiskFacts::Move::kNone);
  if (outcome.kind == PromoteOutcome::Kind::kIntactOnDisk) return;
  // Nothing rests on it yet, because an open waits while this goes on, unless the reconciler has found it.
  if (entry->disk.copy() == nullptr && entry->disk.held() != nullptr)
    (void)entries_.contents().let_go(*entry);
  if (outcome.kind != PromoteOutcome::Kind::kFailed) return;
  count(counters_.promote_errors);
  report_bad_copy(task.content, outcome.finding, "stays as it is");
}

void PoolResidency::end_promote(const PromoteTask& task, const PromoteOutcome& outcome, bool asked_for) {
  if (task.stays_on_disk) return end_verification(task, outcome);
  const bool promoted = outcome.kind == PromoteOutcome::Kind::kPromoted;
  fault_point("copied from the disk");
  if (!promoted) (void)arena_.drop_pages(task.fd.get());
  EntryTable::Shard& shard = entries_.shard(task.ino);
  MutexLock lock(shard.mutex);
  Entry* entry = shard.find(task.ino);
  if (entry == nullptr) return;
  const auto kept = entry->disk.copies ? std::move(entry->disk.copies->times) : nullptr;
  entries_.contents().moves(*entry, DiskFacts::Move::kNone);
  if (entry->removed) return;
  // Allocating and writing the pages counted as changes of the file: the times of before come back.
  if (kept) end_unseen(entry->kept, task.fd.get(), kept->modified, is_supervised());
  if (promoted) {
    count(counters_.promotes);
    count(counters_.promoted_bytes, data_bytes_of(task.content, disk_.tier()->store->unit_bytes()));
    const uint64_t took_ns = now_ns() - task.begun_ns;
    counters_.promote_ns.record(took_ns);
    if (AccessLog* const log = surroundings_.read_log())
      log->add(AccessRecord::of(AccessRecord::Event::kPromote, number_, *entry, took_ns));
    (void)marks_.mark_copy(*entry, task.fd.get(), CopyMark::State::kClean, &task.content);
    fault_point("marked promoted");
    entries_.contents().promoted(*entry, asked_for);
    if (const auto now = sys::stat_of(task.fd.get()))
      entries_.contents().charged(*entry, bytes_of(*now).charged);
    return;
  }
  if (outcome.kind != PromoteOutcome::Kind::kFailed) return;
  count(counters_.promote_errors);
  const bool damaged = outcome.finding.is_damage();
  report_bad_copy(task.content, outcome.finding, damaged ? "is discarded" : "stays as it is");
  if (damaged) (void)tree_.discard_cold(shard, *entry, RemovalReason::kDamaged);
}

bool PoolResidency::is_of_one_over(uint64_t ino) {
  if (!entries_.shares().has_shares()) return false;
  const LockedEntry entry(entries_.shard(ino), ino);
  return entry != nullptr && entries_.shares().is_over(entry->policy.owner);
}

uint64_t PoolResidency::kept_from_orders_bytes() const {
  const bool passes = !surroundings_.backing_store->needs_write_access();
  return capacity_.size_bytes() - holdable_bytes(capacity_.limit(), passes);
}

void PoolResidency::waiters_told(uint64_t ino) {
  const LockedEntry entry(entries_.shard(ino), ino);
  if (entry != nullptr) entries_.contents().waiters_told(*entry);
}

void PoolResidency::report_bad_copy(const CatalogContent& content, Finding finding, const char* remedy) {
  if (finding.kind == Finding::Kind::kWrongBytes) count(counters_.checksum_errors);
  DiskTier& tier = *disk_.owned();
  LogLimit& limit = finding.is_damage() ? tier.errors.damage : tier.errors.read;
  const uint64_t place = first_place_of(content.extents, tier.store->unit_bytes());
  limit.error(
      "pool {}: {}: {} at byte {}: an entry of {} bytes there {}", name_, tier.path,
      finding.is_damage() ? "bytes that are not the entry's" : fmt::format("read error {}", finding.error),
      place, content.size_bytes, remedy);
}

std::vector<uint64_t> PoolResidency::copied_entries() {
  std::vector<uint64_t> result;
  for (EntryTable::Shard& shard : entries_.shards()) {
    MutexLock lock(shard.mutex);
    for (const auto& [ino, entry] : shard.entries)
      if (entry.disk.copy() != nullptr && !entry.removed && entry.tier != Entry::Tier::kDirty)
        result.push_back(ino);
  }
  return result;
}

std::optional<CatalogContent> PoolResidency::begin_verify(uint64_t ino) {
  const LockedEntry entry(entries_.shard(ino), ino);
  if (entry == nullptr || entry->removed || entry->tier == Entry::Tier::kDirty ||
      entry->disk.copy() == nullptr)
    return std::nullopt;
  disk_.tier()->store->hold(*entry->disk.copy());
  return *entry->disk.copy();
}

bool PoolResidency::end_verify(uint64_t ino, const CatalogContent& content, Finding finding) {
  disk_.tier()->store->let_go(content);
  if (finding.is_whole()) return false;
  EntryTable::Shard& shard = entries_.shard(ino);
  const LockedEntry entry(shard, ino);
  if (entry == nullptr || entry->removed || entry->disk.copy() == nullptr ||
      entry->disk.copy()->extents != content.extents)
    return false;
  const bool damaged = finding.is_damage();
  if (entry->disk.promoting())
    return damaged;  // the promotion finds the same, and discards the entry at its end
  if (entry->tier == Entry::Tier::kCold) {
    report_bad_copy(content, finding, damaged ? "is discarded" : "stays as it is");
    if (damaged) (void)tree_.discard_cold(shard, *entry, RemovalReason::kDamaged);
    return damaged;
  }
  const auto fd = arena_.open(handle_of(*entry), O_PATH);
  if (!fd) return false;  // the next scrub finds it
  report_bad_copy(content, finding, "is written again");
  // A wrong size makes the spiller write the copy anew: with the right one it would find memory and disk to
  // agree, and write nothing.
  entry->disk.copies->latest->size_bytes = kDamagedSize;
  if (entry->tier == Entry::Tier::kDirty) return damaged;  // it is spilled when its writers have closed it
  marks_.became_dirty(*entry, fd->get());
  disk_.queue_spill(*entry, true);
  return damaged;
}

}  // namespace kvcachefs
