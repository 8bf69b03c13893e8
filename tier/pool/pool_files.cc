// Open files of a pool.
#include <linux/falloc.h>

#include <algorithm>
#include <cerrno>

#include "alloc/unwritten.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/fault_point.h"
#include "base/log_limit.h"
#include "tier/entries/name_hash.h"
#include "tier/pool/pool.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kBlockBytes = 4096;
constexpr uint64_t kStatBlockBytes = 512;

// A write or an allocation in a full pool tries again at most this often, after a wait each time.
constexpr int kRoomAttempts = 20;
// A copied range may be as long as its caller likes: room for a part of it is enough to go on.
constexpr uint64_t kCopyDemandBytes = uint64_t{4} << 20;
// An allocation this large, and not smaller than an expected entry, is most likely all that its writer needs;
// a smaller one may be the first of many.
constexpr uint64_t kWholeBytes = uint64_t{1} << 20;

// Memory that the file lacks up to the offset `end`, if the file has no holes.
uint64_t missing_bytes(int fd, uint64_t end) {
  const auto attributes = sys::stat_of(fd);
  if (!attributes) return 0;
  return end - std::min(end, static_cast<uint64_t>(attributes->st_blocks) * kStatBlockBytes);
}

// The writer has allocated its memory itself: the rest of its promise goes back to the other writers.
void preallocated(Writers& writers, uint64_t ino, int fd) {
  const auto now = sys::stat_of(fd);
  if (!now) return;
  (void)writers.seen(ino, static_cast<uint64_t>(now->st_size),
                     static_cast<uint64_t>(now->st_blocks) * kStatBlockBytes, 0);
  writers.flushed(ino);
}

// With passthrough the open file rests on a backing id of the kernel. I/O that comes to the daemon all the
// same (O_SYNC writes, writers without a promise) gets a descriptor of its own. In daemon I/O it needs none.
Result<UniqueFd> own_descriptor(Pool& pool, const BackingStore& backing, uint64_t ino, int access) {
  if (backing.needs_write_access()) return UniqueFd();
  return pool.inodes().open_inode(ino, access);
}

}  // namespace

Result<OpenAnswer> Pool::begin_open(uint64_t ino, OpenMode mode, uint64_t client) {
  const bool writer = mode.writer;
  OpenAnswer answer;
  Opened& opened = answer.opened;
  {
    EntryTable::Shard& shard = entries_.shard(ino);
    MutexLock lock(shard.mutex);
    Entry* entry = shard.find(ino);
    if (entry == nullptr || (entry->removed && entry->open_count == 0 && !shard.kept.contains(ino)))
      return OpenAnswer{Presence::kGone};
    if (entry->promoting) return OpenAnswer{Presence::kCold};
    // After an open that is served from the disk, perhaps mapped, later opens are served by the daemon too,
    // also when the entry is in memory again: the kernel answers EIO to passthrough beside a mapping of its
    // own.
    const bool stays_direct = entry->direct_count > 0 && !surroundings_.backing_store->needs_write_access();
    if (entry->tier == Entry::Tier::kCold) {
      // A cold file without a name does not come back: it was unlinked, or discarded with its bad copy.
      if (entry->removed && entry->direct_count == 0) return OpenAnswer{Presence::kGone};
      if (disk() == nullptr) return OpenAnswer{disk_.presence_without()};
      if (writer || (!mode.from_disk && entry->direct_count == 0)) return OpenAnswer{Presence::kCold};
      opened.from_disk = true;
      hold_on_disk(shard, *entry);
    } else if (stays_direct) {
      opened.from_disk = true;
    } else if (auto backing = back(*entry); !backing) {
      return pass(backing);
    }
    if (writer) {
      // This is the last occasion to give back holes; and a file that is updated in place gets no
      // reservation.
      if (entry->reserved_end > 0 && entry->is_stored() && entry->writer_count == 0) {
        reservations_.give_back_holes(*entry);
        entry->reserved_end = 0;
      }
      marks_.became_dirty(*entry);
      opened.through_daemon = !capacity_.admit_writer(ino, entry->charged_bytes);
    }
    entries_.opened(*entry, writer, opened.from_disk);
    if (!writer && entry->tier == Entry::Tier::kDirty)
      disk_.spill_by_itself(*entry);  // a second access may admit it
    opened.backing = entry->backing;
  }
  open_ahead(ino, client);
  return answer;
}

