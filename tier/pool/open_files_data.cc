// What comes to the daemon of the content of a pool's files: reads, writes, copies, cuts and allocations.
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

// Memory that the file lacks up to the offset `end`, if the file has no holes.
uint64_t missing_bytes(int fd, uint64_t end) {
  const auto attributes = sys::stat_of(fd);
  if (!attributes) return 0;
  return end - std::min(end, allocated_bytes_of(*attributes));
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

Result<size_t> OpenFiles::write(uint64_t ino, std::span<const char> bytes, uint64_t offset) {
  UniqueFd own;
  auto fd = io_descriptor(ino, O_RDWR, own);
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

Result<size_t> OpenFiles::copy_range(int from, uint64_t from_offset, int to, uint64_t to_offset,
                                     size_t bytes) {
  for (int attempt = 0;; ++attempt) {
    auto copied = sys::copy_range(from, from_offset, to, to_offset, bytes);
    if (copied || copied.error().code != ENOSPC) return copied;
    if (!capacity_.wait_for_room(std::min<uint64_t>(bytes, kCopyDemandBytes)) || attempt == kRoomAttempts) {
      insight_.report_full(true);
      return copied;
    }
  }
}

Result<Presence> OpenFiles::truncate(uint64_t ino, uint64_t size_bytes) {
  const LockedEntry entry(entries_.shard(ino), ino);
  if (entry == nullptr) return Presence::kGone;
  const bool lacks_content = entry->tier == Entry::Tier::kCold && size_bytes > 0;
  if (lacks_content && entry->removed) return Presence::kGone;
  if (lacks_content && disk_.tier() == nullptr) return disk_.presence_without();
  if (entry->disk.promoting() || lacks_content) return Presence::kCold;
  auto fd = arena_.open(handle_of(*entry), O_RDWR);
  if (!fd) return pass(fd);
  // A cold entry is cut before its mark says dirty, because its missing pages must not pass for content.
  // Any other is cut after its mark says so.
  const bool cold = entry->tier == Entry::Tier::kCold;
  if (cold)
    if (auto done = sys::truncate(fd->get(), 0); !done) return pass(done);
  fault_point("cold one cut");
  // A copy that was asked for while the mark numbers the entry is made after this too.
  const bool numbered =
      entry->disk.node_id != 0 || marks_.numbers_at_open() || marks_.is_numbered(*entry, fd->get());
  entries_.cut(*entry, size_bytes == 0);
  if (size_bytes == 0) {
    entry->memory.wants_reservation = true;
    if (entry->tier == Entry::Tier::kDirty && numbered) (void)marks_.number(*entry, fd->get());
  }
  marks_.became_dirty(*entry, fd->get());
  fault_point("marked dirty");
  if (!cold)
    if (auto done = sys::truncate(fd->get(), size_bytes); !done) return pass(done);
  if (entry->writer_count == 0) {
    const auto attributes = sys::stat_of(fd->get());
    if (attributes && !entries_.resized(*entry, bytes_of(*attributes), capacity_.pinned_max_bytes()))
      tree_.lost_its_pin(*entry);
    disk_.spill_by_itself(*entry);
  } else if (size_bytes == 0) {
    entry->memory.reserved_end = 0;  // gone with the content: a writer that starts over gets a new one
  }
  return Presence::kHere;
}

Result<void> OpenFiles::allocate(uint64_t ino, int mode, uint64_t offset, uint64_t length) {
  // Room is made between the attempts, because nothing may wait here with the shard held.
  for (int attempt = 0;; ++attempt) {
    Result<void> done;
    {
      const LockedEntry entry(entries_.shard(ino), ino);
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
