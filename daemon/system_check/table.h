// The table of `kvcachefsd --check-system`: plain text of at most 100 columns. Any thread; pure. Never fails.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "daemon/system_check/judge.h"

namespace kvcachefs {

// A line for each row, below it what its absence costs and how to get it, and what follows from all.
// `release` is the kernel's. Ends with a newline.
std::string format_system(const std::vector<SystemRow>& rows, std::string_view release);

}  // namespace kvcachefs
