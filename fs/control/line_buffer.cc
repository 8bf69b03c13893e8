#include "fs/control/line_buffer.h"

#include <fmt/format.h>

#include <cerrno>
#include <utility>

namespace kvcachefs {

Result<std::string> LineBuffer::add(std::string_view piece) {
  MutexLock lock(mutex_);
  rest_ += piece;
  const size_t whole = rest_.rfind('\n') + 1;  // 0: no line is whole
  std::string lines = rest_.substr(0, whole);
  rest_.erase(0, whole);
  if (rest_.size() <= kMostLineBytes) return lines;
  rest_.clear();
  return fail(EINVAL, fmt::format("a line of more than {} bytes", kMostLineBytes));
}

std::string LineBuffer::finish() {
  MutexLock lock(mutex_);
  return std::exchange(rest_, {});
}

}  // namespace kvcachefs
