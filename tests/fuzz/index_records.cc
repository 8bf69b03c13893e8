// Records that are written to `.pool/index`: wherever the writes are cut, the same records come out, and each
// is of a form that may be stored.
#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fs/control/index_records.h"
#include "tier/index/metadata.h"

using namespace kvcachefs;

namespace {

struct Taken {
  std::vector<IndexRecord> records;
  int error = 0;
  bool is_unfinished = false;
};

void check(const IndexRecord& record) {
  if (record.name.empty() || record.name.size() >= PATH_MAX || record.values.empty()) std::abort();
  for (const auto& [key, value] : record.values)
    if (!check_metadata(std::string(kMetadataPrefix) + key, value)) std::abort();
}

// In pieces of so many bytes, until an error.
Taken take(std::string_view text, size_t piece) {
  static QueryBudget budget;
  OpenRecords open(budget, 1);
  Taken taken;
  const auto keep = [&taken](std::span<const IndexRecord> records) {
    for (const IndexRecord& record : records) check(record);
    taken.records.insert(taken.records.end(), records.begin(), records.end());
    return Result<void>();
  };
  while (!text.empty() && taken.error == 0) {
    const auto done = open.write(text.substr(0, piece), false, keep);
    taken.error = done ? 0 : done.error().code;
    if (done && (*done == 0 || *done > piece)) std::abort();
    text.remove_prefix(done ? *done : std::min(piece, text.size()));
  }
  taken.is_unfinished = open.is_unfinished();
  return taken;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Taken whole = take(text, text.size() + 1), cut = take(text, size_t{data[0]} + 1);
  // An error keeps all of its write back, and a smaller write has fewer records.
  if (whole.error == 0) {
    if (cut.error != 0 || cut.is_unfinished != whole.is_unfinished) std::abort();
    if (cut.records.size() != whole.records.size()) std::abort();
    for (size_t i = 0; i < cut.records.size(); ++i)
      if (cut.records[i].name != whole.records[i].name || cut.records[i].values != whole.records[i].values)
        std::abort();
  } else if (whole.error != EINVAL && whole.error != EMSGSIZE) {
    std::abort();
  } else if (cut.error != whole.error || !whole.records.empty() || whole.is_unfinished) {
    std::abort();
  }
  return 0;
}
