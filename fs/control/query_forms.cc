#include "fs/control/query_forms.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/escape.h"
#include "base/key_value.h"
#include "tier/index/metadata.h"

namespace kvcachefs {
namespace {

constexpr std::string_view kMagic = "KVQ1";  // of a query for tokens in binary form

Result<std::vector<uint32_t>> tokens_of(std::string_view ids) {
  std::vector<uint32_t> tokens;
  for (auto word = take_word(ids); !word.empty(); word = take_word(ids)) {
    const auto token = number_in<uint32_t>(word);
    if (!token) return fail(EINVAL, fmt::format("'{}' is no token id", word.substr(0, 32)));
    tokens.push_back(*token);
  }
  return tokens;
}

// None: the option is not `pin`, or not in this form.
std::optional<Pin> pin_in(const KeyValue& option) {
  if (option.key != "pin") return std::nullopt;
  std::string_view text = option.value.value_or("");
  const bool until_close = text.ends_with(",close");
  if (until_close) text.remove_suffix(6);
  const auto seconds = seconds_in(text);
  if (!seconds || *seconds == 0 || *seconds > kMostPinS) return std::nullopt;
  return Pin{.seconds = static_cast<uint32_t>(*seconds), .until_close = until_close};
}

std::unexpected<Error> wrong_option(std::string_view word, std::string_view verb, std::string_view others) {
  return fail(EINVAL, fmt::format("'{}' is no option of `{}` ({}pin=TIME or pin=TIME,close, up to {}s)",
                                  word.substr(0, 64), verb, others, kMostPinS));
}

Result<MatchQuery> tokens_query(std::string_view words, std::string_view ids) {
  TokensQuery query;
  for (auto word = take_field(words); !word.empty(); word = take_field(words)) {
    const KeyValue option = split_key_value(word);
    const auto pin = pin_in(option);
    if (!pin && (option.key != "model" || !option.value)) return wrong_option(word, "tokens", "model=NAME, ");
    if (pin)
      query.pin = *pin;
    else
      query.model = *option.value;
  }
  auto tokens = tokens_of(ids);
  if (!tokens) return pass(tokens);
  query.tokens = std::move(*tokens);
  return query;
}

Result<MatchQuery> names_query(std::string_view words, std::string_view lines) {
  NamesQuery query{lines};
  for (auto word = take_word(words); !word.empty(); word = take_word(words)) {
    const auto pin = pin_in(split_key_value(word));
    if (!pin && word != "all") return wrong_option(word, "names", "all, ");
    if (pin)
      query.pin = *pin;
    else
      query.all = true;
  }
  if (std::ranges::count(lines, '\n') > kMostNames) return fail(EMSGSIZE, "there are more than 65,536 lines");
  const size_t line = lines.starts_with('/') ? 0 : lines.find("\n/") + 1;
  if (lines.substr(line).starts_with('/'))
    return fail(EINVAL, fmt::format("'{}' begins with a slash; a name is relative to the pool's directory",
                                    lines.substr(line, std::min<size_t>(lines.find('\n', line) - line, 64))));
  return query;
}

struct BinaryHead {
  char magic[4];
  uint32_t kind;  // 1: tokens; 2: the same, with a BinaryPin after the head
  uint32_t model_bytes;
  uint32_t tokens;
};

struct BinaryPin {
  uint32_t seconds;
  uint32_t until_close;  // 0 or 1
};

Result<MatchQuery> binary_query(std::string_view text) {
  BinaryHead head{};
  if (text.size() < sizeof(head)) return fail(EINVAL, "a binary query ends in its head");
  std::memcpy(&head, text.data(), sizeof(head));
  text.remove_prefix(sizeof(head));
  const bool has_pin = head.kind == 2;
  const uint64_t wanted = (has_pin ? sizeof(BinaryPin) : 0) + uint64_t{head.model_bytes} +
                          uint64_t{head.tokens} * sizeof(uint32_t);
  if ((head.kind != 1 && !has_pin) || text.size() != wanted)
    return fail(EINVAL, fmt::format("a binary query of kind {} has {} bytes after its head, not {}",
                                    head.kind, text.size(), wanted));
  TokensQuery query;
  if (has_pin) {
    BinaryPin pin{};
    std::memcpy(&pin, text.data(), sizeof(pin));
    text.remove_prefix(sizeof(pin));
    if (pin.seconds == 0 || pin.seconds > kMostPinS || pin.until_close > 1)
      return fail(EINVAL, fmt::format("a binary query pins for 1 to {} seconds, until its close if told 1, "
                                      "not for {} and {}",
                                      kMostPinS, pin.seconds, pin.until_close));
    query.pin = {.seconds = pin.seconds, .until_close = pin.until_close == 1};
  }
  query.model = text.substr(0, head.model_bytes);
  query.tokens.resize(head.tokens);
  std::ranges::copy(text.substr(head.model_bytes), reinterpret_cast<char*>(query.tokens.data()));
  return query;
}

Result<EntryIndex::Filter> filter_in(std::string_view text) {
  const KeyValue filter = split_key_value(text);
  const auto attribute = attribute_named(filter.key);
  if (attribute && filter.value) {
    const std::string xattr = std::string(kMetadataPrefix) + std::string(filter.key);
    if (auto right = check_metadata(xattr, *filter.value); !right) return pass(right);
    return std::pair(*attribute, std::string(*filter.value));
  }
  return fail(EINVAL, fmt::format("'{}' is no filter (such as agent=NAME, layer=3)", text.substr(0, 64)));
}

// A value with blanks comes on a line of its own.
Result<MatchQuery> where_query(std::string_view words, std::string_view lines) {
  WhereQuery query;
  while (!trimmed(words).empty() || !lines.empty()) {
    const auto text = trimmed(words).empty() ? take_part(lines, '\n') : take_word(words);
    if (text.empty()) continue;
    auto filter = filter_in(text);
    if (!filter) return pass(filter);
    // No entry has two values of one attribute.
    if (query.filters.size() == kAttributes) return fail(EINVAL, "`where` has more filters than attributes");
    query.filters.push_back(std::move(*filter));
  }
  if (query.filters.empty()) return fail(EINVAL, "`where` has no filter");
  return query;
}

Result<void> set_option(EntryIndex::SimilarQuery& query, std::string_view word) {
  const KeyValue option = split_key_value(word);
  if (option.value && option.key == "model") return query.model = *option.value, Result<void>();
  if (option.value && option.key == "not_agent") return query.excluded = *option.value, Result<void>();
  const auto number = number_in<uint32_t>(option.value.value_or(""));
  if (number && option.key == "distance" && *number <= SimilarIndex::kMostDistance)
    return query.most_distance = *number, Result<void>();
  if (number && option.key == "most" && *number <= EntryIndex::kMostSimilar)
    return query.most_results = *number, Result<void>();
  return fail(EINVAL, fmt::format("'{}' is no option of `tokens` (model=NAME not_agent=NAME distance=0 to {} "
                                  "most=0 to {})",
                                  word.substr(0, 64), SimilarIndex::kMostDistance, EntryIndex::kMostSimilar));
}

}  // namespace

Result<MatchQuery> parse_match_query(std::string_view text) {
  if (text.starts_with(kMagic)) return binary_query(text);
  std::string_view words = take_part(text, '\n');
  const std::string_view verb = take_word(words);
  if (verb == "tokens") return tokens_query(words, text);
  if (verb == "names") return names_query(words, text);
  if (verb == "where") return where_query(words, text);
  return fail(EINVAL, fmt::format("a query is {}", kMatchForms));
}

std::optional<std::string_view> take_name(std::string_view& lines) {
  while (!lines.empty())
    if (const auto line = take_part(lines, '\n'); !line.empty()) return line;
  return std::nullopt;
}

std::string name_in(std::string_view line) {
  std::string name = line.contains('\\') ? unescaped(line) : std::string(line);
  if (!name.contains("//") && !name.contains("./")) return name;
  std::string result;
  std::string_view left = name;
  for (size_t slash = left.find('/'); slash != std::string_view::npos; slash = left.find('/')) {
    if (const auto part = left.substr(0, slash); !part.empty() && part != ".")
      result += left.substr(0, slash + 1);
    left.remove_prefix(slash + 1);
  }
  return result += left;
}

Result<EntryIndex::SimilarQuery> parse_similar_query(std::string_view text) {
  std::string_view words = take_part(text, '\n');
  if (take_word(words) != "tokens") return fail(EINVAL, "a query is `tokens [model=NAME]` and token ids");
  EntryIndex::SimilarQuery query;
  for (auto word = take_field(words); !word.empty(); word = take_field(words))
    if (auto set = set_option(query, word); !set) return pass(set);
  auto tokens = tokens_of(text);
  if (!tokens) return pass(tokens);
  query.tokens = std::move(*tokens);
  return query;
}

}  // namespace kvcachefs
