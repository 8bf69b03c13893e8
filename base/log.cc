#include "base/log.h"

#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/escape.h"

namespace kvcachefs {

// Longer messages are cut, because a message may quote text of any length from a user.
constexpr size_t kMostMessageBytes = 2048;

void log_line(LogLevel level, std::string_view message) {
  static const bool shows_debug = [] {
    const char* value = std::getenv("KVCACHEFS_DEBUG");
    return value != nullptr && *value != '\0' && std::string_view(value) != "0";
  }();
  if (level == LogLevel::kDebug && !shows_debug) return;
  const std::string line =
      fmt::format("<{}>{}{}\n", static_cast<int>(level), escaped(message.substr(0, kMostMessageBytes)),
                  message.size() > kMostMessageBytes ? "..." : "");
  // An error is ignored, because a failed stderr leaves no place to report it.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace kvcachefs