Result<Pool::Opened> Pool::created(const Created& file) {
  count(counters_.creates);
  EntryTable::Shard& shard = entries_.shard(file.ino);
  MutexLock lock(shard.mutex);
  Entry& entry = shard.find_or_make(file.ino, file.generation);
  entry.stored_ms = now_coarse_ms();
  entry.looked_up_ms = static_cast<uint32_t>(entry.stored_ms);
  entry.node = static_cast<int8_t>(file.node);
  entry.name_hash = name_hash_of(file.name);
  KeptByDescriptor kept;
  if (!file.named) {
    auto copy = sys::duplicate(file.fd);
    auto keep = copy ? tree_.keep_inode({file.ino, file.generation}, std::move(*copy)) : pass(copy);
    if (!keep) {
      shard.erase(file.ino);
      return pass(keep);
    }
    kept = std::move(*keep);
  }
  if (file.open) {
    auto backing = surroundings_.backing_store->acquire(file.fd, {number_, file.ino});
    if (!backing) {
      shard.erase(file.ino);
      return pass(backing);
    }
    entry.backing = *backing;
  }
  entry.lookup_count = 1;
  if (!file.named) shard.kept[file.ino] = std::move(kept);
  entries_.created(entry, file.named, file.open, file.open && file.writer);
  Opened opened{.backing = entry.backing};
  if (file.open && file.writer)
    opened.through_daemon = !capacity_.admit_writer(file.ino, entry.charged_bytes);
  return opened;
}

Result<void> Pool::back(Entry& entry) {
  if (entry.backing >= 0) return {};
  const int access = surroundings_.backing_store->needs_write_access() ? O_RDWR : O_RDONLY;
  auto fd = arena_.open(handle_of(entry), access);
  if (!fd) return pass(fd);
  auto backing = surroundings_.backing_store->acquire(fd->get(), {number_, entry.policy.ino});
  if (!backing) return pass(backing);
  entry.backing = *backing;
  return {};
}

void Pool::hold_on_disk(EntryTable::Shard& shard, const Entry& entry) {
  count(counters_.served_from_disk);
  if (entry.direct_count > 0) return;
  const auto copy = shard.copies.find(entry.policy.ino);
  KVCACHEFS_CHECK(copy != shard.copies.end());
  auto held = shard.held.emplace(entry.policy.ino, copy->second).first;
  disk()->store->hold(held->second);
}

void Pool::end_open(uint64_t ino, OpenMode mode) {
  EntryTable::Shard& shard = entries_.shard(ino);
  int32_t backing = -1;
  KeptByDescriptor kept;
  {
    MutexLock lock(shard.mutex);
    Entry* entry = shard.find(ino);
    if (entry == nullptr || entry->open_count == 0) return;
    if (mode.writer && entries_.writer_closed(*entry)) settle(*entry);
    const bool last = entries_.closed(*entry, mode.from_disk);
    if (mode.from_disk && entry->direct_count == 0)
      // An adopted entry that had its content in memory holds nothing on the disk.
      if (const auto held = shard.held.extract(ino); held && disk() != nullptr)
        disk()->store->let_go(held.mapped());
    if (!last) return;
    backing = std::exchange(entry->backing, -1);
    if (backing >= 0) surroundings_.backing_store->giving_back(backing);
    // The file was made open but never written, by a reader's O_CREAT: it is complete.
    if (entry->stage == Entry::Stage::kWritten && !entry->removed) settle(*entry);
  }
  fault_point("last open ended");
  if (backing >= 0) surroundings_.backing_store->give_back(backing);
  MutexLock lock(shard.mutex);
  Entry* entry = shard.find(ino);
  if (entry == nullptr) return;
  if (entry->reserved_end > 0 && entry->closed()) reservations_.give_back_holes(*entry);
  if (!entry->removed || entry->open_count > 0 || entry->lookup_count > 0) return;
  if (auto found = shard.kept.find(ino); found != shard.kept.end()) kept = std::move(found->second);
  shard.erase(ino);
}

