// The existing pools as text for a successor: their numbers and options. The text does not say which of them
// were removed and are still in use: their memory tells that (MemoryArena::adopt). Any thread.
// parse_pool_list() fails with EINVAL on text that format_pool_list() of this version does not write.
#pragma once

#include <cstdint>
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

std::string format_pool_list(const Pools& pools);
Result<std::vector<ListedPool>> parse_pool_list(std::string_view text, uint64_t memory_bytes);
// The names of the pools that are served without their disk now.
std::vector<std::string> names_without_disk(const Pools& pools);

}  // namespace kvcachefs
