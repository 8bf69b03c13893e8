// A query that is written to `.pool/match`: no text is more than it says it is.
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <variant>

#include "fs/control/query_forms.h"

using namespace kvcachefs;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto query = parse_match_query(text);
  if (!query) {
    if (query.error().code != EINVAL || query.error().message.empty()) std::abort();
    return 0;
  }
  if (const auto* tokens = std::get_if<TokensQuery>(&*query)) {
    if (tokens->tokens.size() > size || tokens->model.size() > size) std::abort();
  } else if (const auto* names = std::get_if<NamesQuery>(&*query)) {
    std::string_view lines = names->lines;
    size_t bytes = 0;
    while (const auto name = take_name(lines)) bytes += name_in(*name).size();
    if (bytes > size) std::abort();
  } else {
    const auto& filters = std::get<WhereQuery>(*query).filters;
    if (filters.empty() || filters.size() > kAttributes) std::abort();
  }
  return 0;
}
