// What clients see of a takeover: the serving process is killed, and its successor looks at all files of the
// pool. One thread calls; failures are BenchError.
#pragma once

#include <string>

#include "bench/places.h"

namespace kvcachefs::bench {

struct TakeoverTimes {
  double longest_open_ms = 0;       // of an entry in memory, from the death until the store has ended
  double store_s = 0;               // from the death until a new entry is stored
  double longest_cold_open_ms = 0;  // of many entries on the disk, one after the other, from the death on
};

TakeoverTimes kill_serving_process(const Kvcachefs& mount);

}  // namespace kvcachefs::bench
