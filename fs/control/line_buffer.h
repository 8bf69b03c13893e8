// A LineBuffer puts together lines that arrive in pieces, as a large file or a pipe is cut into writes.
// Thread safety: any thread; pieces that are added at the same time end up in one order or the other.
// Failure: EINVAL for a line that is too long; the line is dropped.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "base/result.h"

namespace kvcachefs {

class LineBuffer {
 public:
  // The limit is longer than any path, even if each of its characters is escaped, followed by a number.
  static constexpr size_t kMostLineBytes = 3 * 4096;

  // The result is the lines that this piece completes, including their newlines.
  Result<std::string> add(std::string_view piece) EXCLUDES(mutex_);
  // The result is the last line if it has no newline, else empty.
  std::string finish() EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  std::string rest_ GUARDED_BY(mutex_);
};

}  // namespace kvcachefs
