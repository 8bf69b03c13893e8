#include "tier/pool/memory_watch.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/size.h"
#include "tier/blocks.h"

namespace kvcachefs {
namespace {

using std::chrono::milliseconds;

// A look takes 40 us. Twice as much as two processors clear for a process (8 GB/s each, measured with
// huge pages): a step comes before that has used up what is beyond the reserve.
constexpr uint64_t kTakenBytesAMs = uint64_t{16} << 20;
constexpr uint64_t kShortestMs = 10;
constexpr uint64_t kLongestMs = 200;
constexpr milliseconds kVainPause{100};  // while nothing more can be given
constexpr uint64_t kLeastBytes = uint64_t{64} << 20;
// What has not left for so long waits for a disk, or was stored a moment ago: others are asked for it.
constexpr uint64_t kStuckNs = 200'000'000;
// What is given back is kept below the reserve by this share of it: else each page that a process takes would
// have the pools give it again.
constexpr uint64_t kApartShare = 8;

// A pool needs room for the entries that are being written, whatever its floor is.
uint64_t floor_of(Pool& pool, unsigned percent) {
  const uint64_t size = pool.capacity().size_bytes();
  const uint64_t least = std::max(kLeastBytes, 4 * pool.capacity().expected_entry_bytes());
  // Names do not leave, nor does the index.
  return pool.insight().inode_usage().overhead_bytes() +
         std::max(percent_of(size, percent), std::min(size, least));
}

Giver giver_of(Pool& pool, unsigned floor_percent) {
  const PoolUsage usage = pool.insight().usage();
  return {.size_bytes = usage.size_bytes,
          .used_bytes = usage.used_bytes,
          .evictable_bytes = usage.evictable_bytes,
          .floor_bytes = floor_of(pool, floor_percent),
          .leaving_bytes = std::min(pool.capacity().leaving_bytes(), usage.evictable_bytes),
          .ceiling_bytes = pool.capacity().limit().ceiling_bytes()};
}

}  // namespace

uint64_t Giver::spare_bytes() const {
  const uint64_t above_floor = used_bytes - std::min(used_bytes, floor_bytes);
  const uint64_t most = std::min(above_floor, evictable_bytes);
  return most - std::min(most, leaving_bytes);
}

uint64_t take_back(uint64_t lacking_bytes, std::span<Giver> givers) {
  uint64_t spare = 0;
  for (const Giver& giver : givers) spare += giver.spare_bytes();
  if (spare == 0) return lacking_bytes;
  const double share = std::min(1.0, static_cast<double>(lacking_bytes) / static_cast<double>(spare));
  for (Giver& giver : givers)
    giver.given_bytes = static_cast<uint64_t>(static_cast<double>(giver.spare_bytes()) * share);
  return lacking_bytes - std::min(lacking_bytes, spare);
}

void give_back(uint64_t spare_bytes, std::span<Giver> givers) {
  const auto wanted = [](const Giver& giver) {
    return giver.ceiling_bytes < giver.size_bytes
               ? giver.size_bytes - std::min(giver.size_bytes, giver.used_bytes)
               : 0;
  };
  uint64_t all_wanted = 0;
  for (const Giver& giver : givers) all_wanted += wanted(giver);
  const double share =
      all_wanted == 0 ? 0 : std::min(1.0, static_cast<double>(spare_bytes) / static_cast<double>(all_wanted));
  for (Giver& giver : givers) {
    const auto more = static_cast<uint64_t>(static_cast<double>(wanted(giver)) * share);
    giver.ceiling_bytes = std::max(giver.ceiling_bytes, giver.used_bytes + more);
    if (share == 1.0 || giver.ceiling_bytes >= giver.size_bytes) giver.ceiling_bytes = PoolLimit::kNone;
  }
}

milliseconds MemoryWatch::step() {
  const uint64_t available = reader_.read().available_bytes;
  const bool lacks = available < rules_.reserve_bytes;
  if (!lacks && !gives_way_) {
    const uint64_t beyond = available - rules_.reserve_bytes;
    return milliseconds(std::clamp(beyond / kTakenBytesAMs, kShortestMs, kLongestMs));
  }
  std::vector<std::shared_ptr<Pool>> pools = pools_.all();
  std::erase_if(pools, [](const auto& pool) { return pool->retired(); });
  std::vector<Giver> givers;
  givers.reserve(pools.size());
  for (const auto& pool : pools) givers.push_back(giver_of(*pool, rules_.floor_percent));
  return lacks ? shrink(available, pools, givers) : grow(available, pools, givers);
}

milliseconds MemoryWatch::shrink(uint64_t available_bytes, const PoolList& pools, std::span<Giver> givers) {
  const uint64_t lacking = rules_.reserve_bytes - available_bytes;
  uint64_t used = 0, leaving = 0;
  for (const Giver& giver : givers) used += giver.used_bytes, leaving += giver.leaving_bytes;
  const uint64_t now = now_ns();
  if (leaving == 0 || used < last_used_bytes_) progressed_ns_ = now;
  last_used_bytes_ = used;
  if (now - progressed_ns_ > kStuckNs) leaving = 0;
  const uint64_t still_lacking = lacking > leaving ? take_back(lacking - leaving, givers) : 0;
  bool any = false;
  for (size_t i = 0; i < pools.size(); ++i) {
    const uint64_t given = givers[i].given_bytes;
    if (given == 0 && givers[i].leaving_bytes == 0) continue;
    any |= given > 0;
    count(pools[i]->counters().gave_way_bytes, given);
    pools[i]->capacity().give_way(given);
  }
  gives_way_ |= any;
  if (any)
    began_.warning("{} of memory are available, and memory_reserve is {}: the pools give way",
                   format_size(available_bytes), format_size(rules_.reserve_bytes));
  if (still_lacking > 0)
    vain_.warning(
        "{} of memory are available, and memory_reserve is {}: what the pools still have is below "
        "shrink_floor, pinned or in use",
        format_size(available_bytes), format_size(rules_.reserve_bytes));
  return any || leaving > 0 ? milliseconds(kShortestMs) : kVainPause;
}

milliseconds MemoryWatch::grow(uint64_t available_bytes, const PoolList& pools, std::span<Giver> givers) {
  const uint64_t beyond = available_bytes - rules_.reserve_bytes;
  const uint64_t apart = rules_.reserve_bytes / kApartShare;
  give_back(beyond - std::min(beyond, apart), givers);
  progressed_ns_ = now_ns();  // for the next shortage
  gives_way_ = false;
  for (size_t i = 0; i < pools.size(); ++i) {
    pools[i]->capacity().limit().set_ceiling(givers[i].ceiling_bytes);
    gives_way_ |= givers[i].ceiling_bytes != PoolLimit::kNone;
  }
  if (!gives_way_)
    ended_.warning("{} of memory are available: the pools may have their sizes again",
                   format_size(available_bytes));
  return milliseconds(std::clamp(beyond / kTakenBytesAMs, kShortestMs, kLongestMs));
}

}  // namespace kvcachefs