void Pool::settle(Entry& entry) {
  const uint64_t ino = entry.policy.ino;
  const bool was_stored = entry.is_stored();
  const uint64_t charged_bytes = reservations_.settle(entry);
  const uint64_t most_pinned_bytes = entry.pinned ? capacity_.pinned_max_bytes() : 0;
  const bool unpinned = !entries_.stored(entry, charged_bytes, most_pinned_bytes);
  if (capacity_.writers().close(ino, charged_bytes) && arena_.usage().free_bytes < kBlockBytes)
    insight_.report_full(false);
  if (unpinned) {
    static LogLimit log_limit;
    log_limit.warning("pool {}: unpinned inode {}: with it more than pinned_max would be pinned", name_, ino);
    if (auto fd = arena_.open(handle_of(entry), O_PATH)) {
      keep_ctime(entry.kept, fd->get(), is_supervised());
      (void)sys::remove_xattr(fd->get(), kPinnedXattr);
    }
  }
  if (was_stored || entry.stage == Entry::Stage::kCandidate) disk_.spill_by_itself(entry);
}

void Pool::flushed(uint64_t ino) {
  EntryTable::Shard& shard = entries_.shard(ino);
  MutexLock lock(shard.mutex);
  Entry* entry = shard.find(ino);
  if (entry == nullptr) return;
  entry->flushed = true;
  entry->hits = 0;
  capacity_.writers().flushed(ino);
  // The reservation stays until the last close: the closed descriptor may be a copy, as a fork makes one, and
  // the original may be written this moment.
}

Result<int> Pool::io_descriptor(uint64_t ino) {
  EntryTable::Shard& shard = entries_.shard(ino);
  MutexLock lock(shard.mutex);
  const Entry* entry = shard.find(ino);
  if (entry == nullptr || entry->backing < 0) return fail(ESTALE);
  return entry->backing;
}

void Pool::io_done(uint64_t ino) {
  MutexLock lock(entries_.shard(ino).mutex);
}

Result<size_t> Pool::read(uint64_t ino, std::span<char> bytes, uint64_t offset) {
  auto own = own_descriptor(*this, *surroundings_.backing_store, ino, O_RDONLY);
  if (!own) return pass(own);
  auto fd = *own ? Result<int>(own->get()) : io_descriptor(ino);
  if (!fd) return pass(fd);
  auto count = sys::read_at(*fd, bytes, offset);
  io_done(ino);
  return count;
}

Result<size_t> Pool::write(uint64_t ino, std::span<const char> bytes, uint64_t offset) {
  auto own = own_descriptor(*this, *surroundings_.backing_store, ino, O_RDWR);
  if (!own) return pass(own);
  auto fd = *own ? Result<int>(own->get()) : io_descriptor(ino);
  if (!fd) return pass(fd);
  if (offset == 0) reservations_.begin_writing(ino);
  size_t total = 0;
  uint64_t missing = missing_bytes(*fd, offset + bytes.size());
  for (int attempt = 0;; ++attempt) {
    const bool room = capacity_.wait_for_room(std::min<uint64_t>(missing, bytes.size() - total));
    auto count = sys::write_at(*fd, bytes.subspan(total), offset + total);
    if (count) total += *count;
    const bool full = count ? total < bytes.size() : count.error().code == ENOSPC;
    if (!full || !room || attempt == kRoomAttempts) {
      io_done(ino);
      if (full) insight_.report_full(true);
      if (!count && total == 0) return count;
      return total;
    }
    missing = bytes.size();  // the file had holes before its end
  }
}

