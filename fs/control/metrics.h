// All that the daemon measures, in the text format of Prometheus (version 0.0.4).
// Thread safety: pure function, any thread. Failure: none.
#pragma once

#include <span>
#include <string>

#include "fs/control/stats.h"

namespace kvcachefs {

std::string render_metrics(const Stats& server, std::span<const PoolReport> pools);

}  // namespace kvcachefs
