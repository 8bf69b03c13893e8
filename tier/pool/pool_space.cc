// Capacity of a pool: memory that is promised and claimed before bytes arrive, and how a caller that needs
// room waits for it.
#include <linux/falloc.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/clock.h"
#include "base/log_limit.h"
#include "base/size.h"
#include "tier/pool/pool.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kStatBlockBytes = 512;

// A caller that has waited this long for room goes on without it.
constexpr uint64_t kRoomWaitNs = 2'000'000'000;
// The wait in a pool with durability, which discards nothing that the disk has not got yet.
constexpr uint64_t kSpillWaitNs = 30'000'000'000;
constexpr auto kPatience = std::chrono::milliseconds(50);
// A writer that closes gives back its promise sooner than an entry can be evicted instead.
constexpr uint64_t kClosingNs = 10'000'000;
constexpr auto kClosingPause = std::chrono::milliseconds(1);
// While other writers are at work, a full pool need not stay full.
constexpr auto kOthersPatience = std::chrono::milliseconds(20);

// Bytes that a writer which has outgrown its reservation may add before the evictor looks again. A tmpfs
// takes 26 GB/s with huge pages (docs/facts.md "tmpfs with huge=within_size"), so 64 MiB last 2.5 ms, and a
// round comes every millisecond. A small pool gives an eighth of itself.
constexpr uint64_t kGrowthBytes = uint64_t{64} << 20;
constexpr uint64_t kGrowthShare = 8;

// The watermarks keep 50 MiB free in a pool of kSmallPoolBytes: at one writer's 5 GB/s, enough for an evictor
// that is 10 ms late. In a smaller pool a writer gets passthrough only if half of the pool can be promised to
// it. In a larger one the promise is the expected size; where that is unknown or may be wrong, it is
// kUnknownBytes, which last for at least 50 ms.
constexpr uint64_t kSmallPoolBytes = uint64_t{1} << 30;
constexpr uint64_t kUnknownBytes = uint64_t{512} << 20;

// Memory that is allocated to a file and not written cannot be taken back while a process may write the file,
// because the file may grow between the look at its size and the punch. So at most this share of a pool is in
// that state.
constexpr uint64_t kReservedShare = 4;

// The kernel counts a tmpfs's blocks in batches per processor (lib/percpu_counter.c): not all that looks free
// can be had.
constexpr uint64_t kCountingSlackBytes = 256 << 10;
constexpr int kClaimAttempts = 3;
constexpr int kLinkAttempts = 40;

}  // namespace

uint64_t Pool::promise_bytes() const {
  const uint64_t expected = expected_entry_bytes();
  if (size_bytes_ >= kSmallPoolBytes && expected > 0 && learner_.largest_bytes() <= expected) return expected;
  return std::min<uint64_t>(size_bytes_ / 2, kUnknownBytes);
}

int Pool::make_way(int fd, int caller_thread) {
  const uint64_t expected = expected_entry_bytes();
  int node = 0;
  if (surroundings_.topology->node_count() > 1) {
    const int near = surroundings_.topology->node_of_thread(caller_thread);
    node = surroundings_.topology->node_with_room(near, std::max(expected, kGrowthBytes));
    // Placement is best effort: a file that is not placed lies where its writer runs.
    (void)surroundings_.topology->place_file(fd, node);
  }
  // The result does not matter: after a failure a write may still find memory that was promised and is not
  // used.
  if (expected > 0 && promise_bytes() == expected && entries_.evictable_bytes() > 0)
    (void)wait_for_room(expected, 0);
  return node;
}

bool Pool::admit_writer(const Entry& entry) {
  const uint64_t ino = entry.policy.ino;
  bool admitted = true;
  if (surroundings_.backing_store->needs_write_access())
    writers_.open(ino, entry.charged_bytes, false);
  else
    // Promises take at most half of the pool, because what writers through the daemon must leave free for
    // them is no reason to evict from a pool that is nearly empty.
    admitted = writers_.open(ino, entry.charged_bytes, promise_bytes(),
                             std::min<uint64_t>(arena_.usage().free_bytes, size_bytes_ / 2));
  surroundings_.evictor->wake_if_idle();
  return admitted;
}