Result<size_t> Pool::copy_range(int from, uint64_t from_offset, int to, uint64_t to_offset, size_t bytes) {
  for (int attempt = 0;; ++attempt) {
    auto copied = sys::copy_range(from, from_offset, to, to_offset, bytes);
    if (copied || copied.error().code != ENOSPC) return copied;
    if (!capacity_.wait_for_room(std::min<uint64_t>(bytes, kCopyDemandBytes)) || attempt == kRoomAttempts) {
      insight_.report_full(true);
      return copied;
    }
  }
}

Result<Presence> Pool::truncate(uint64_t ino, uint64_t size_bytes) {
  EntryTable::Shard& shard = entries_.shard(ino);
  {
    MutexLock lock(shard.mutex);
    Entry* entry = shard.find(ino);
    if (entry == nullptr) return Presence::kGone;
    const bool lacks_content = entry->tier == Entry::Tier::kCold && size_bytes > 0;
    if (lacks_content && entry->removed) return Presence::kGone;
    if (lacks_content && disk() == nullptr) return disk_.presence_without();
    if (entry->promoting || lacks_content) return Presence::kCold;
    auto fd = arena_.open(handle_of(*entry), O_RDWR);
    if (!fd) return pass(fd);
    // A cold entry is cut before its mark says dirty, because its missing pages must not pass for content.
    // Any other is cut after its mark says so.
    const bool cold = entry->tier == Entry::Tier::kCold;
    if (cold)
      if (auto done = sys::truncate(fd->get(), 0); !done) return pass(done);
    fault_point("cold one cut");
    ++entry->version;
    if (size_bytes == 0) {
      entry->emptied = entry->node_id != 0;
      entry->first_version = entry->version;
      if (entry->tier == Entry::Tier::kDirty && entry->node_id != 0) marks_.mark_dirty(*entry);
    }
    marks_.became_dirty(*entry);
    fault_point("marked dirty");
    if (!cold)
      if (auto done = sys::truncate(fd->get(), size_bytes); !done) return pass(done);
    if (entry->writer_count == 0) {
      if (auto attributes = sys::stat_of(fd->get()))
        entries_.charged(*entry, static_cast<uint64_t>(attributes->st_blocks) * kStatBlockBytes);
      disk_.spill_by_itself(*entry);
    } else if (size_bytes == 0) {
      entry->reserved_end = 0;  // gone with the content: a writer that starts over gets a new one
    }
  }
  return Presence::kHere;
}

Result<void> Pool::allocate(uint64_t ino, int mode, uint64_t offset, uint64_t length) {
  // Room is made between the attempts, because nothing may wait here with the shard held.
  for (int attempt = 0;; ++attempt) {
    Result<void> done;
    {
      EntryTable::Shard& shard = entries_.shard(ino);
      MutexLock lock(shard.mutex);
      Entry* entry = shard.find(ino);
      if (entry == nullptr) return fail(ESTALE);
      auto fd = arena_.open(handle_of(*entry), O_RDWR);
      if (!fd) return pass(fd);
      // From here on what lies beyond the end belongs to the client, and stays when the client closes.
      if ((mode & FALLOC_FL_PUNCH_HOLE) == 0) (void)reservations_.trim(*entry, fd->get());
      done = sys::allocate(fd->get(), mode, offset, length);
      if (done && (mode & FALLOC_FL_PUNCH_HOLE) == 0 &&
          length >= std::max(capacity_.expected_entry_bytes(), kWholeBytes))
        preallocated(capacity_.writers(), ino, fd->get());
      // A length beyond the pool's size evicts nothing, because no eviction can make room for it.
      if (done || done.error().code != ENOSPC || length > capacity_.size_bytes()) return done;
    }
    if (!capacity_.wait_for_room(length) || attempt == kRoomAttempts) {
      insight_.report_full(true);
      return done;
    }
  }
}

}  // namespace kvcachefs
