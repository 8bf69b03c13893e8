// Sizes in bytes as people write them: 4096, 512K, 16G, 1.5T; powers of 1024, K M G T P E in either case. Any
// thread. parse_size() and parse_number() fail with EINVAL and a sentence; the others never fail.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace kvcachefs {

// A fraction needs a unit, and the result is cut to whole bytes. 0 is a size; a caller that cannot use it
// refuses it.
Result<uint64_t> parse_size(std::string_view text);

// The form for people: the largest unit that fits, at most one decimal (rounded): 512K, 1.5T, 9.8G.
std::string format_size(uint64_t bytes);

// The form to be parsed: the shortest text that parse_size() turns into the same number: 1.5T, 10000M, 4097.
std::string format_size_exact(uint64_t bytes);

// parse_number() takes a whole decimal number and nothing else.
Result<uint64_t> parse_number(std::string_view text);

}  // namespace kvcachefs
