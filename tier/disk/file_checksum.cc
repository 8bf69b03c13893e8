#include "tier/disk/file_checksum.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/sys.h"

namespace kvcachefs {

Result<bool> hash_file(Hasher& hasher, int fd, uint64_t offset, uint64_t bytes) {
  static thread_local std::array<char, 128 << 10> piece;  // stays in the processor's cache
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t wanted = std::min<uint64_t>(piece.size(), bytes - done);
    auto count = sys::read_at(fd, std::span(piece).first(wanted), offset + done);
    if (!count) return pass(count);
    if (*count == 0) return false;
    hasher.update(std::as_bytes(std::span(piece).first(*count)));
    done += *count;
  }
  return true;
}

std::optional<Checksum> checksum_of_file(int fd, uint64_t size_bytes, const ContentLayout& layout,
                                         uint64_t unit_bytes) {
  Hasher hasher;
  uint64_t begin = 0;
  for (const Extent& run : layout.runs) {
    const uint64_t end = std::min(size_bytes, begin + run.count * unit_bytes);
    if (is_hole(run)) {
      hash_hole(hasher, run.count);
    } else if (const auto whole = hash_file(hasher, fd, begin, end - begin); !whole || !*whole) {
      return std::nullopt;
    }
    begin = end;
  }
  return hasher.digest();
}

}  // namespace kvcachefs
