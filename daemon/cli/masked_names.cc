#include "daemon/cli/masked_names.h"

namespace kvcachefs {

std::string masked_names(std::string_view line, std::span<const std::string> directories) {
  std::string result(line);
  for (const std::string& directory : directories) {
    const size_t at = result.find(directory + '/');
    // To the end of the line: a name may have blanks.
    if (at != std::string::npos) result.replace(at + directory.size() + 1, std::string::npos, "[name]");
  }
  const size_t first = result.find('\''), last = result.rfind('\'');
  if (first == std::string::npos) return result;
  const size_t end = last == first ? result.size() : last;
  return result.replace(first + 1, end - first - 1, "[name]");
}

}  // namespace kvcachefs
