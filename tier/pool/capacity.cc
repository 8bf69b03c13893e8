#include "tier/pool/capacity.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "tier/blocks.h"
#include "tier/pool/headroom.h"

namespace kvcachefs {

// A request that came this long ago goes on without room.
constexpr uint64_t kRoomWaitNs = 2'000'000'000;
// The wait in a pool with durability, which discards nothing that the disk has not got yet.
constexpr uint64_t kSpillWaitNs = 30'000'000'000;
constexpr auto kPatience = std::chrono::milliseconds(50);
// A writer that closes gives back its promise sooner than an entry can be evicted instead.
constexpr uint64_t kClosingNs = 10'000'000;
constexpr auto kClosingPause = std::chrono::milliseconds(1);
// While other writers are at work, a full pool need not stay full.
constexpr auto kOthersPatience = std::chrono::milliseconds(20);

// In a pool that is not small (kSmallPoolBytes) the promise is the expected size; where that is unknown or
// may be wrong, it is kUnknownBytes, which last for at least 50 ms.
constexpr uint64_t kUnknownBytes = uint64_t{512} << 20;

// Wrong guesses must cost little. The learned size stays below an eighth of the pool, and below
// kLearnedMaxBytes. Larger entries grow into the memory that is kept free.
constexpr uint64_t kLearnedShare = 8;
constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

// A request that is queued for room counts as one that needs this much: a write has no more. One that needs
// more is counted as it is once it waits.
constexpr uint64_t kQueuedBytes = uint64_t{1} << 20;

// Users over their shares leave this part of a pool free; otherwise they would take memory that was just
// freed for another user.
constexpr uint64_t kOthersShare = 32;

uint64_t Capacity::expected_entry_bytes() const {
  const uint64_t given = entry_size_bytes_;
  return given > 0 ? given : learned_entry_bytes();
}

uint64_t Capacity::learned_entry_bytes() const {
  return std::min({learner_.expected_bytes(), size_bytes() / kLearnedShare, kLearnedMaxBytes});
}

Capacity::Reservation Capacity::reservation(uint8_t name_class) const {
  if (const uint64_t given = entry_size_bytes_; given > 0) return {.end = given};
  const uint64_t most = std::min(size_bytes() / kLearnedShare, kLearnedMaxBytes);
  const uint64_t of_class = by_name_.expected_bytes(name_class);
  const uint64_t expected = of_class > 0 ? of_class : learner_.expected_bytes();
  const uint64_t end = expected > 0 ? std::min(expected, most) : most;
  const bool are_mixed = of_class > 0 && by_name_.smallest_bytes(name_class) < kHugePageBytes / 2;
  return {.begin = are_mixed && end > kHugePageBytes ? kHugePageBytes : 0, .end = end};
}

uint64_t Capacity::promise_bytes() const {
  const uint64_t expected = expected_entry_bytes();
  if (size_bytes() >= kSmallPoolBytes && expected > 0 && learner_.largest_bytes() <= expected)
    return expected;
  return std::min(limit_.bytes() / 2, kUnknownBytes);
}

bool Capacity::admit_writer(uint64_t ino, uint64_t charged_bytes, uint8_t owner) {
  bool admitted = true;
  if (surroundings_.backing_store->needs_write_access())
    writers_.open(ino, charged_bytes, false);
  else
    // Promises take at most half of the pool, because what writers through the daemon must leave free for
    // them is no reason to evict from a pool that is nearly empty.
    admitted =
        writers_.open(ino, charged_bytes, promise_bytes(), std::min(free_bytes(true), limit_.bytes() / 2));
  writers_.owned(ino, owner);
  surroundings_.evictor->wake_if_idle();
  return admitted;
}

bool Capacity::has_room(uint64_t bytes, uint64_t own_promise_bytes) const {
  return free_bytes(true) + own_promise_bytes >= writers_.promised_bytes() + bytes;
}

uint64_t Capacity::free_bytes(bool even_promised) const {
  const uint64_t free_bytes = limit_.free_bytes(arena_.usage());
  return free_bytes - (even_promised ? 0 : std::min(free_bytes, writers_.promised_bytes()));
}

Waited Capacity::wait_for_room(uint64_t bytes, Patience patience, uint64_t own_promise_bytes, uid_t user) {
  if (bytes == 0) return Waited::kRoom;
  const auto left_to_others = [&] {
    return shares_.is_user_over(user) ? room_.wanted_bytes(Room::Whose::kWriter) + size_bytes() / kOthersShare
                                      : 0;
  };
  uint64_t others_bytes = left_to_others();
  if (waiting_.goes_before(patience))
    others_bytes += room_.wanted_bytes(Room::Whose::kWriter) + waiting_.size() * kQueuedBytes;
  if (has_room(bytes + others_bytes, own_promise_bytes)) return Waited::kRoom;
  if (closed() || waiting_.waits_ended())
    return arena_.usage().free_bytes >= bytes ? Waited::kRoom : Waited::kNoRoom;
  if (bytes > size_bytes()) return Waited::kNoRoom;
  if (!patience.may_wait) return Waited::kWouldWait;
  const uint64_t begun_ns = now_ns();
  const uint64_t patience_ns = loses_nothing_ ? kSpillWaitNs : kRoomWaitNs;
  uint64_t activity_before = UINT64_MAX;
  bool found = false;
  for (;;) {
    const Room::Ticket ticket = room_.ticket();
    const bool is_over = shares_.is_user_over(user);  // eviction may change that
    const auto whose = is_over ? Room::Whose::kOver : Room::Whose::kWriter;
    const uint64_t needed = bytes + left_to_others();
    found = has_room(needed, own_promise_bytes);
    if (found || closed() || waiting_.waits_ended() || now_ns() - patience.begun_ns > patience_ns) break;
    // This wait may be longer than a request may take before it counts as hung (hang_after).
    surroundings_.still_at_it();
    const uint64_t free_bytes = this->free_bytes(true);
    if (now_ns() - begun_ns < kClosingNs && free_bytes >= needed) {
      (void)room_.wait(whose, ticket, kClosingPause);
      continue;
    }
    // Free memory that is promised to others is taken: nothing is evicted for the sake of promises, which may
    // never be used.
    found = free_bytes >= needed + kCountingSlackBytes;
    if (found) break;
    Room::Answer answer;
    {
      Room::Demand demand(room_, whose, needed + kCountingSlackBytes);
      surroundings_.evictor->wake();
      answer = room_.wait(whose, ticket, kPatience);
    }
    if (answer == Room::Answer::kTryAgain || is_over != shares_.is_user_over(user)) continue;
    const uint64_t activity_now = activity();
    if (activity_now == activity_before || writers_.count() < 2) break;
    activity_before = activity_now;
    (void)room_.wait(whose, room_.ticket(), kOthersPatience);
  }
  count(counters_.reservation_waits);
  count(counters_.reservation_wait_ns, now_ns() - begun_ns);
  return found ? Waited::kRoom : Waited::kNoRoom;
}

uint64_t Capacity::pressure_bytes(bool even_over) {
  const ArenaUsage now = arena_.usage();
  const Watermarks marks = limit_.watermarks();
  // Because free space must be there before writers need it, room for a few entries is kept beyond the
  // watermarks.
  const uint64_t expected = expected_entry_bytes();
  // Names do not leave with data, so the watermarks apply to the memory beside the names and the index.
  const uint64_t size = now.size_bytes - now.overhead_bytes();
  const bool passes = !surroundings_.backing_store->needs_write_access();
  const WritersNeed writing = {expected, growth_bytes(even_over), passes};
  const uint64_t headroom = headroom_bytes(size, writing);
  const uint64_t high = std::min(size / 100 * marks.high_percent, size - headroom);
  const uint64_t low = std::min(size / 100 * marks.low_percent, high - std::min(high / 8, expected));
  const uint64_t excess = even_over ? 0 : shares_.excess().data_bytes;
  const uint64_t taken = now.data_bytes() - std::min(now.data_bytes(), excess);
  // No entry leaves for a reservation: its bytes come back when the writer closes the file.
  const uint64_t used = taken - std::min(taken, writers_.reserved_bytes());
  if (even_over && used > high) evicting_ = true;
  if (even_over && used <= low) evicting_ = false;
  const uint64_t most = size - outgrowth_bytes(size, writing);
  const uint64_t beyond = taken - std::min(taken, most);
  if (even_over) lacks_outgrowth_ = beyond > 0;
  uint64_t pressure =
      std::max({evicting_ ? used - std::min(used, low) : 0, beyond, pressure_of_host(now.used_bytes())});
  // Room for a waiting writer is not taken from memory that was promised to another writer within the share
  // of its user.
  if (uint64_t wanted = room_.wanted_bytes() - (even_over ? 0 : room_.wanted_bytes(Room::Whose::kOver));
      wanted > 0) {
    wanted += shares_.has_shares() ? shares_.within(writers_.promised_by_owner()) : writers_.promised_bytes();
    const uint64_t free_bytes = limit_.free_bytes(now);
    if (wanted > free_bytes) pressure = std::max(pressure, wanted - free_bytes);
  }
  return pressure;
}

uint64_t Capacity::pressure_of_host(uint64_t used_bytes) {
  const uint64_t above = limit_.is_lowered() ? limit_.above_ceiling_bytes(used_bytes) : 0;
  if (above == 0) giving_way_ = false;
  if (above > limit_.slack_bytes() / 2) giving_way_ = true;
  return giving_way_ ? above : 0;
}

void Capacity::give_way(uint64_t bytes) {
  const uint64_t now = std::min(arena_.usage().used_bytes(), limit_.ceiling_bytes());
  limit_.set_ceiling(now - std::min(now, bytes));
  giving_way_ = true;
  surroundings_.evictor->wake();
}

uint64_t Capacity::leaving_bytes() const {
  return limit_.is_lowered() ? limit_.above_ceiling_bytes(arena_.usage().used_bytes()) : 0;
}

bool Capacity::writer_outruns(bool even_over) const {
  return free_bytes(true) < growth_bytes(even_over);
}

uint64_t Capacity::activity() const {
  return arena_.usage().free_bytes + counters_.creates.load(std::memory_order_relaxed);
}

}  // namespace kvcachefs
