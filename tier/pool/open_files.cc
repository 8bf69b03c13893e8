#include "tier/pool/open_files.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/fault_point.h"
#include "tier/pool/counted_inode.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kLookAtLostMs = 100;

}  // namespace

Result<OpenAnswer> OpenFiles::begin_open(uint64_t ino, OpenMode mode, uint64_t client) {
  const bool writer = mode.writer;
  OpenAnswer answer;
  Opened& opened = answer.opened;
  {
    EntryTable::Shard& shard = entries_.shard(ino);
    const LockedEntry entry(shard, ino);
    if (entry == nullptr || (entry->removed && entry->open_count == 0 && !shard.kept.contains(ino)))
      return OpenAnswer{Presence::kGone};
    if (entry->disk.promoting()) return OpenAnswer{Presence::kCold};
    // After an open that is served from the disk, perhaps mapped, later opens are served by the daemon too,
    // also when the entry is in memory again: the kernel answers EIO to passthrough beside a mapping of its
    // own.
    const bool stays_direct = entry->direct_count > 0 && !surroundings_.backing_store->needs_write_access();
    if (entry->tier == Entry::Tier::kCold) {
      // A cold file without a name does not come back: it was unlinked, or discarded with its bad copy.
      if (entry->removed && entry->direct_count == 0) return OpenAnswer{Presence::kGone};
      if (disk_.tier() == nullptr && !disk_.before_use().lasts()) return OpenAnswer{disk_.presence_of_cold()};
      if (writer || (!mode.from_disk && entry->direct_count == 0)) return OpenAnswer{Presence::kCold};
      if (entry->disk.copy() == nullptr && entry->disk.held() == nullptr)
        return OpenAnswer{Presence::kCold};  // it was open before the process that died
      opened.from_disk = true;
      hold_on_disk(*entry);
    } else {
      if (writer)
        if (auto may = may_be_written_now(*entry); !may) return pass(may);
      if (stays_direct)
        opened.from_disk = true;
      else if (auto backing = back(*entry); !backing)
        return pass(backing);
    }
    if (writer)
      opened.through_daemon = !capacity_.admit_writer(ino, entry->memory.charged_bytes, entry->policy.owner);
    entries_.opened(*entry, writer, opened.from_disk, client);
    if (!writer && entry->tier == Entry::Tier::kDirty)
      disk_.spill_by_itself(*entry);  // a second access may admit it
    opened.backing = entry->kernel.backing;
    opened.tier = entry->tier;
    opened.bytes = entry->memory.charged_bytes;
  }
  prefetcher_.open_ahead(ino, client);
  return answer;
}

Result<void> OpenFiles::may_be_written_now(Entry& entry) {
  UniqueFd marked;  // a dirty entry has its mark already
  const bool to_be_numbered = marks_.numbers_at_open() && entry.writer_count == 0;
  if (entry.tier != Entry::Tier::kDirty || to_be_numbered) {
    auto fd = arena_.open(handle_of(entry), O_PATH);
    if (!fd) return pass(fd);
    marked = std::move(*fd);
  }
  // This is the last occasion to give back holes; and a file that is updated in place gets no reservation.
  if (entry.memory.reserved_end > 0 && entry.is_settled()) {
    reservations_.give_back_holes(entry);
    entry.memory.reserved_end = 0;
  }
  marks_.became_dirty(entry, marked.get());
  return to_be_numbered ? marks_.number(entry, marked.get()) : Result<void>();
}

Result<Opened> OpenFiles::created(const Created& file) {
  EntryTable::Shard& shard = entries_.shard(file.ino);
  MutexLock lock(shard.mutex);
  Entry& entry = shard.find_or_make(file.ino, file.generation);
  entry.memory.wants_reservation = true;
  entry.kernel.looked_up_ms = static_cast<uint32_t>(now_coarse_ms());
  entry.memory.node = static_cast<int8_t>(file.node);
  entry.disk.name_hash = name_hash_of(file.name);
  entry.disk.name_class = SizesByName::class_of(file.name);
  auto kept = rest_on(entry, file);
  if (!kept) {
    shard.erase(file.ino);
    return pass(kept);
  }
  entry.kernel.lookup_count = 1;
  if (*kept) shard.kept[file.ino] = std::move(*kept);
  entries_.created(entry, file.named, file.open, file.open && file.writer);
  count_inode(entries_, &entry, file.fd);
  Opened opened{.backing = entry.kernel.backing};
  if (file.open && file.writer)
    opened.through_daemon = !capacity_.admit_writer(file.ino, entry.memory.charged_bytes, entry.policy.owner);
  return opened;
}

