#include "fs/control/line_buffer.h"

#include <fmt/format.h>

#include <cerrno>
#include <utility>

namespace kvcachefs {

Result<std::string> LineBuffer::add(std::string_view piece) {
  MutexLock lock(mutex_);
  const size_t end = piece.rfind('\n');
  const std::string_view whole =
      end == std::string_view::npos ? std::string_view{} : piece.substr(0, end + 1);
  const std::string_view unfinished = piece.substr(whole.size());
  if (unfinished.size() + (whole.empty() ? rest_.size() : 0) > kMostLineBytes) {
    rest_.clear();
    return fail(EINVAL, fmt::format("a line of more than {} bytes", kMostLineBytes));
  }
  std::string lines;
  if (!whole.empty()) {
    lines = std::exchange(rest_, {});
    lines += whole;
  }
  rest_ += unfinished;
  return lines;
}

std::string LineBuffer::finish() {
  MutexLock lock(mutex_);
  return std::exchange(rest_, {});
}

}  // namespace kvcachefs
