// Puts lines together that come in pieces, as writes of a large file or of a pipe cut them.
// Thread safety: any thread; pieces that are added at once are in one order or the other.
// Failure: EINVAL for a line that is too long to be one; it is then dropped.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "base/result.h"

namespace kvcachefs {

class LineBuffer {
 public:
  // Longer than any path, even if each of its characters is escaped, and a number.
  static constexpr size_t kMostLineBytes = 3 * 4096;

  // The lines that are whole with this piece, their newlines included.
  Result<std::string> add(std::string_view piece) EXCLUDES(mutex_);
  // The last one, which has no newline.
  std::string finish() EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  std::string rest_ GUARDED_BY(mutex_);
};

}  // namespace kvcachefs
