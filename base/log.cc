#include "base/log.h"

#include <unistd.h>

#include <cstdlib>
#include <iterator>

namespace kvcachefs {
namespace {

// Longer messages are cut, because a message may quote text of any length from a user.
constexpr size_t kMostMessageBytes = 2048;

void append_escaped(fmt::memory_buffer& line, std::string_view message) {
  for (const char character : message) {
    const auto byte = static_cast<unsigned char>(character);
    if (character == '\n') {
      line.append(std::string_view("\\n"));
    } else if (character == '\t') {
      line.append(std::string_view("\\t"));
    } else if (byte < 0x20 || byte == 0x7f) {
      fmt::format_to(std::back_inserter(line), "\\x{:02x}", byte);
    } else {
      line.push_back(character);
    }
  }
}

bool read_debug_switch() {
  const char* value = std::getenv("KVCACHEFS_DEBUG");
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

}  // namespace

bool log_debug_enabled() {
  static const bool enabled = read_debug_switch();
  return enabled;
}

void log_line(LogLevel level, std::string_view message) {
  if (level == LogLevel::kDebug && !log_debug_enabled()) return;
  fmt::memory_buffer line;
  fmt::format_to(std::back_inserter(line), "<{}>", static_cast<int>(level));
  append_escaped(line, message.substr(0, kMostMessageBytes));
  if (message.size() > kMostMessageBytes) line.append(std::string_view("..."));
  line.push_back('\n');
  // An error is ignored, because a failed stderr leaves no place to report it.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace kvcachefs
