// A pool's way to its disk: what is copied there, when, and what follows from it.
#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "base/clock.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "base/sys_disk.h"
#include "tier/catalog/content_layout.h"
#include "tier/pool/pool.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kStatBlockBytes = 512;
// The pause before another try when the disk is full or the entry too large for it.
constexpr uint32_t kUnspillableMs = 10'000;

uint32_t now_ms_32() {
  return static_cast<uint32_t>(now_coarse_ms());
}

// True while `until_ms` lies ahead on the 32-bit clock, which wraps around after 49 days.
bool lies_ahead(uint32_t until_ms) {
  return until_ms != 0 && static_cast<int32_t>(until_ms - now_ms_32()) > 0;
}

// True if the mark tells a successor which node of the catalog has the dirty entry, and since when.
bool numbers(const std::optional<CopyMark>& mark, const Entry& entry) {
  const uint64_t number = promised_number(mark);
  return number != 0 && (entry.node_id == 0 || entry.node_id == number) &&
         mark->first_version == entry.first_version;
}

}  // namespace

void Pool::publish(Entry& entry) {
  entries_.published(entry);
  spill_by_itself(entry);
}

void Pool::spill_by_itself(Entry& entry) {
  if (durability() != Durability::kNone) queue_spill(entry);
}

bool Pool::is_admitted(Entry& entry) {
  // An entry that the catalog has was admitted before, or an fsync has promised to keep it.
  return entry.node_id != 0 || disk()->admission.admit(entry.name_hash, entry.hits);
}

bool Pool::disk_takes_more() const {
  return disk() != nullptr && !disk()->store->log().frozen();
}

bool Pool::wants_spill(Entry& entry) {
  return disk_takes_more() && entry.is_stored() && entry.tier == Entry::Tier::kDirty &&
         entry.writer_count == 0 && !entry.spill_queued && !lies_ahead(entry.unspillable_until_ms);
}

void Pool::queue_spill(Entry& entry, bool urgent) {
  if (!urgent && (!wants_spill(entry) || !is_admitted(entry))) return;
  if (!urgent) count(counters_.admitted_bytes, entry.charged_bytes);
  entry.spill_queued = true;
  if (urgent) entry.spill_urgent = true;
  disk()->spiller.request(entry.policy.ino, entry.charged_bytes, urgent);
}

bool Pool::goes_to_disk_first(Entry& entry, Effort effort) {
  if (disk() == nullptr) return false;
  const bool promised = durability() != Durability::kNone || entry.node_id != 0;
  if (!disk_takes_more()) {
    // The disk gets the entry when the pool starts again.
    if (promised) entries_.park(entry);
    return promised;
  }
  if (entry.spill_urgent) {  // a waiter wants to hear that it is durable
    entries_.park(entry);
    return true;
  }
  if (lies_ahead(entry.unspillable_until_ms)) return false;
  if (!entry.spill_queued && !is_admitted(entry)) {
    count(counters_.refused_bytes, entry.charged_bytes);
    return false;
  }
  if (effort.even_unspilled && !promised) {
    count(counters_.overrun_discards);
    return false;
  }
  if (effort.disk_is_busy && !entry.spill_queued && !promised) {
    park(entry, true);
    return true;
  }
  entries_.park(entry);
  queue_spill(entry);
  return true;
}

Result<void> Pool::mark_copy(Entry& entry, int fd, CopyMark::State state, const CatalogContent* content) {
  return mark_copy(entry, fd, state, content, entry.node_id);
}

