// A trace replayed on a directory by client processes that use vLLM's `fs` calls. Of each request the blocks
// are probed; those before the first miss are read and compared, the others are stored. Requests go to the
// processes in turn, one at a time, so that the order of all opens is known. Only for a process without other
// threads. Failures are in ReplayResult::failures.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/clients/trace.h"

namespace kvcachefs::clients {

// The event of one block of one request.
enum class BlockEvent : uint8_t {
  kRead,      // the block was there and was opened
  kStored,    // the block was not there and was stored
  kExisted,   // the block was there behind the first miss, so that the store was left out
  kLateMiss,  // the probe found the block, the open did not; kStored follows
};

struct ReplayEvent {
  uint64_t block = 0;
  BlockEvent event = BlockEvent::kRead;
};

struct ReplayTimes {
  uint64_t probe_ns = 0;
  uint64_t read_ns = 0;
  uint64_t store_ns = 0;
};

struct ReplayResult {
  std::vector<ReplayEvent> events;
  ReplayTimes times;
  uint64_t wall_ns = 0;
  uint64_t reads = 0;
  uint64_t stores = 0;
  std::vector<std::string> failures;  // the first few
};

struct ReplayOptions {
  std::string root;
  uint64_t block_bytes = 65536;
  unsigned processes = 2;
};

ReplayResult replay(const Trace& trace, const ReplayOptions& options);

}  // namespace kvcachefs::clients
