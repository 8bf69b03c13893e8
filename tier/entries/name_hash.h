// The hash of an entry's latest name (Entry::name_hash). Any thread; never fails.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/checksum.h"

namespace kvcachefs {

inline uint32_t name_hash_of(std::string_view name) {
  return static_cast<uint32_t>(checksum_of(std::as_bytes(std::span(name))).low);
}

}  // namespace kvcachefs
