// Orders that are written to a pool's control files.
// Thread safety: pure functions, any thread. Failure: EINVAL and a sentence.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tier/pool.h"
#include "tier/spill_orders.h"

namespace kvcachefs {

std::string_view trimmed(std::string_view text);

// `25%` of what is evictable, `10G`, `1000 entries` or `1000`.
Result<EvictOrder> parse_evict_order(std::string_view text);

// One a line: a name relative to the pool, as .pool/entries shows it (\n, \t and \\ stand for a newline, a
// tab and a backslash), and perhaps, after a blank or a tab, a priority. Blank lines are nothing.
inline constexpr int kMaximumPrefetchPriority = 1000;
Result<std::vector<PrefetchOrder>> parse_prefetch_orders(std::string_view text);
// The line that is read as this; its newline included.
std::string prefetch_line(const PrefetchOrder& order);

struct ScrubOrder {
  bool start = false;
  uint64_t rate_bytes_per_s = 0;
};
// `start`, `start 200M` (a second) or `stop`.
Result<ScrubOrder> parse_scrub_order(std::string_view text);

}  // namespace kvcachefs
