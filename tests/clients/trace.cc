#include "tests/clients/trace.h"

#include <zlib.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <sstream>
#include <unordered_set>

namespace kvcachefs::clients {
namespace {

using GzipFile = std::unique_ptr<gzFile_s, int (*)(gzFile)>;

std::optional<std::string> read_line(gzFile file) {
  std::string line;
  char piece[4096];
  while (::gzgets(file, piece, sizeof piece) != nullptr) {
    line += piece;
    if (line.back() == '\n') {
      line.pop_back();
      return line;
    }
  }
  return line.empty() ? std::nullopt : std::optional(line);
}

// append_blocks() parses runs such as `0-13;27` in order.
void append_blocks(const std::string& text, std::vector<uint64_t>& blocks) {
  std::istringstream runs(text);
  for (std::string run; std::getline(runs, run, ';');) {
    char* end = nullptr;
    const uint64_t first = std::strtoull(run.c_str(), &end, 10);
    const uint64_t last = *end == '-' ? std::strtoull(end + 1, nullptr, 10) : first;
    for (uint64_t block = first; block <= last; ++block) blocks.push_back(block);
  }
}

}  // namespace

Result<Trace> read_trace(const std::string& path, uint64_t requests_max) {
  const GzipFile file(::gzopen(path.c_str(), "rb"), ::gzclose);
  if (!file) return fail(ENOENT, "no trace at " + path);
  Trace trace;
  std::unordered_set<uint64_t> seen;
  uint64_t block_tokens = 0;
  while (trace.requests.size() < requests_max) {
    const std::optional<std::string> line = read_line(file.get());
    if (!line) break;
    if (line->starts_with("#block_tokens=")) block_tokens = std::strtoull(line->c_str() + 14, nullptr, 10);
    if (line->starts_with("#")) continue;
    std::vector<std::string> columns;
    std::istringstream text(*line);
    for (std::string column; std::getline(text, column, ',');) columns.push_back(column);
    if (columns.size() != 7 || block_tokens == 0)
      return fail(EINVAL, path + ": not a kvtrace v1 line: " + *line);
    std::vector<uint64_t>& blocks = trace.requests.emplace_back();
    append_blocks(columns[6], blocks);
    // The last block is partial unless the prompt fills it; engines keep only full blocks.
    blocks.resize(
        std::min<size_t>(blocks.size(), std::strtoull(columns[3].c_str(), nullptr, 10) / block_tokens));
    seen.insert(blocks.begin(), blocks.end());
    trace.references += blocks.size();
  }
  trace.unique_blocks = seen.size();
  if (trace.requests.empty()) return fail(EINVAL, path + ": no requests");
  return trace;
}

std::string trace_path(const std::string& source_dir) {
  const char* const named = std::getenv("KVCACHEFS_TRACE");
  return named != nullptr ? named : source_dir + "/../shared/traces/mooncake-conversation.csv.gz";
}

}  // namespace kvcachefs::clients
