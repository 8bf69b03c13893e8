// Parsers of the orders that are written to a pool's control files.
// Thread safety: pure functions, any thread. Failure: EINVAL and a sentence.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tier/disk/spill_orders.h"
#include "tier/pool/pool.h"

namespace kvcachefs {

// An order is `25%` (of what is evictable), `10G`, `1000 entries` or `1000`.
Result<EvictOrder> parse_evict_order(std::string_view text);

// Each line is a name relative to the pool, as .pool/entries shows it, and perhaps, after a blank or a tab, a
// priority. \n, \t and \\ stand for a newline, a tab and a backslash, \xHH for another control character.
// Blank lines are passed over.
inline constexpr int kMaximumPrefetchPriority = 1000;
Result<std::vector<PrefetchOrder>> parse_prefetch_orders(std::string_view text);
// The result is the line that would be parsed as this order, including its newline.
std::string prefetch_line(const PrefetchOrder& order);

struct ScrubOrder {
  bool start = false;
  uint64_t rate_bytes_per_s = 0;
};
// An order is `start`, `start 200M` (a second) or `stop`.
Result<ScrubOrder> parse_scrub_order(std::string_view text);

}  // namespace kvcachefs
