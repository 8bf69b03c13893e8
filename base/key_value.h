// The parts of texts such as `a=b,c,d=e`. Any thread. Never fails.
#pragma once

#include <optional>
#include <string_view>

namespace kvcachefs {

// The part before the first separator; it leaves the text, and so does the separator.
inline std::string_view take_part(std::string_view& text, char separator) {
  const size_t end = text.find(separator);
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return part;
}

struct KeyValue {
  std::string_view key;
  std::optional<std::string_view> value;  // none: there is no `=`
};

inline KeyValue split_key_value(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) return {text, std::nullopt};
  return {text.substr(0, equals), text.substr(equals + 1)};
}

}  // namespace kvcachefs