Result<KeptByDescriptor> OpenFiles::rest_on(Entry& entry, const Created& file) {
  KeptByDescriptor kept;
  if (!file.named) {
    auto copy = sys::duplicate(file.fd);
    auto keep = copy ? tree_.keep_inode({file.ino, file.generation}, std::move(*copy)) : pass(copy);
    if (!keep) return keep;
    kept = std::move(*keep);
  }
  if (file.open && file.writer && marks_.numbers_at_open())
    if (auto numbered = marks_.number(entry, file.fd); !numbered) return pass(numbered);
  if (!file.open) return kept;
  auto backing = surroundings_.backing_store->acquire(file.fd, {number_, file.ino});
  if (!backing) return pass(backing);
  entry.kernel.backing = *backing;
  return kept;
}

Result<void> OpenFiles::back(Entry& entry) {
  if (entry.kernel.backing >= 0) return {};
  const int access = surroundings_.backing_store->needs_write_access() ? O_RDWR : O_RDONLY;
  auto fd = arena_.open(handle_of(entry), access);
  if (!fd) return pass(fd);
  auto backing = surroundings_.backing_store->acquire(fd->get(), {number_, entry.policy.ino});
  if (!backing) return pass(backing);
  entry.kernel.backing = *backing;
  return {};
}

void OpenFiles::hold_on_disk(Entry& entry) {
  count(counters_.served_from_disk);
  // What the reconciler has not found yet is held, and it has the store hold what is open by then.
  if (entry.direct_count > 0 || entry.disk.copy() == nullptr) return;
  const CatalogContent& held = entries_.contents().held_on_disk(entry, *entry.disk.copy());
  if (disk_.tier() != nullptr)
    disk_.tier()->store->hold(held);
  else
    disk_.before_use().hold(held);
}

void OpenFiles::held_by(uint64_t ino, uid_t user) {
  if (!entries_.shares().has_shares()) return;
  const LockedEntry entry(entries_.shard(ino), ino);
  if (entry == nullptr || entry->open_count == 0) return;
  entries_.shares().opened(ino, entry->policy.owner, user);
  count_for_holder(entries_, *entry);  // its name may have gone since it was opened
}

void OpenFiles::end_open(uint64_t ino, OpenMode mode) {
  EntryTable::Shard& shard = entries_.shard(ino);
  int32_t backing = -1;
  KeptByDescriptor kept;
  {
    const LockedEntry entry(shard, ino);
    if (entry == nullptr || entry->open_count == 0) return;
    if (mode.writer && entries_.writer_closed(*entry)) settle(*entry);
    const bool last = entries_.closed(*entry, mode.from_disk);
    if (mode.user) entries_.shares().closed(ino, *mode.user);
    count_for_holder(entries_, *entry);
    // An adopted entry that had its content in memory holds nothing on the disk.
    if (mode.from_disk && entry->direct_count == 0 && entry->disk.held() != nullptr) {
      const auto held = entries_.contents().let_go(*entry);
      if (disk_.tier() != nullptr)
        disk_.tier()->store->let_go(*held);
      else if (entry->disk.copy() != nullptr)
        disk_.before_use().let_go(*held);
    }
    if (!last) return;
    backing = std::exchange(entry->kernel.backing, -1);
    if (backing >= 0) surroundings_.backing_store->giving_back(backing);
    // The file was made open but never written, by a reader's O_CREAT: it is complete.
    if (entry->stage == Entry::Stage::kWritten && !entry->removed && publishes_at_close_) settle(*entry);
  }
  fault_point("last open ended");
  if (backing >= 0) surroundings_.backing_store->give_back(backing);
  const LockedEntry entry(shard, ino);
  if (entry == nullptr) return;
  if (entry->memory.reserved_end > 0 && entry->closed()) reservations_.give_back_holes(*entry);
  if (!entry->removed || entry->open_count > 0 || entry->kernel.lookup_count > 0) return;
  if (auto found = shard.kept.find(ino); found != shard.kept.end()) kept = std::move(found->second);
  entries_.shares().erase(shard, ino);
}

