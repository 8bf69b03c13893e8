// The requests of a kvtrace v1 file (gzip'd text; the file's own header describes the columns). Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace kvcachefs::clients {

struct Trace {
  std::vector<std::vector<uint64_t>>
      requests;  // block ids, first block of the prompt first; full blocks only
  uint64_t unique_blocks = 0;
  uint64_t references = 0;
};

// read_trace() reads the first `requests_max` requests. Fails if the file cannot be read or is no trace.
Result<Trace> read_trace(const std::string& path, uint64_t requests_max);

// The path in KVCACHEFS_TRACE, or the conversation trace beside the source tree.
std::string trace_path(const std::string& source_dir);

}  // namespace kvcachefs::clients
