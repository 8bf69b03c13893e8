// Scatters a number over all of its bits. Any thread; never fails.
#pragma once

#include <cstdint>

namespace kvcachefs {

// A bijection whose every output bit depends on every input bit: the output function of SplitMix64 (Steele,
// Lea and Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
constexpr uint64_t mixed(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace kvcachefs
