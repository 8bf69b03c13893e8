#include "base/escape.h"

#include <fmt/format.h>

#include <iterator>

namespace kvcachefs {

std::string escaped(std::string_view text, std::string_view further) {
  std::string result;
  result.reserve(text.size());
  for (const char character : text) {
    if (character == '\n')
      result += "\\n";
    else if (character == '\t')
      result += "\\t";
    else if (is_control(character))
      fmt::format_to(std::back_inserter(result), "\\x{:02x}", static_cast<unsigned char>(character));
    else if (further.contains(character))
      result += {'\\', character};
    else
      result += character;
  }
  return result;
}

}  // namespace kvcachefs
