// What a line of the daemon's log may tell of entries, taken out of it. Any thread; pure. Never fails.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace kvcachefs {

// Without what is between the first quote and the last, which is how the log quotes a name, and what follows
// one of the directories: those of pools, below which all names are users'.
std::string masked_names(std::string_view line, std::span<const std::string> directories);

}  // namespace kvcachefs
