#include "tier/copy_mark.h"

#include <cstring>
#include <string>
#include <vector>

#include "base/sys.h"
#include "tier/catalog_records.h"

namespace kvcachefs {
namespace {

// The state, the number, then the content's record in the catalog (its check covers the number too).
constexpr size_t kHeadBytes = 1 + sizeof(uint64_t);
constexpr size_t kUsualBytes = 128;
constexpr size_t kMostBytes = 64 << 10;  // XATTR_SIZE_MAX, linux/limits.h

}  // namespace

Result<void> put_copy_mark(int fd, const CopyMark& mark) {
  std::string value(kHeadBytes, static_cast<char>(mark.state));
  std::memcpy(&value[1], &mark.node_id, sizeof mark.node_id);
  if (mark.state != CopyMark::State::kNone) value += records::encode_content(mark.node_id, mark.content);
  return sys::set_xattr(fd, kCopyXattr, value, 0);
}

std::optional<CopyMark> copy_mark_of(int fd) {
  std::vector<char> value(kUsualBytes);
  auto size = sys::get_xattr(fd, kCopyXattr, value);
  if (!size && size.error().code == ERANGE) {
    value.resize(kMostBytes);
    size = sys::get_xattr(fd, kCopyXattr, value);
  }
  if (!size || *size < kHeadBytes) return std::nullopt;
  CopyMark mark;
  mark.state = static_cast<CopyMark::State>(value[0]);
  std::memcpy(&mark.node_id, &value[1], sizeof mark.node_id);
  const std::string_view record(value.data() + kHeadBytes, *size - kHeadBytes);
  const bool copied = mark.state == CopyMark::State::kClean || mark.state == CopyMark::State::kCold;
  if (copied && !records::decode_content(mark.node_id, record, mark.content)) return std::nullopt;
  if (!copied && mark.state != CopyMark::State::kNone) return std::nullopt;
  return mark;
}

bool has_other_xattrs(int fd) {
  const auto length = sys::list_xattr(fd, {});
  return !length || (*length > 0 && *length != std::strlen(kCopyXattr) + 1);
}

}  // namespace kvcachefs
