#include "alloc/unwritten.h"

#include <linux/falloc.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "base/sys.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kHugeBytes = uint64_t{2} << 20;
// The least size of a part of a large page to look for: the page is split to give it back, and less is not
// worth that.
constexpr uint64_t kLeastBytes = 64 << 10;
// Both limits keep the call within some ten milliseconds.
constexpr unsigned kMostRuns = 4096;
constexpr uint64_t kMostScannedBytes = uint64_t{64} << 20;

struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// The next range of data at or after `offset`; an empty range at `end` if there is none.
Range next_data(int fd, uint64_t offset, uint64_t end) {
  const auto data = sys::seek(fd, offset, SEEK_DATA);
  if (!data || *data >= end) return {end, end};
  const auto hole = sys::seek(fd, *data, SEEK_HOLE);
  return {*data, hole ? std::min(*hole, end) : end};
}

bool is_zero(int fd, Range range) {
  static thread_local std::array<char, kLeastBytes> bytes;  // stays in the processor's cache
  const auto read = sys::read_at(fd, std::span(bytes).first(range.end - range.begin), range.begin);
  return read && *read > 0 && bytes[0] == 0 && std::memcmp(bytes.data(), &bytes[1], *read - 1) == 0;
}

// The content of a piece of data that is one large page or may be one. A piece that was written in part
// begins or ends with a page of zeros. A process wrote a piece that is all zeros.
enum class Content { kWritten, kPartlyWritten, kZeros };
Content content_of(int fd, Range piece) {
  const uint64_t last_page = std::max(piece.begin, (piece.end - 1) / kPageBytes * kPageBytes);
  if (!is_zero(fd, {piece.begin, std::min(piece.begin + kPageBytes, piece.end)}) &&
      !is_zero(fd, {last_page, piece.end}))
    return Content::kWritten;
  for (uint64_t at = piece.begin; at < piece.end; at += kLeastBytes)
    if (!is_zero(fd, {at, std::min(at + kLeastBytes, piece.end)})) return Content::kPartlyWritten;
  return Content::kZeros;
}

// Calls look(piece) for each piece that was written in part, until look() answers false or a piece is all
// zeros.
template <class Look>
void for_each_partly_written(int fd, Range data, Look look) {
  for (uint64_t at = data.begin; at < data.end;) {
    const Range piece{at, std::min((at / kHugeBytes + 1) * kHugeBytes, data.end)};
    const Content content = content_of(fd, piece);
    if (content == Content::kZeros || (content == Content::kPartlyWritten && !look(piece))) return;
    at = piece.end;
  }
}

bool punch(int fd, Range range) {
  const uint64_t begin = (range.begin + kPageBytes - 1) / kPageBytes * kPageBytes;
  const uint64_t end = (range.end + kPageBytes - 1) / kPageBytes * kPageBytes;
  return begin < end &&
         sys::allocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, end - begin).has_value();
}

}  // namespace

bool may_have_unwritten(int fd, uint64_t reserved_end, uint64_t size) {
  const Range data = next_data(fd, 0, size);
  if (data.begin > 0 || data.end < std::min(reserved_end, size)) return reserved_end > 0 || data.begin < size;
  bool found = false;
  for_each_partly_written(fd, data, [&](Range) { return !(found = true); });
  return found;
}

GivenBack give_back_unwritten(int fd, uint64_t reserved_end, uint64_t size) {
  const auto before = sys::stat_of(fd);
  if (!before) return GivenBack::kNothing;
  uint64_t at = 0;
  uint64_t scanned_bytes = 0;
  for (unsigned runs = 0; at < size && runs < kMostRuns && scanned_bytes < kMostScannedBytes; ++runs) {
    const Range data = next_data(fd, at, size);
    if (at < std::min(data.begin, reserved_end)) (void)punch(fd, {at, std::min(data.begin, reserved_end)});
    for_each_partly_written(fd, data, [&](Range piece) {
      for (uint64_t part = piece.begin; part < piece.end; part += kLeastBytes) {
        const Range range{part, std::min(part + kLeastBytes, piece.end)};
        if (is_zero(fd, range)) (void)punch(fd, range);
      }
      scanned_bytes += piece.end - piece.begin;
      return scanned_bytes < kMostScannedBytes;
    });
    at = data.end;
  }
  if (scanned_bytes >= kMostScannedBytes) return GivenBack::kMoreToCome;
  const auto after = sys::stat_of(fd);
  return after && after->st_blocks < before->st_blocks ? GivenBack::kSome : GivenBack::kNothing;
}

void keep_hole(int fd, uint64_t begin, uint64_t end) {
  // Only the large pages at the ends of the hole are punched.
  const uint64_t after = std::min(end, (begin / kHugeBytes + 1) * kHugeBytes);
  const uint64_t before = std::max(after, end / kHugeBytes * kHugeBytes);
  (void)punch(fd, {begin, after});
  (void)punch(fd, {before, end});
}

}  // namespace kvcachefs
