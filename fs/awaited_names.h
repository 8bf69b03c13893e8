// Which requests have names that are still to come back from a pool's disk (tier/pool/names_to_come.h). Any
// thread; no state. Never fails: a request that is too short has no name.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "tier/pool/pools.h"

namespace kvcachefs {

struct AwaitedNames {
  std::shared_ptr<Pool> pool;
  bool for_the_disk = false;      // only the pool's disk, which is away, tells whether they are to come
  std::array<uint64_t, 2> ids{};  // else their numbers in the pool's catalog; 0: none

  Result<void> await() const;  // EIO as NamesToCome::await()
};
// `request`: as the device gave it. None: it waits for nothing.
std::optional<AwaitedNames> awaited_by(const Pools& pools, std::span<const std::byte> request);

}  // namespace kvcachefs