void OpenFiles::end_lost_writers() {
  const uint64_t now_ms = now_coarse_ms();
  if (lost_writers_.empty() || now_ms - looked_at_lost_ms_ < kLookAtLostMs) return;
  looked_at_lost_ms_ = now_ms;
  std::erase_if(lost_writers_, [this](const OpenHandle& lost) {
    if (may_be_written_past(lost.inode.ino)) return false;
    surroundings_.survivors->handles().closed(lost.lost);
    end_open(lost.inode.ino, {.writer = true, .from_disk = lost.from_disk});
    return true;
  });
}

// In daemon I/O no use of a file goes past the daemon.
bool OpenFiles::may_be_written_past(uint64_t ino) {
  if (surroundings_.backing_store->needs_write_access()) return false;
  const LockedEntry entry(entries_.shard(ino), ino);
  if (entry == nullptr) return false;
  const auto fd = arena_.open(handle_of(*entry), O_RDONLY | O_NONBLOCK | O_NOATIME);
  if (!fd) return fd.error().code != ESTALE;
  if (!sys::set_lease(fd->get(), F_RDLCK)) return true;
  (void)sys::set_lease(fd->get(), F_UNLCK);
  return false;
}

void OpenFiles::settle(Entry& entry) {
  const uint64_t ino = entry.policy.ino;
  const bool was_stored = entry.is_stored();
  AccessLog* const log = surroundings_.read_log();
  // Until it is stored, an entry has the time of its creation there.
  const bool is_new = entry.stage == Entry::Stage::kWritten;
  const uint64_t created_ms = entry.stored_ms;
  const Entries::FileBytes bytes = reservations_.settle(entry);
  if (!entries_.stored(entry, bytes, capacity_.limit().pinned_max_bytes())) tree_.lost_its_pin(entry);
  if (log != nullptr) {
    const uint64_t took_ms = entry.stored_ms - std::min(created_ms, entry.stored_ms);
    log->add(AccessRecord::of(AccessRecord::Event::kStore, number_, entry,
                              is_new ? took_ms * 1'000'000 : AccessRecord::kNotMeasured));
  }
  if (capacity_.writers().close(ino, bytes.charged) && arena_.usage().free_bytes < kBlockBytes)
    insight_.report_full(false);
  if (was_stored || entry.stage == Entry::Stage::kCandidate) disk_.spill_by_itself(entry);
}

void OpenFiles::flushed(uint64_t ino) {
  const LockedEntry entry(entries_.shard(ino), ino);
  if (entry == nullptr) return;
  entries_.flushed(*entry);
  capacity_.writers().flushed(ino);
  // The reservation stays until the last close: the closed descriptor may be a copy, as a fork makes one, and
  // the original may be written this moment.
}

std::optional<Opened> OpenFiles::adopted_open(uint64_t ino, bool from_disk) {
  if (injected_error("open again") != 0) return std::nullopt;
  const LockedEntry entry(entries_.shard(ino), ino);
  if (entry == nullptr || entry->open_count == 0) return std::nullopt;
  if (from_disk) {
    // There may be memory for the entry now, or it is in memory already: then others may have it open with
    // passthrough, which does not go together with an open that is served from the disk. A nameless entry
    // could not be opened again.
    if (!entry->removed) return std::nullopt;
    return Opened{.backing = -1, .from_disk = true};
  }
  if (!back(*entry)) return std::nullopt;
  return Opened{.backing = entry->kernel.backing, .from_disk = false};
}

int OpenFiles::place(int fd, int caller_thread) {
  const uint64_t expected = capacity_.expected_entry_bytes();
  int node = 0;
  if (surroundings_.topology->node_count() > 1) {
    const int near = surroundings_.topology->node_of_thread(caller_thread);
    node = surroundings_.topology->node_with_room(near, std::max(expected, Capacity::kGrowthBytes));
    // Placement is best effort: a file that is not placed lies where its writer runs.
    (void)surroundings_.topology->place_file(fd, node);
  }
  return node;
}

Tried OpenFiles::make_way(Patience patience, uid_t uid) {
  const uint64_t expected = capacity_.expected_entry_bytes();
  if (expected == 0 || !capacity_.promises_expected_size() || entries_.sums().evictable_bytes() == 0)
    return Tried::kDone;
  // The result does not matter: after a failure a write may still find memory that was promised and is not
  // used.
  const Waited room = capacity_.wait_for_room(expected, patience, 0, uid);
  return room == Waited::kWouldWait ? Tried::kWouldWait : Tried::kDone;
}

}  // namespace kvcachefs
