// Open files of a pool.
#include <linux/falloc.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/check.h"
#include "base/clock.h"
#include "base/fault_point.h"
#include "base/log_limit.h"
#include "tier/pool.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kBlockBytes = 4096;
constexpr uint64_t kStatBlockBytes = 512;

// A write or an allocation in a full pool tries again so often, after as much of a wait each time at most.
constexpr int kRoomAttempts = 20;
constexpr auto kRoomPatience = std::chrono::milliseconds(100);
// Of a range that is copied, which may be as long as its asker likes: some of it is enough for him to go on.
constexpr uint64_t kCopyDemandBytes = uint64_t{4} << 20;

// With passthrough an open file rests on the kernel's own, and writes of O_SYNC come here all the same; else
// none.
Result<UniqueFd> own_descriptor(Pool& pool, const BackingStore& backing, uint64_t ino, int access) {
  if (backing.needs_write_access()) return UniqueFd();
  return pool.open_inode(ino, access);
}

}  // namespace

Result<Pool::Opened> Pool::begin_open(uint64_t ino, bool writer, uint64_t client, bool from_disk) {
  Opened opened;
  {
    EntryTable::Shard& shard = table_.shard(ino);
    MutexLock lock(shard.mutex);
    Entry* entry = shard.find(ino);
    if (entry == nullptr || (entry->removed && entry->open_count == 0 && !shard.kept.contains(ino)))
      return fail(ESTALE);
    if (entry->promoting) return fail(kColdEntry);
    if (entry->tier == Entry::Tier::kCold) {
      // Once somebody reads it from the disk, who comes later does too: a mapping of theirs and passthrough
      // do not go together on one inode.
      // Nameless, or of a disk that could not be read: it does not come back.
      if (entry->removed && entry->direct_count == 0) return fail(ESTALE);
      if (disk() == nullptr) return fail(code_of_cold_open(away()));
      if (writer || (!from_disk && entry->direct_count == 0)) return fail(kColdEntry);
      opened.from_disk = true;
      count_direct(shard, *entry);
    } else if (auto backing = back(*entry); !backing) {
      return pass(backing);
    }
    Accounted accounted(*this, *entry);
    if (entry->open_count++ == 0) ++open_files_;
    entry->busy_tries = 0;
    if (!writer) ++entry->hits;
    count(counters_.opens_hit);
    candidates_.opened(*entry);
    if (std::exchange(entry->prefetched, false)) count(counters_.prefetch_useful);
    if (DiskTier* const tier = disk()) tier->admission.seen(entry->name_hash);
    if (writer) {
      became_dirty(*entry);
      entry->flushed = false;
    }
    if (writer && entry->writer_count++ == 0) add_writer(ino);
    if (!writer && entry->tier == Entry::Tier::kDirty && durability() != Durability::kNone)
      queue_spill(*entry);  // a second access may admit it
    opened.backing = entry->backing;
  }
  open_ahead(ino, client);
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

void Pool::count_direct(EntryTable::Shard& shard, Entry& entry) {
  count(counters_.served_from_disk);
  if (entry.direct_count++ > 0) return;
  const auto copy = shard.copies.find(entry.policy.ino);
  KVCACHEFS_CHECK(copy != shard.copies.end());
  auto held = shard.held.emplace(entry.policy.ino, copy->second).first;
  disk()->store->hold(held->second);
}

void Pool::end_open(uint64_t ino, bool writer, bool from_disk) {
  EntryTable::Shard& shard = table_.shard(ino);
  int32_t backing = -1;
  KeptByDescriptor kept;
  {
    MutexLock lock(shard.mutex);
    Entry* entry = shard.find(ino);
    if (entry == nullptr || entry->open_count == 0) return;
    Accounted accounted(*this, *entry);
    if (from_disk && entry->direct_count > 0 && --entry->direct_count == 0)
      // Nothing is held of one that was adopted with its content in memory.
      if (const auto held = shard.held.extract(ino); held && disk() != nullptr)
        disk()->store->let_go(held.mapped());
    if (writer && entry->writer_count > 0 && --entry->writer_count == 0) settle(*entry, accounted);
    if (--entry->open_count > 0) return;
    --open_files_;
    backing = std::exchange(entry->backing, -1);
    // Made open but never written, by a reader's O_CREAT: it is as whole as it gets.
    if (entry->stage == Entry::Stage::kWritten && !entry->removed) settle(*entry, accounted);
    if (entry->parked && !entry->pinned) candidates_.unpark(*entry);
  }
  if (backing >= 0) surroundings_.backing_store->give_back(backing);
  MutexLock lock(shard.mutex);
  Entry* entry = shard.find(ino);
  if (entry == nullptr || !entry->removed || entry->open_count > 0 || entry->lookup_count > 0) return;
  if (auto found = shard.kept.find(ino); found != shard.kept.end()) kept = std::move(found->second);
  shard.erase(ino);
}

void Pool::settle(Entry& entry, Accounted& accounted) {
  const uint64_t ino = entry.policy.ino;
  const uint64_t counted_bytes = entry.pins_memory() ? entry.charged_bytes : 0;
  drop_writer(ino);
  ++entry.version;
  // A reader may have come since the last writer's close(), of which the kernel tells at once by FLUSH alone.
  if (!entry.flushed) entry.hits = 0;
  entry.stored_ms = now_coarse_ms();
  if (auto fd = arena_.open(handle_of(entry), O_RDWR | O_NONBLOCK)) {
    const uint64_t size = trim(entry, fd->get());
    if (size > 0) learner_.closed(size);
    if (auto attributes = sys::stat_of(fd->get()))
      entry.charged_bytes = static_cast<uint64_t>(attributes->st_blocks) * kStatBlockBytes;
  }
  if (entry.removed) return;
  if (entry.pinned) {
    // The pin came before its size was known, or it has grown.
    const uint64_t limit = usage().pinned_max_bytes;
    bool unpinned = false;
    {
      MutexLock pins(pins_mutex_);
      unpinned = pinned_bytes_ - counted_bytes + entry.charged_bytes > limit;
      if (unpinned) entry.pinned = false;
      accounted.count_pin();
    }
    if (unpinned) {
      static LogLimit log_limit;
      log_limit.warning("pool {}: unpinned inode {}: with it more than pinned_max would be pinned", name_,
                        ino);
      if (auto fd = arena_.open(handle_of(entry), O_PATH)) (void)sys::remove_xattr(fd->get(), kPinnedXattr);
    }
  }
  if (entry.stage != Entry::Stage::kWritten) {
    if (durability() != Durability::kNone) queue_spill(entry);
    return;
  }
  if (std::exchange(entry.renamed, false)) {
    publish(entry);
  } else {
    candidates_.fresh(entry);
  }
}

uint64_t Pool::trim(Entry& entry, int fd) {
  auto attributes = sys::stat_of(fd);
  if (!attributes) return 0;
  const auto size = static_cast<uint64_t>(attributes->st_size);
  const uint64_t keep = (size + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  if (entry.reserved_end > keep)
    (void)sys::allocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, keep, entry.reserved_end - keep);
  entry.reserved_end = 0;
  return size;
}

void Pool::flushed(uint64_t ino) {
  EntryTable::Shard& shard = table_.shard(ino);
  MutexLock lock(shard.mutex);
  Entry* entry = shard.find(ino);
  if (entry == nullptr) return;
  entry->flushed = true;
  entry->hits = 0;
  // What is reserved stays until the last close: a copy of the descriptor, as a fork makes one, may be what
  // is closed, and its twin be written this moment.
}

Result<int> Pool::io_descriptor(uint64_t ino) {
  EntryTable::Shard& shard = table_.shard(ino);
  MutexLock lock(shard.mutex);
  const Entry* entry = shard.find(ino);
  if (entry == nullptr || entry->backing < 0) return fail(ESTALE);
  return entry->backing;
}

void Pool::io_done(uint64_t ino) {
  MutexLock lock(table_.shard(ino).mutex);
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
  size_t total = 0;
  for (int attempt = 0;; ++attempt) {
    const Room::Ticket ticket = room_.ticket();
    auto count = sys::write_at(*fd, bytes.subspan(total), offset + total);
    if (count) total += *count;
    const bool full = count ? total < bytes.size() : count.error().code == ENOSPC;
    if (!full || attempt == kRoomAttempts) {
      io_done(ino);
      if (!count && total == 0) return count;
      return total;
    }
    Room::Demand demand(room_, Room::Whose::kWriter, bytes.size() - total);
    surroundings_.evictor->wake();
    if (room_.wait(Room::Whose::kWriter, ticket, kRoomPatience) == Room::Answer::kNothingToEvict)
      attempt = kRoomAttempts - 1;
  }
}

Result<size_t> Pool::copy_range(int from, uint64_t from_offset, int to, uint64_t to_offset, size_t bytes) {
  for (int attempt = 0;; ++attempt) {
    const Room::Ticket ticket = room_.ticket();
    auto copied = sys::copy_range(from, from_offset, to, to_offset, bytes);
    if (copied || copied.error().code != ENOSPC || attempt == kRoomAttempts) return copied;
    Room::Demand demand(room_, Room::Whose::kWriter, std::min<uint64_t>(bytes, kCopyDemandBytes));
    surroundings_.evictor->wake();
    if (room_.wait(Room::Whose::kWriter, ticket, kRoomPatience) == Room::Answer::kNothingToEvict)
      return copied;
  }
}

Result<void> Pool::truncate(uint64_t ino, uint64_t size_bytes) {
  EntryTable::Shard& shard = table_.shard(ino);
  uint64_t reserve_bytes = 0;
  {
    MutexLock lock(shard.mutex);
    Entry* entry = shard.find(ino);
    if (entry == nullptr) return fail(ESTALE);
    const bool lacks_content = entry->tier == Entry::Tier::kCold && size_bytes > 0;
    if (lacks_content && entry->removed) return fail(ESTALE);
    if (lacks_content && disk() == nullptr) return fail(code_of_cold_open(away()));
    if (entry->promoting || lacks_content) return fail(kColdEntry);
    auto fd = arena_.open(handle_of(*entry), O_RDWR);
    if (!fd) return pass(fd);
    Accounted accounted(*this, *entry);
    // The pages of a cold one must not be marked as its content while it has its size, and no other may be
    // cut to nothing before its mark says so.
    const bool cold = entry->tier == Entry::Tier::kCold;
    if (cold)
      if (auto done = sys::truncate(fd->get(), 0); !done) return done;
    fault_point("cold one cut");
    ++entry->version;
    if (size_bytes == 0) {
      entry->emptied = entry->node_id != 0;
      entry->first_version = entry->version;
      if (entry->tier == Entry::Tier::kDirty && entry->node_id != 0) mark_dirty(*entry);
    }
    became_dirty(*entry);
    fault_point("marked dirty");
    if (!cold)
      if (auto done = sys::truncate(fd->get(), size_bytes); !done) return done;
    if (entry->writer_count == 0) {
      if (auto attributes = sys::stat_of(fd->get()))
        entry->charged_bytes = static_cast<uint64_t>(attributes->st_blocks) * kStatBlockBytes;
      if (durability() != Durability::kNone) queue_spill(*entry);
    } else if (size_bytes == 0) {
      entry->reserved_end = 0;  // went with the content: a writer that starts over needs it again
      reserve_bytes = expected_entry_bytes();
    }
  }
  if (reserve_bytes > 0) reserve_again(ino, reserve_bytes);
  return {};
}

Result<void> Pool::allocate(uint64_t ino, int mode, uint64_t offset, uint64_t length) {
  // Room is made before, since nothing here may wait with the shard held.
  for (int attempt = 0;; ++attempt) {
    const Room::Ticket ticket = room_.ticket();
    Result<void> done;
    {
      EntryTable::Shard& shard = table_.shard(ino);
      MutexLock lock(shard.mutex);
      Entry* entry = shard.find(ino);
      if (entry == nullptr) return fail(ESTALE);
      auto fd = arena_.open(handle_of(*entry), O_RDWR);
      if (!fd) return pass(fd);
      // From here on what lies beyond the end is the client's own, and stays when it closes.
      (void)trim(*entry, fd->get());
      done = sys::allocate(fd->get(), mode, offset, length);
      // What no eviction can make room for costs nobody anything.
      if (done || done.error().code != ENOSPC || attempt == kRoomAttempts || length > size_bytes_)
        return done;
    }
    Room::Demand demand(room_, Room::Whose::kWriter, length);
    surroundings_.evictor->wake();
    if (room_.wait(Room::Whose::kWriter, ticket, kRoomPatience) == Room::Answer::kNothingToEvict) return done;
  }
}

void Pool::add_writer(uint64_t ino) {
  bool first;
  {
    MutexLock lock(writers_mutex_);
    first = writers_.empty();
    writers_.insert(ino);
  }
  if (first) surroundings_.evictor->wake_if_idle();
}

void Pool::drop_writer(uint64_t ino) {
  MutexLock lock(writers_mutex_);
  writers_.erase(ino);
}

}  // namespace kvcachefs
