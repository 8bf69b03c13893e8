// The existing pools as text for a successor: their numbers and options, and which of their settings are
// written down for the next start. The text does not say which pools were removed and are still in use: their
// memory tells that (MemoryArena::adopt). Any thread. parse_pool_list() fails with EINVAL on text that
// format_pool_list() of this version does not write.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tier/pool/pools.h"

namespace kvcachefs {

struct ListedPool {
  uint16_t number = 0;
  PoolOptions options;
};

using OptionsByPool = std::map<std::string, PoolOptions, std::less<>>;
// A successor finds the orders that took effect and were not written down by the difference between the pools
// and these notes (KeptSettings::took_over).
struct PoolNotes {
  OptionsByPool written;     // the pools as they were when the settings file was last written
  OptionsByPool configured;  // the pools that a client has configured
};

struct PoolList {
  std::vector<ListedPool> pools;
  std::optional<PoolNotes> notes;  // nullopt: the predecessor's version wrote none
};

std::string format_pool_list(const Pools& pools, const PoolNotes& notes);
Result<PoolList> parse_pool_list(std::string_view text, uint64_t memory_bytes);
// The names of the pools that are served without their disk now.
std::vector<std::string> names_without_disk(const Pools& pools);

}  // namespace kvcachefs