bool Pool::has_room(uint64_t bytes, uint64_t own_promise_bytes) const {
  return arena_.usage().free_bytes + own_promise_bytes >= writers_.promised_bytes() + bytes;
}

bool Pool::wait_for_room(uint64_t bytes, uint64_t own_promise_bytes) {
  if (bytes == 0 || has_room(bytes, own_promise_bytes)) return true;
  if (retired()) return arena_.usage().free_bytes >= bytes;  // no entry of it can be evicted
  if (bytes > size_bytes_) return false;
  const uint64_t begun_ns = now_ns();
  const uint64_t patience_ns = durability() == Durability::kNone ? kRoomWaitNs : kSpillWaitNs;
  uint64_t activity_before = UINT64_MAX;
  bool found = false;
  for (;;) {
    const Room::Ticket ticket = room_.ticket();
    found = has_room(bytes, own_promise_bytes);
    const uint64_t waited_ns = now_ns() - begun_ns;
    if (found || waited_ns > patience_ns) break;
    // This wait may be longer than a request may take before it counts as hung (hang_after).
    if (surroundings_.survivors != nullptr) surroundings_.survivors->still_at_it();
    const uint64_t free_bytes = arena_.usage().free_bytes;
    if (waited_ns < kClosingNs && free_bytes >= bytes) {
      (void)room_.wait(Room::Whose::kWriter, ticket, kClosingPause);
      continue;
    }
    // Free memory that is promised to others is taken: nothing is evicted for the sake of promises, which may
    // never be used.
    found = free_bytes >= bytes + kCountingSlackBytes;
    if (found) break;
    Room::Answer answer;
    {
      Room::Demand demand(room_, Room::Whose::kWriter, bytes + kCountingSlackBytes);
      surroundings_.evictor->wake();
      answer = room_.wait(Room::Whose::kWriter, ticket, kPatience);
    }
    if (answer == Room::Answer::kTryAgain) continue;
    const uint64_t activity_now = activity();
    if (activity_now == activity_before || writers_.count() < 2) break;
    activity_before = activity_now;
    (void)room_.wait(Room::Whose::kWriter, room_.ticket(), kOthersPatience);
  }
  count(counters_.reservation_waits);
  count(counters_.reservation_wait_ns, now_ns() - begun_ns);
  return found;
}

bool Pool::claim(uint64_t ino, int fd, uint64_t bytes) {
  EntryTable::Shard& shard = entries_.shard(ino);
  for (int attempt = 0; attempt < kClaimAttempts; ++attempt) {
    if (!wait_for_room(bytes, writers_.promised_to(ino))) return false;
    MutexLock lock(shard.mutex);
    Entry* entry = shard.find(ino);
    const auto before = sys::stat_of(fd);
    if (entry == nullptr || entry->writer_count == 0 || entry->reserved_end > 0 || !before) return true;
    const UnseenChange unseen(entry->kept, fd, is_supervised());
    if (!sys::allocate(fd, FALLOC_FL_KEEP_SIZE, 0, bytes)) continue;
    entry->reserved_end = bytes;
    const uint64_t size = std::min(static_cast<uint64_t>(before->st_size), bytes);
    (void)writers_.seen(ino, size, bytes, bytes - size);
    return true;
  }
  return false;
}