Result<void> Pool::mark_copy(Entry& entry, int fd, CopyMark::State state, const CatalogContent* content,
                             uint64_t node_id) {
  if (!is_supervised()) return {};
  CopyMark mark{.state = state,
                .node_id = node_id,
                .first_version = entry.first_version,
                .synced_nameless = entry.synced_nameless,
                .content = {}};
  if (content != nullptr) mark.content = *content;
  keep_ctime(entry.kept, fd, true);
  auto marked = put_copy_mark(fd, mark);
  if (marked || state == CopyMark::State::kCold) return marked;
  // A mark that could not be written is replaced by kNone, or else removed, but not for a cold entry. The
  // pages of any other entry are its content, and that is what kNone and a missing mark say.
  if (state == CopyMark::State::kClean) return mark_copy(entry, fd, CopyMark::State::kNone, nullptr, node_id);
  auto removed = sys::remove_xattr(fd, kCopyXattr);
  if (!removed && removed.error().code != ENODATA) {
    surroundings_.survivors->children().forbid_succession();
    log_error("pool {}: the mark of inode {} cannot be changed ({}): no process can take over from this one",
              name_, entry.policy.ino, sys::error_text(removed.error().code));
  }
  return marked;
}

bool Pool::is_numbered(const Entry& entry, int fd) const {
  return !is_supervised() || numbers(copy_mark_of(fd), entry);
}

Result<void> Pool::number(Entry& entry, int fd) {
  if (!is_supervised()) return {};
  const auto mark = copy_mark_of(fd);
  if (numbers(mark, entry) && mark->synced_nameless == entry.synced_nameless) return {};
  uint64_t id = entry.node_id != 0 ? entry.node_id : promised_number(mark);
  if (id == 0) id = disk()->store->new_id();
  return mark_copy(entry, fd, CopyMark::State::kNone, nullptr, id);
}

bool Pool::numbers_at_open() const {
  return durability() == Durability::kSync && disk() != nullptr &&
         !surroundings_.backing_store->needs_write_access();
}

void Pool::became_dirty(Entry& entry, int fd) {
  // The mark goes first: a successor must not take what is written from now on for what the disk has.
  if (entry.tier != Entry::Tier::kDirty) (void)mark_copy(entry, fd, CopyMark::State::kNone, nullptr);
  entries_.dirtied(entry);
}

