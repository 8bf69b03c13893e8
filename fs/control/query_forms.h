// Parses the queries that are written to `.pool/match` and `.pool/similar`. Their forms are in kvcachefs(7),
// "Finding entries". Pure functions, any thread. Failure: EINVAL with a sentence that says what is wrong with
// the query.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "tier/index/entry_index.h"

namespace kvcachefs {

inline constexpr std::string_view kMatchForms =
    "`tokens [model=NAME]` and token ids, `names` and a name on each line, or `where KEY=VALUE...`";

// The request `pin=30s` or `pin=30s,close`: a lease on each entry of the answer.
struct Pin {
  uint32_t seconds = 0;  // 0: none; kMostPinS at most
  bool until_close = false;
};
inline constexpr uint32_t kMostPinS = 600;

// The entries that hold the longest prefix of these tokens.
struct TokensQuery {
  std::string model;
  std::vector<uint32_t> tokens;
  Pin pin = {};
};
// How many of these names, from the first on, are there. `lines` is a part of the query's text, for
// take_name().
struct NamesQuery {
  std::string_view lines;
  Pin pin = {};
  bool all = false;  // the answer goes on after the first absent name
};
// The entries with all of these attributes.
struct WhereQuery {
  std::vector<EntryIndex::Filter> filters;
};
using MatchQuery = std::variant<TokensQuery, NamesQuery, WhereQuery>;

inline constexpr ptrdiff_t kMostNames = 65'536;  // they take a tenth of a second
// EMSGSIZE: more than kMostNames. EINVAL also for a name that begins with a slash.
Result<MatchQuery> parse_match_query(std::string_view text);
Result<EntryIndex::SimilarQuery> parse_similar_query(std::string_view text);
// Removes and returns the next line that is not empty; nullopt at the end.
std::optional<std::string_view> take_name(std::string_view& lines);
// Returns the name in such a line, unescaped, without `.` and double slashes before its last part.
std::string name_in(std::string_view line);

}  // namespace kvcachefs
