// Text that others choose, on one line and without effect on a terminal. Any thread. Never fails.
#pragma once

#include <string>
#include <string_view>

namespace kvcachefs {

inline bool is_control(char character) {
  return static_cast<unsigned char>(character) < 0x20 || character == 0x7f;
}

// \n and \t for a newline and a tab, \xHH for another control character; each of `further` gets a backslash.
std::string escaped(std::string_view text, std::string_view further = {});
// Appends the escaped text to `to`.
void append_escaped(std::string& to, std::string_view text, std::string_view further = {});
// Reverses escaped(). A backslash that begins no escape stays as it is, because most names with a backslash
// were never escaped.
std::string unescaped(std::string_view text);
// The next field of a line, which leaves it, unescaped. A blank within a field has a backslash before it.
// Empty: there is none.
std::string take_field(std::string_view& line);

}  // namespace kvcachefs
