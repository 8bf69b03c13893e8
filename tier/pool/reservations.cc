#include "tier/pool/reservations.h"

#include <linux/falloc.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "alloc/unwritten.h"
#include "base/clock.h"
#include "base/fault_point.h"
#include "tier/blocks.h"

namespace kvcachefs {

constexpr uint64_t kNothingReserved = 1;  // no reservation, but the file may have holes that take memory
constexpr uint64_t kGrowthShare = 8;      // a small pool lets a writer grow by this share of itself

// Memory that is allocated to a file and not written cannot be taken back while a process may write the file,
// because the file may grow between the look at its size and the punch. So at most this share of a pool is in
// that state.
constexpr uint64_t kReservedShare = 4;

// Reservations leave this share of a pool free, so that the writes and creates of other clients need not wait
// for room. Reservations of users within their shares leave kUnreservedBytes at most.
constexpr uint64_t kUnreservedShare = 32;
constexpr uint64_t kUnreservedBytes = uint64_t{16} << 20;

// Other writers may take the room between the look at it and the allocation: with the server killed all the
// time, three attempts lost it once in some 40 runs of a client.
constexpr int kClaimAttempts = 32;
constexpr uint64_t kClaimNs = 2'000'000'000;

// Idle writers that are looked at in a round in which memory has moved: 0.2 ms. With 20,000 of them one that
// goes on is seen within 0.3 s, and until then writes into what is kept free.
constexpr size_t kIdleALook = 64;

uint64_t Reservations::unclaimed_bytes(uint64_t own_promise_bytes, uid_t user, Patience patience) const {
  if (capacity_.waiting().goes_before(patience)) return 0;
  uint64_t kept = capacity_.size_bytes() / kUnreservedShare;
  if (!entries_.shares().is_user_over(user)) kept = std::min(kept, kUnreservedBytes);
  kept = std::max(kept, Capacity::kCountingSlackBytes) + capacity_.room().wanted_bytes(Room::Whose::kWriter) +
         capacity_.writers().promised_bytes();
  const uint64_t free = capacity_.free_bytes(true) + own_promise_bytes;
  return (free - std::min(free, kept)) / kBlockBytes * kBlockBytes;
}

Waited Reservations::claim(uint64_t ino, int fd, Capacity::Reservation its, Patience patience) {
  const uint64_t begun_ns = now_ns();
  const auto file = sys::stat_of(fd);
  const uid_t user = file ? file->st_uid : 0;
  for (int attempt = 0; attempt < kClaimAttempts && now_ns() - begun_ns < kClaimNs; ++attempt) {
    const uint64_t promised = capacity_.writers().promised_to(ino);
    const uint64_t unclaimed = unclaimed_bytes(promised, user, patience);
    const uint64_t bytes = std::min(its.end - its.begin, std::max(unclaimed, promised));
    if (bytes == 0) return Waited::kRoom;
    // A writer with passthrough gets what it was promised. Beyond that no entry is evicted for memory that
    // may never be written.
    const Waited room =
        bytes > unclaimed ? capacity_.wait_for_room(bytes, patience, promised, user) : Waited::kRoom;
    if (room != Waited::kRoom) return room;
    const LockedEntry entry(entries_.shard(ino), ino);
    const auto before = sys::stat_of(fd);
    if (entry == nullptr || entry->writer_count == 0 || entry->memory.reserved_end > 0 || !before)
      return Waited::kRoom;
    if (!entry->memory.gets_reservation) return Waited::kRoom;
    const UnseenChange unseen(entry->kept, fd, is_supervised());
    if (injected_error("claim room") != 0 || !sys::allocate(fd, FALLOC_FL_KEEP_SIZE, its.begin, bytes))
      continue;
    const uint64_t end = its.begin + bytes;
    entry->memory.reserved_end = end;
    count(counters_.reservations);
    const uint64_t size = std::min(size_of(*before), end);
    (void)capacity_.writers().seen(ino, size, bytes, std::min(bytes, end - size));
    return Waited::kRoom;
  }
  return Waited::kNoRoom;
}

Tried Reservations::begin_writing(uint64_t ino, Patience patience) {
  // Writes beyond the reservation are charged to the client's memory cgroup, which may have a low limit
  // (docs/facts.md). So a writer gets much in a pool that has learned nothing yet, if so much is free.
  Capacity::Reservation its;
  const bool is_known = capacity_.expected_entry_bytes() > 0;
  UniqueFd fd;
  {
    const LockedEntry entry(entries_.shard(ino), ino);
    if (entry == nullptr || entry->writer_count == 0 || entry->memory.reserved_end > 0) return Tried::kDone;
    // The kernel asks before the first write of a new or truncated file. Any user may ask later, while a
    // write past the daemon waits for its source and keeps the lock that allocating takes.
    entry->memory.gets_reservation = std::exchange(entry->memory.wants_reservation, false);
    if (!entry->memory.gets_reservation) return Tried::kDone;
    its = capacity_.reservation(entry->disk.name_class);
    const uint64_t bytes = its.end - its.begin;
    const uint64_t reserved = capacity_.writers().reserved_bytes();
    if (reserved > 0 && reserved + bytes > capacity_.size_bytes() / kReservedShare) return Tried::kDone;
    if (!is_known && !capacity_.has_room(bytes, capacity_.writers().promised_to(ino))) return Tried::kDone;
    auto opened = arena_.open(handle_of(*entry), O_RDWR | O_NONBLOCK);
    if (!opened) return Tried::kDone;
    fd = std::move(*opened);
  }
  const auto before = sys::stat_of(fd.get());
  if (!before || before->st_blocks > 0) return Tried::kDone;
  const Waited room = claim(ino, fd.get(), its, patience);
  if (room == Waited::kWouldWait) {
    // If another request of the kind has come meanwhile, the file's writer may be at work.
    const LockedEntry entry(entries_.shard(ino), ino);
    if (entry != nullptr && entry->memory.gets_reservation) entry->memory.wants_reservation = true;
    return Tried::kWouldWait;
  }
  if (room == Waited::kNoRoom) {
    count(counters_.reservations);
    count(counters_.reservation_failures);
  }
  return Tried::kDone;
}

bool Reservations::follow_writers() {
  // A writer that goes on after a pause takes memory, unless it writes into memory that it has, which needs
  // no look.
  const uint64_t activity = capacity_.activity();
  const size_t idle = std::exchange(last_activity_, activity) == activity ? 0 : kIdleALook;
  uint64_t growth_bytes = 0, within_shares = 0;
  for (const uint64_t ino : capacity_.writers().next_to_see(idle)) {
    const Growth growth = follow(ino);
    growth_bytes += growth.bytes;
    if (growth.bytes > 0 && !entries_.shares().is_over(growth.owner)) within_shares += growth.bytes;
  }
  capacity_.expect_growth(growth_bytes, within_shares);
  return capacity_.writers().count() > 0;
}

Reservations::Growth Reservations::follow(uint64_t ino) {
  const LockedEntry entry(entries_.shard(ino), ino);
  if (entry == nullptr || entry->writer_count == 0) return {};
  // The file is looked at and not changed: a write past the daemon holds the inode's lock for as long as its
  // pages of the source need to come, and they may come from this daemon.
  auto fd = arena_.open(handle_of(*entry), O_PATH);
  if (!fd) return {};
  auto attributes = sys::stat_of(fd->get());
  if (!attributes) return {};
  const auto size = size_of(*attributes);
  const uint64_t allocated = allocated_bytes_of(*attributes);
  entries_.contents().charged(*entry, allocated);
  const uint64_t to_come = entry->memory.reserved_end - std::min(entry->memory.reserved_end, size);
  // The first huge page of a reservation may have no memory yet.
  const uint64_t reserved = std::min(to_come, allocated - std::min(allocated, size));
  const Writers::Seen seen = capacity_.writers().seen(ino, size, allocated, reserved);
  if (!seen.active || !seen.passes) return {};
  const uint64_t expected = capacity_.expected_entry_bytes();
  const uint64_t ahead = to_come + seen.promised_bytes;
  const uint64_t growth = std::min(Capacity::kGrowthBytes, capacity_.size_bytes() / kGrowthShare);
  // A file that will end within its reservation and promise needs no more. One that was promised its growth
  // and has not used it since the last round may do so before the next.
  if (ahead > growth || (size <= expected && size + ahead >= expected)) return {};
  capacity_.writers().raise(ino, growth);
  return {growth, entry->policy.owner};
}

uint64_t Reservations::trim(Entry& entry, int fd) {
  auto attributes = sys::stat_of(fd);
  if (!attributes) return 0;
  const auto size = size_of(*attributes);
  const uint64_t keep = rounded_up(size);
  // The end is rounded up to a block, because punching a part of a block zeroes the bytes and frees no
  // memory.
  const uint64_t end = rounded_up(entry.memory.reserved_end);
  if (end > keep) {
    const UnseenChange unseen(entry.kept, fd, is_supervised());
    (void)sys::allocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, keep, end - keep);
  }
  entry.memory.reserved_end = 0;
  return size;
}

