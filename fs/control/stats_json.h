// Statistics as JSON that ends with a newline. This is the only user of the JSON library.
// Thread safety: pure functions, any thread. Failure: none; bytes that are not UTF-8 are replaced.
#pragma once

#include <span>
#include <string>

#include "fs/control/stats.h"

namespace kvcachefs {

std::string render_json(const Stats& stats);

// The result is the daemon's statistics, with `pools` an object of each pool's statistics.
std::string render_json(const Stats& server, std::span<const PoolReport> pools);

}  // namespace kvcachefs
