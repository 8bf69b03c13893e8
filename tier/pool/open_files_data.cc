// The requests for the content of a pool's files that come to the daemon: reads, writes, copies, cuts and
// allocations.
#include <linux/falloc.h>

#include <algorithm>
#include <cerrno>

#include "base/fault_point.h"
#include "tier/pool/open_files.h"

namespace kvcachefs {
namespace {

// A write or an allocation in a full pool tries again at most this often, after a wait each time.
constexpr int kRoomAttempts = 20;
// A copied range may be as long as its caller likes: room for a part of it is enough to go on.
constexpr uint64_t kCopyDemandBytes = uint64_t{4} << 20;
// An allocation this large, and not smaller than an expected entry, is most likely all that its writer needs;
// a smaller one may be the first of many.
constexpr uint64_t kWholeBytes = uint64_t{1} << 20;

// Memory that the file lacks for a write, if it has no holes before that. A write to what is there lacks
// none, and must not be refused for want of room: it may be that of a mapping, whose client is not told.
uint64_t missing_bytes(int fd, const struct stat& file, uint64_t offset, uint64_t bytes) {
  const uint64_t end = offset + bytes;
  const uint64_t lacking = end - std::min(end, allocated_bytes_of(file));
  if (lacking == 0 || end > size_of(file)) return lacking;
  const auto hole = sys::seek(fd, offset, SEEK_HOLE);
  return hole && *hole >= end ? 0 : lacking;
}

// The writer has allocated its memory itself: the rest of its promise goes back to the other writers.
void preallocated(Writers& writers, uint64_t ino, int fd) {
  const auto now = sys::stat_of(fd);
  if (!now) return;
  (void)writers.seen(ino, size_of(*now), allocated_bytes_of(*now), 0);
  writers.flushed(ino);
}

}  // namespace

// With passthrough the open file rests on a backing id of the kernel. I/O that comes to the daemon all the
// same (O_SYNC writes, writers without a promise) gets a descriptor of its own. In daemon I/O it needs none.
Result<int> OpenFiles::io_descriptor(uint64_t ino, int access, UniqueFd& own) {
  if (!surroundings_.backing_store->needs_write_access()) {
    auto opened = inodes_.open_inode(ino, access);
    if (!opened) return pass(opened);
    own = std::move(*opened);
    return own.get();
  }
  const LockedEntry entry(entries_.shard(ino), ino);
  if (entry == nullptr || entry->kernel.backing < 0) return fail(ESTALE);
  return entry->kernel.backing;
}

void OpenFiles::count_memory(uint64_t ino, int fd) {
  const LockedEntry entry(entries_.shard(ino), ino);
  const auto now = sys::stat_of(fd);
  if (entry != nullptr && now) entries_.contents().charged(*entry, allocated_bytes_of(*now));
}

void OpenFiles::io_done(uint64_t ino) {
  MutexLock lock(entries_.shard(ino).mutex);
}

Result<size_t> OpenFiles::read(uint64_t ino, std::span<char> bytes, uint64_t offset) {
  UniqueFd own;
  auto fd = io_descriptor(ino, O_RDONLY, own);
  if (!fd) return pass(fd);
  auto count = sys::read_at(*fd, bytes, offset);
  io_done(ino);
  return count;
}

Result<OpenFiles::Written> OpenFiles::write(uint64_t ino, std::span<const char> bytes, uint64_t offset,
                                            Patience patience) {
  UniqueFd own;
  auto fd = io_descriptor(ino, O_RDWR, own);
  if (!fd) return pass(fd);
  if (offset == 0 && reservations_.begin_writing(ino, patience) == Tried::kWouldWait)
    return Written{0, Tried::kWouldWait};
  size_t total = 0;
  const auto before = sys::stat_of(*fd);
  uint64_t missing = before ? missing_bytes(*fd, *before, offset, bytes.size()) : 0;
  const uid_t user = before ? before->st_uid : 0;
  for (int attempt = 0;; ++attempt) {
    const Waited room =
        capacity_.wait_for_room(std::min<uint64_t>(missing, bytes.size() - total), patience, 0, user);
    if (room == Waited::kWouldWait) {
      io_done(ino);
      return Written{total, Tried::kWouldWait};
    }
    // While the host is short of memory, a writer gets no more than can be evicted for it. A user over the
    // share gets no memory that was freed for another user.
    const bool ends = capacity_.closed() || capacity_.waiting().waits_ended();
    const bool refused = room == Waited::kNoRoom && !ends &&
                         (capacity_.limit().is_lowered() || entries_.shares().is_user_over(user));
    auto count = refused ? fail(ENOSPC) : sys::write_at(*fd, bytes.subspan(total), offset + total);
    if (count) total += *count;
    const bool full = count ? total < bytes.size() : count.error().code == ENOSPC;
    if (!full || room == Waited::kNoRoom || attempt == kRoomAttempts) {
      io_done(ino);
      if (full) insight_.report_full(true);
      if (!count && total == 0) return pass(count);
      return Written{total};
    }
    missing = bytes.size();  // the file had holes before its end
  }
}

Result<OpenFiles::Written> OpenFiles::copy_range(Range from, Range to, size_t bytes, Patience patience) {
  const auto demand = std::min<uint64_t>(bytes, kCopyDemandBytes);
  const auto target = sys::stat_of(to.file);
  const uid_t user = target ? target->st_uid : 0;
  const uint64_t missing = target ? std::min(missing_bytes(to.file, *target, to.offset, bytes), demand) : 0;
  const bool has_shares = entries_.shares().has_shares();
  const Shares::Asking asking(entries_.shares(), user, missing);
  if (missing > 0 && (has_shares || capacity_.waiting().goes_before(patience))) {
    const Waited room = capacity_.wait_for_room(missing, patience, 0, user);
    if (room == Waited::kWouldWait) return Written{0, Tried::kWouldWait};
    if (room == Waited::kNoRoom && entries_.shares().is_user_over(user)) {
      insight_.report_full(true);
      return fail(ENOSPC);
    }
  }
  // With shares, the bytes are copied a part at a time, so that no more is copied than there was room for.
  const size_t at_once = has_shares ? std::min<uint64_t>(bytes, kCopyDemandBytes) : bytes;
  for (int attempt = 0;; ++attempt) {
    auto copied = sys::copy_range(from.file, from.offset, to.file, to.offset, at_once);
    if (copied && target && has_shares) count_memory(target->st_ino, to.file);
    if (copied) return Written{*copied};
    if (copied.error().code != ENOSPC) return pass(copied);
    const Waited room = capacity_.wait_for_room(demand, patience, 0, user);
    if (room == Waited::kWouldWait) return Written{0, Tried::kWouldWait};
    if (room == Waited::kNoRoom || attempt == kRoomAttempts) {
      insight_.report_full(true);
      return pass(copied);
    }
  }
}

Result<Presence> OpenFiles::truncate(uint64_t ino, uint64_t size_bytes) {
  const LockedEntry entry(entries_.shard(ino), ino);
  if (entry == nullptr) return Presence::kGone;
  if (entry->tier == Entry::Tier::kCold && size_bytes > 0)
    return entry->removed ? Presence::kGone : disk_.presence_of_cold();
  if (entry->disk.promoting()) return Presence::kCold;
  auto fd = arena_.open(handle_of(*entry), O_RDWR);
  if (!fd) return pass(fd);
  // A cold entry is cut before its mark says dirty, because its missing pages must not pass for content.
  // Any other is cut after its mark says so.
  const bool cold = entry->tier == Entry::Tier::kCold;
  if (cold)
    if (auto done = sys::truncate(fd->get(), 0); !done) return pass(done);
  fault_point("cold one cut");
  marks_.cut(*entry, fd->get(), size_bytes == 0);
  if (size_bytes == 0) entry->memory.wants_reservation = true;
  fault_point("marked dirty");
  if (!cold)
    if (auto done = sys::truncate(fd->get(), size_bytes); !done) return pass(done);
  if (entry->writer_count == 0) {
    const auto attributes = sys::stat_of(fd->get());
    if (attributes && !entries_.resized(*entry, bytes_of(*attributes), capacity_.limit().pinned_max_bytes()))
      tree_.lost_its_pin(*entry);
    disk_.spill_by_itself(*entry);
  } else if (size_bytes == 0) {
    entry->memory.reserved_end = 0;  // gone with the content: a writer that starts over gets a new one
  }
  return Presence::kHere;
}

Result<Tried> OpenFiles::allocate(uint64_t ino, int mode, uint64_t offset, uint64_t length,
                                  Patience patience) {
  const bool takes = (mode & FALLOC_FL_PUNCH_HOLE) == 0;
  const auto file = inodes_.open_inode(ino, O_RDONLY);
  const auto before = file ? sys::stat_of(file->get()) : fail(ESTALE);
  const uid_t user = before ? before->st_uid : 0;
  const uint64_t missing =
      takes && before ? std::min(missing_bytes(file->get(), *before, offset, length), length) : 0;
  const bool has_shares = entries_.shares().has_shares();
  const Shares::Asking asking(entries_.shares(), user, missing);
  if (missing > 0 && (has_shares || capacity_.waiting().goes_before(patience))) {
    const Waited room = capacity_.wait_for_room(missing, patience, 0, user);
    if (room == Waited::kWouldWait) return Tried::kWouldWait;
    if (room == Waited::kNoRoom && entries_.shares().is_user_over(user)) {
      insight_.report_full(true);
      return fail(ENOSPC);
    }
  }
  // Room is made between the attempts, because nothing may wait here with the shard held.
  for (int attempt = 0;; ++attempt) {
    Result<void> done;
    {
      const LockedEntry entry(entries_.shard(ino), ino);
      if (entry == nullptr) return fail(ESTALE);
      auto fd = arena_.open(handle_of(*entry), O_RDWR);
      if (!fd) return pass(fd);
      // From here on what lies beyond the end belongs to the client, and stays when the client closes.
      if (takes) (void)reservations_.trim(*entry, fd->get());
      done = sys::allocate(fd->get(), mode, offset, length);
      if (done && takes && has_shares)
        if (const auto now = sys::stat_of(fd->get()))
          entries_.contents().charged(*entry, allocated_bytes_of(*now));
      if (done && takes && length >= std::max(capacity_.expected_entry_bytes(), kWholeBytes))
        preallocated(capacity_.writers(), ino, fd->get());
      if (done) return Tried::kDone;
      if (done.error().code != ENOSPC) return pass(done);
    }
    // A length beyond the pool's size evicts nothing, because no eviction can make room for it.
    const Waited room = length > capacity_.size_bytes() ? Waited::kNoRoom
                                                        : capacity_.wait_for_room(length, patience, 0, user);
    if (room == Waited::kWouldWait) return Tried::kWouldWait;
    if (room == Waited::kNoRoom || attempt == kRoomAttempts) {
      insight_.report_full(true);
      return pass(done);
    }
  }
}

}  // namespace kvcachefs
