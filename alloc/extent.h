// A run of units of a device. A unit is the grain of allocation, 64 KiB by default. A value; any thread.
#pragma once

#include <compare>
#include <cstdint>

namespace kvcachefs {

struct Extent {
  uint64_t start = 0;  // in units
  uint64_t count = 0;

  uint64_t end() const { return start + count; }
  auto operator<=>(const Extent&) const = default;
};

}  // namespace kvcachefs