std::expected<SpillTask, Residency::Refusal> Pool::begin_spill(uint64_t ino, bool urgent) {
  EntryTable::Shard& shard = entries_.shard(ino);
  MutexLock lock(shard.mutex);
  Entry* entry = shard.find(ino);
  if (entry == nullptr) return std::unexpected(Refusal::kNever);
  if (entry->spilling) return std::unexpected(Refusal::kSoon);
  const bool settled = entry->is_stored() && entry->writer_count == 0;
  if (settled && entry->reserved_end > 0) reservations_.give_back_holes(*entry);
  if (entry->removed || entry->tier != Entry::Tier::kDirty || (!urgent && !settled) || !disk_takes_more()) {
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
  // A write past the daemon may hold the inode's lock now and as long as a user likes, so no mark can be
  // written.
  const bool numbered =
      proven || (daemon_writes ? number(*entry, fd->get()).has_value() : is_numbered(*entry, fd->get()));
  if (!numbered) return std::unexpected(Refusal::kLater);
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
    if (outcome.kind == Kind::kNoRoom) entry->unspillable_until_ms = now_ms_32() + kUnspillableMs;
    if (entry->spill_queued) report_refusal(outcome.why);
    if (copied && !entry->removed)
      taken = take_copy(shard, *entry, task, std::move(outcome.content), outcome.kind == Kind::kCopied);
    if (!entry->spill_queued) entries_.unpark_if_evictable(*entry);
    if (taken && entry->tier == Entry::Tier::kDirty) spill_by_itself(*entry);
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
  if (!disk_takes_more() || (!task.proven && !is_numbered(entry, task.fd.get()))) return false;
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
  // The mark came before the commit: a successor drops a node of the catalog that no file's mark names.
  disk()->store->log().append(std::move(*changes));
  if (!task.proven) return true;
  // A failed mark is harmless: without it a successor takes the entry for dirty, which is allowed.
  (void)mark_copy(entry, task.fd.get(), CopyMark::State::kClean, &copy);
  fault_point("marked clean");
  entries_.spilled(entry);
  return true;
}

void Pool::want_disk_room(uint64_t bytes) {
  uint64_t wanted = disk_wanted_bytes_.load();
  while (wanted < bytes && !disk_wanted_bytes_.compare_exchange_weak(wanted, bytes)) {
  }
  surroundings_.evictor->wake();
}

Pool::Attempt Pool::drop_memory(EntryTable::Shard& shard, Entry& entry, EvictResult& result) {
  auto fd = arena_.open(handle_of(entry), O_RDWR | O_NONBLOCK);
  // F_WRLCK succeeds exactly when no other open or mapping of the file exists, and none can begin while it is
  // held.
  if (!fd || !sys::set_lease(fd->get(), F_WRLCK)) {
    park(entry, false);
    return Attempt::kBusy;
  }
  const UnseenChange unseen(entry.kept, fd->get(), is_supervised());
  // The mark goes first: a half-punched file must not pass for resident.
  const auto copy = shard.copies.find(entry.policy.ino);
  KVCACHEFS_CHECK(copy != shard.copies.end());
  const bool marked = mark_copy(entry, fd->get(), CopyMark::State::kCold, &copy->second).has_value();
  fault_point("marked cold");
  if (!marked || !arena_.drop_pages(fd->get())) {
    // The pages are still there: the mark says so again.
    if (marked) (void)mark_copy(entry, fd->get(), CopyMark::State::kClean, &copy->second);
    park(entry, false);
    return Attempt::kBusy;
  }
  fault_point("pages dropped");
  ++result.entries;
  result.bytes += entry.charged_bytes;
  entries_.evicted(entry);
  return Attempt::kFreed;
}

bool Pool::discard_cold(EntryTable::Shard& shard, Entry& entry, RemovalReason reason, unsigned most_names) {
  auto fd = arena_.open(handle_of(entry), O_PATH);
  const NamesLeft left = fd ? remove_names(entry, fd->get(), most_names) : NamesLeft::kAll;
  if (left != NamesLeft::kNone) {
    if (left == NamesLeft::kFewer) entry.busy_tries = 0;
    park(entry, false);
    return false;
  }
  gone(shard, entry, reason);
  return true;
}

void Pool::make_disk_room() {
  if (!disk_takes_more()) return;
  DiskTier* const tier = disk();
  const SpillStore& store = *tier->store;
  // Because space comes back only with a transaction, some is kept for what is on its way to the disk
  // meanwhile.
  const uint64_t size = store.space().units() * store.unit_bytes();
  const uint64_t ahead =
      std::min(size / 32, 4 * capacity_.expected_entry_bytes() + tier->spiller.backlog_bytes());
  const uint64_t wanted = std::min(std::max(disk_wanted_bytes_.exchange(0), ahead), size);
  EvictResult evicted;
  const auto short_of_room = [&] {
    // A part of the leaving space comes only with a spill that itself waits for room: an older file's, which
    // the disk keeps under a name until it has the newer one. So leaving space counts only while the log is
    // busy.
    const uint64_t leaving_units = tier->store->log().idle() ? 0 : store.leaving_units();
    return (store.space().free_units() + leaving_units) * store.unit_bytes() < wanted;
  };
  for (int tries = 0; tries < 4096 && short_of_room(); ++tries) {
    // If nothing is cold, the next clean victim gives up its memory, and so becomes one that can leave the
    // disk.
    if (!discard_coldest() &&
        evict_one({.even_recent = true, .clean_alone = true}, evicted) == Attempt::kNothing)
      return;
  }
}

bool Pool::discard_coldest() {
  const auto ino = entries_.next_cold();
  if (!ino) return false;
  EntryTable::Shard& shard = entries_.shard(*ino);
  MutexLock lock(shard.mutex);
  Entry* entry = shard.find(*ino);
  if (entry == nullptr || entry->removed) return true;
  if (entry->open_count > 0 || entry->promoting || entry->tier != Entry::Tier::kCold)
    park(*entry, true);
  else
    (void)discard_cold(shard, *entry, RemovalReason::kDiscarded, kNamesAtOnce);
  return true;
}

}  // namespace kvcachefs
