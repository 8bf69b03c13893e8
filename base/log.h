// The daemon's log: each message is one line on stderr, with the priority prefix that the journal
// understands. Thread safety: any thread; a line is one write(2), so lines of several threads do not mix.
// Failure: a line that cannot be written is lost; logging never fails its caller.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace kvcachefs {

enum class LogLevel { kError = 3, kWarning = 4, kInfo = 6, kDebug = 7 };

// Control characters of the message are escaped, so that a file name cannot forge a line. kDebug is logged
// if the environment variable KVCACHEFS_DEBUG, read once, is set to anything but an empty string or 0.
void log_line(LogLevel level, std::string_view message);

template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace kvcachefs