void Pool::begin_writing(uint64_t ino) {
  const uint64_t bytes = expected_entry_bytes();
  if (bytes == 0) return;
  const uint64_t reserved = writers_.reserved_bytes();
  if (reserved > 0 && reserved + bytes > size_bytes_ / kReservedShare) return;
  UniqueFd fd;
  {
    EntryTable::Shard& shard = entries_.shard(ino);
    MutexLock lock(shard.mutex);
    const Entry* entry = shard.find(ino);
    if (entry == nullptr || entry->writer_count == 0 || entry->reserved_end > 0) return;
    auto opened = arena_.open(handle_of(*entry), O_RDWR | O_NONBLOCK);
    if (!opened) return;
    fd = std::move(*opened);
  }
  const auto before = sys::stat_of(fd.get());
  if (!before || before->st_blocks > 0) return;
  count(counters_.reservations);
  if (!claim(ino, fd.get(), bytes)) count(counters_.reservation_failures);
}

Result<void> Pool::make_symlink(const char* target, int directory, const char* name) {
  constexpr uint64_t kBlockBytes = 4096;
  for (int attempt = 0;; ++attempt) {
    auto made = sys::symlink_at(target, directory, name);
    if (made || made.error().code != ENOSPC) return made;
    if (!wait_for_room(kBlockBytes + kCountingSlackBytes, 0) || attempt == kLinkAttempts) {
      report_full(true);
      return made;
    }
  }
}

bool Pool::follow_writers() {
  const std::vector<uint64_t> writers = writers_.inodes();
  uint64_t growth_bytes = 0;
  for (const uint64_t ino : writers) growth_bytes += follow(ino);
  growth_bytes_.store(growth_bytes, std::memory_order_relaxed);
  return !writers.empty();
}

uint64_t Pool::follow(uint64_t ino) {
  EntryTable::Shard& shard = entries_.shard(ino);
  MutexLock lock(shard.mutex);
  Entry* entry = shard.find(ino);
  if (entry == nullptr || entry->writer_count == 0) return 0;
  auto fd = arena_.open(handle_of(*entry), O_RDWR | O_NONBLOCK);
  if (!fd) return 0;
  auto attributes = sys::stat_of(fd->get());
  if (!attributes) return 0;
  const auto size = static_cast<uint64_t>(attributes->st_size);
  const uint64_t allocated = static_cast<uint64_t>(attributes->st_blocks) * kStatBlockBytes;
  const uint64_t reserved = entry->reserved_end - std::min(entry->reserved_end, size);
  const Writers::Seen seen = writers_.seen(ino, size, allocated, reserved);
  if (!seen.active || !seen.passes) return 0;
  const uint64_t expected = expected_entry_bytes();
  const uint64_t ahead = reserved + seen.promised_bytes;
  const uint64_t growth = std::min(kGrowthBytes, size_bytes_ / kGrowthShare);
  // A file that will end within its reservation and promise needs no more.
  if (ahead >= growth || (size <= expected && size + ahead >= expected)) return 0;
  const uint64_t free = arena_.usage().free_bytes;
  writers_.raise(ino, growth);
  const uint64_t from = std::max(size, entry->reserved_end);
  const uint64_t to = size + 2 * growth;
  const uint64_t reserved_bytes = writers_.reserved_bytes() + to - from;
  if (entry->reserved_end == 0 || free <= 2 * (to - from) || reserved_bytes > size_bytes_ / kReservedShare)
    return growth;
  const UnseenChange unseen(entry->kept, fd->get(), is_supervised());
  if (sys::allocate(fd->get(), FALLOC_FL_KEEP_SIZE, from, to - from)) {
    entry->reserved_end = to;
    (void)writers_.seen(ino, size, allocated + (to - from), to - size);
  }
  return growth;
}

void Pool::report_full(bool told) {
  count(counters_.no_space_errors);
  static LogLimit log_limit;
  const PoolUsage now = usage();
  log_limit.warning(
      "pool {}: {}: {} of {} are in use, {} of it could be evicted; {} entries are open", name_,
      told ? "a client was told that there is no space" : "a client's write has met the end of the memory",
      format_size(now.used_bytes), format_size(now.size_bytes), format_size(now.evictable_bytes),
      now.open_entries);
}

}  // namespace kvcachefs