Entries::FileBytes Reservations::settle(Entry& entry) {
  const auto fd = arena_.open(handle_of(entry), O_RDWR | O_NONBLOCK | O_NOATIME);
  const Entries::FileBytes as_before = {entry.memory.charged_bytes, entry.memory.whole_bytes()};
  if (!fd) return as_before;
  const uint64_t reserved_end = entry.memory.reserved_end;
  const uint64_t size = trim(entry, fd->get());
  // A file with holes says nothing of the memory that the next entry needs.
  if (size > 0 && may_have_unwritten(fd->get(), reserved_end, size))
    entry.memory.reserved_end = std::max(reserved_end, kNothingReserved);
  else if (size > 0)
    capacity_.stored(size, entry.disk.name_class);
  const auto attributes = sys::stat_of(fd->get());
  return attributes ? bytes_of(*attributes) : as_before;
}

void Reservations::give_back_holes(Entry& entry) {
  if (entry.tier == Entry::Tier::kCold) return;  // its file has no blocks
  // The daemon may write for one of the writers, and a lease tells nothing of that between two writes.
  if (entry.writer_count > 0 && entry.direct_count > 0) return;
  const bool daemon_writes = surroundings_.backing_store->needs_write_access();
  {
    // The lease proves, as in begin_spill(), that from here on a writer has to come by begin_open().
    const auto reader = arena_.open(handle_of(entry), O_RDONLY | O_NONBLOCK | O_NOATIME);
    if (!reader) return;
    const bool leased = sys::set_lease(reader->get(), F_RDLCK).has_value();
    if (leased) (void)sys::set_lease(reader->get(), F_UNLCK);
    if (!leased && !(daemon_writes && entry.writer_count == 0)) return;
  }
  auto fd = arena_.open(handle_of(entry), O_RDWR | O_NONBLOCK | O_NOATIME);
  const auto attributes = fd ? sys::stat_of(fd->get()) : pass(fd);
  if (!attributes) return;
  const auto size = size_of(*attributes);
  const UnseenChange unseen(entry.kept, fd->get(), is_supervised());
  const uint64_t reserved_end =
      entry.memory.reserved_end == kNothingReserved ? 0 : std::min(entry.memory.reserved_end, size);
  const GivenBack given_back = give_back_unwritten(fd->get(), reserved_end, size);
  if (given_back != GivenBack::kNothing) entries_.contents().shrunk(entry);
  if (entry.writer_count > 0) return;  // the last close is on its way, and gives back the rest
  if (given_back != GivenBack::kMoreToCome) entry.memory.reserved_end = 0;
  if (const auto now = sys::stat_of(fd->get())) entries_.contents().charged(entry, allocated_bytes_of(*now));
}

}  // namespace kvcachefs
