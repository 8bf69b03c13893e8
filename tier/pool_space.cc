// Capacity of a pool: what is claimed before bytes arrive, and how those who claim wait for the evictor.
#include <linux/falloc.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/clock.h"
#include "tier/pool.h"

namespace kvcachefs {
namespace {

// A create that has waited this long is answered without a reservation: the client's own write then meets the
// wall, or finds the room that was made meanwhile.
constexpr uint64_t kReserveWaitNs = 2'000'000'000;
// The same where nothing may be lost that the disk has not got yet.
constexpr uint64_t kSpillWaitNs = 30'000'000'000;
constexpr auto kReservePatience = std::chrono::milliseconds(50);

// What a writer that has outgrown its reservation may add before the evictor looks again: a tmpfs takes
// 26 GB/s with huge pages (spikes/README.md), so this lasts 2.5 ms where a round comes every millisecond. A
// small pool gives an eighth of itself.
constexpr uint64_t kGrowthBytes = uint64_t{64} << 20;
constexpr uint64_t kGrowthShare = 8;

// The kernel counts a tmpfs's blocks in batches a processor (lib/percpu_counter.c): what looks free may not
// all be had.
constexpr uint64_t kCountingSlackBytes = 256 << 10;

}  // namespace

Result<Pool::Reservation> Pool::reserve(int fd, int caller_thread) {
  const uint64_t expected = expected_entry_bytes();
  Reservation reservation{.end = 0, .node = 0};
  if (surroundings_.topology->node_count() > 1) {
    const int near = surroundings_.topology->node_of_thread(caller_thread);
    reservation.node = surroundings_.topology->node_with_room(near, std::max(expected, kGrowthBytes));
    // Best effort: a file that is not placed lies where its writer runs.
    (void)surroundings_.topology->place_file(fd, reservation.node);
  }
  if (expected == 0) return reservation;

  if (claim(fd, expected)) {
    reservation.end = expected;
  } else if (arena_.usage().free_bytes == 0) {
    return fail(ENOSPC);
  }
  return reservation;
}

bool Pool::claim(int fd, uint64_t bytes) {
  count(counters_.reservations);
  const uint64_t begun_ns = now_ns();
  bool claimed = false;
  bool waited = false;
  for (;;) {
    const Room::Ticket ticket = room_.ticket();
    const auto allocated = sys::allocate(fd, FALLOC_FL_KEEP_SIZE, 0, bytes);
    claimed = allocated.has_value();
    const uint64_t patience_ns = durability() == Durability::kNone ? kReserveWaitNs : kSpillWaitNs;
    if (claimed || allocated.error().code != ENOSPC || now_ns() - begun_ns > patience_ns ||
        bytes > size_bytes_)
      break;
    waited = true;
    // Longer than what a request may take that hangs (hang_after).
    if (surroundings_.survivors != nullptr) surroundings_.survivors->still_at_it();
    Room::Demand demand(room_, Room::Whose::kWriter, bytes + kCountingSlackBytes);
    surroundings_.evictor->wake();
    if (room_.wait(Room::Whose::kWriter, ticket, kReservePatience) == Room::Answer::kNothingToEvict) break;
  }
  if (waited) {
    count(counters_.reservation_waits);
    count(counters_.reservation_wait_ns, now_ns() - begun_ns);
  }
  if (!claimed) count(counters_.reservation_failures);
  return claimed;
}

void Pool::reserve_again(uint64_t ino, uint64_t bytes) {
  EntryTable::Shard& shard = table_.shard(ino);
  UniqueFd fd;
  {
    MutexLock lock(shard.mutex);
    const Entry* entry = shard.find(ino);
    if (entry == nullptr) return;
    auto opened = arena_.open(handle_of(*entry), O_RDWR | O_NONBLOCK);
    if (!opened) return;
    fd = std::move(*opened);
  }
  if (!claim(fd.get(), bytes)) return;
  MutexLock lock(shard.mutex);
  Entry* entry = shard.find(ino);
  if (entry == nullptr) return;
  entry->reserved_end = std::max(entry->reserved_end, bytes);
  // Closed while this waited: nobody else would give it back.
  if (entry->writer_count == 0) (void)trim(*entry, fd.get());
}

bool Pool::extend_reservations() {
  std::vector<uint64_t> writers;
  {
    MutexLock lock(writers_mutex_);
    writers.assign(writers_.begin(), writers_.end());
  }
  uint64_t growth_bytes = 0;
  for (const uint64_t ino : writers) growth_bytes += extend_reservation(ino);
  growth_bytes_.store(growth_bytes, std::memory_order_relaxed);
  return !writers.empty();
}

uint64_t Pool::extend_reservation(uint64_t ino) {
  EntryTable::Shard& shard = table_.shard(ino);
  MutexLock lock(shard.mutex);
  Entry* entry = shard.find(ino);
  if (entry == nullptr || entry->writer_count == 0) return 0;
  auto fd = arena_.open(handle_of(*entry), O_RDWR | O_NONBLOCK);
  if (!fd) return 0;
  auto attributes = sys::stat_of(fd->get());
  if (!attributes) return 0;
  const auto size = static_cast<uint64_t>(attributes->st_size);
  if (size == 0 && entry->reserved_end == 0 && entry->stage == Entry::Stage::kWritten) {
    const uint64_t expected = expected_entry_bytes();
    if (expected > 0 && sys::allocate(fd->get(), FALLOC_FL_KEEP_SIZE, 0, expected))
      entry->reserved_end = expected;
    return 0;
  }
  // Only what the daemon reserved for is extended: a file that is updated in place, or was allocated by its
  // owner, needs nothing.
  const uint64_t growth = std::min(kGrowthBytes, size_bytes_ / kGrowthShare);
  if (entry->reserved_end == 0 || size < entry->reserved_end / 2 + entry->reserved_end / 4) return 0;
  if (size <= expected_entry_bytes() && entry->reserved_end >= expected_entry_bytes()) return 0;
  if (size + growth <= entry->reserved_end) return growth;
  const uint64_t from = std::max(size, entry->reserved_end);
  const uint64_t to = size + 2 * growth;
  if (arena_.usage().free_bytes > 2 * (to - from) &&
      sys::allocate(fd->get(), FALLOC_FL_KEEP_SIZE, from, to - from))
    entry->reserved_end = to;
  return growth;
}

}  // namespace kvcachefs
