#include "base/escape.h"

#include <algorithm>
#include <optional>

#include "base/key_value.h"

namespace kvcachefs {
namespace {

// The character that `xHH` stands for; empty if it is no control character.
std::optional<char> control_of(std::string_view text) {
  if (text.size() < 3 || text[0] != 'x') return std::nullopt;
  const auto value = number_in<unsigned char>(text.substr(1, 2), 16);
  if (!value || *value == 0 || !is_control(static_cast<char>(*value))) return std::nullopt;
  return static_cast<char>(*value);
}

}  // namespace

std::string escaped(std::string_view text, std::string_view further) {
  std::string result;
  result.reserve(text.size());
  append_escaped(result, text, further);
  return result;
}

void append_escaped(std::string& to, std::string_view text, std::string_view further) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    if (character == '\n')
      to += "\\n";
    else if (character == '\t')
      to += "\\t";
    else if (is_control(character))
      to += {'\\', 'x', kDigits[byte / 16], kDigits[byte % 16]};
    else if (further.contains(character))
      to += {'\\', character};
    else
      to += character;
  }
}

std::string unescaped(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size(); ++at) {
    if (const auto control = text[at] == '\\' ? control_of(text.substr(at + 1)) : std::nullopt) {
      result += *control;
      at += 3;
      continue;
    }
    const char next = text[at] == '\\' && at + 1 < text.size() ? text[at + 1] : '\0';
    const bool escape = next == 'n' || next == 't' || next == '\\';
    result += !escape ? text[at] : next == 'n' ? '\n' : next == 't' ? '\t' : '\\';
    if (escape) ++at;
  }
  return result;
}

std::string take_field(std::string_view& line) {
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  std::string field;
  while (!line.empty() && line[0] != ' ' && line[0] != '\t') {
    const bool is_pair = line[0] == '\\' && line.size() > 1;
    if (is_pair && line[1] == ' ')
      field += ' ';
    else
      field += line.substr(0, is_pair ? 2 : 1);
    line.remove_prefix(is_pair ? 2 : 1);
  }
  return unescaped(field);
}

}  // namespace kvcachefs
