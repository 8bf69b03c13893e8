// The parts of texts such as `a=b,c,d=e`, and of the files of proc(5). Any thread. Never fails.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
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

// The number that is all of the text; none: the text is something else.
template <class Number>
std::optional<Number> number_in(std::string_view text, int base = 10) {
  Number number{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (text.empty() || code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// A time such as `90`, `30s`, `15m`, `2h` or `7d`, in seconds; none: the text is no time, or more than 100
// years.
inline std::optional<uint64_t> seconds_in(std::string_view text) {
  constexpr std::string_view kUnits = "smhd";
  constexpr uint64_t kSeconds[] = {1, 60, 3600, 86400}, kMost = 36500 * kSeconds[3];
  const size_t unit = text.empty() ? std::string_view::npos : kUnits.find(text.back());
  if (unit != std::string_view::npos) text.remove_suffix(1);
  const uint64_t factor = unit == std::string_view::npos ? 1 : kSeconds[unit];
  const auto number = number_in<uint64_t>(text);
  return number && *number <= kMost / factor ? std::optional(*number * factor) : std::nullopt;
}

// Without the blanks at its ends.
inline std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

// The next word of a line of words between blanks; it leaves the text. Empty: there is none.
inline std::string_view take_word(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\n"), text.size()));
  const std::string_view word = text.substr(0, text.find_first_of(" \t\n"));
  text.remove_prefix(word.size());
  return word;
}

// What follows `KEY:` in its line of /proc/PID/status or fdinfo; empty: there is no such line.
inline std::string_view line_value(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    std::string_view line = take_part(text, '\n');
    if (take_part(line, ':') == key) return line;
  }
  return {};
}

// A field of /proc/PID/stat by its number in proc(5), from 3 on; the second, a name, may have anything in it.
inline std::string_view stat_field(std::string_view text, int number) {
  const size_t name_end = text.rfind(')');
  if (name_end == std::string_view::npos) return {};
  text.remove_prefix(name_end + 1);
  for (int field = 3; field < number; ++field) take_word(text);
  return take_word(text);
}

}  // namespace kvcachefs
