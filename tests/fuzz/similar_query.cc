// A query that is written to `.pool/similar`: what is taken is within the bounds.
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "fs/control/query_forms.h"

using namespace kvcachefs;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto query = parse_similar_query({reinterpret_cast<const char*>(data), size});
  const bool is_right = query ? query->most_distance <= SimilarIndex::kMostDistance &&
                                    query->most_results <= EntryIndex::kMostSimilar &&
                                    query->tokens.size() <= size
                              : query.error().code == EINVAL && !query.error().message.empty();
  if (!is_right) std::abort();
  return 0;
}
