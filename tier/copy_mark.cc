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
// After the head of a mark that tells of no content.
constexpr char kEmptied = 1, kSyncedNameless = 2;
constexpr const char* kRestoringXattr = "trusted.kvcachefs.restoring";

}  // namespace

Result<void> put_copy_mark(int fd, const CopyMark& mark) {
  std::string value(kHeadBytes, static_cast<char>(mark.state));
  std::memcpy(&value[1], &mark.node_id, sizeof mark.node_id);
  if (mark.state != CopyMark::State::kNone)
    value += records::encode_content(mark.node_id, mark.content);
  else if (mark.emptied || mark.synced_nameless)
    value += static_cast<char>((mark.emptied ? kEmptied : 0) | (mark.synced_nameless ? kSyncedNameless : 0));
  return sys::set_xattr(fd, kCopyXattr, value, 0);
}

std::optional<CopyMark> copy_mark_of(int fd) {
  std::vector<char> value(kUsualBytes);
  auto size = sys::get_xattr(fd, kCopyXattr, value);
  if (!size && size.error().code == ERANGE) {
    value.resize(kMostBytes);
    size = sys::get_xattr(fd, kCopyXattr, value);
  }
  if (!size && size.error().code == ENODATA) return std::nullopt;
  CopyMark unreadable{.state = CopyMark::State::kUnreadable, .content = {}};
  if (!size || *size < kHeadBytes) return unreadable;
  CopyMark mark;
  mark.state = static_cast<CopyMark::State>(value[0]);
  std::memcpy(&mark.node_id, &value[1], sizeof mark.node_id);
  const std::string_view record(value.data() + kHeadBytes, *size - kHeadBytes);
  if (mark.state == CopyMark::State::kNone) {
    mark.emptied = !record.empty() && (record[0] & kEmptied) != 0;
    mark.synced_nameless = !record.empty() && (record[0] & kSyncedNameless) != 0;
    return mark;
  }
  const bool copied = mark.state == CopyMark::State::kClean || mark.state == CopyMark::State::kCold;
  if (!copied || !records::decode_content(mark.node_id, record, mark.content)) return unreadable;
  return mark;
}

bool has_other_xattrs(int fd) {
  const auto length = sys::list_xattr(fd, {});
  return !length || (*length > 0 && *length != std::strlen(kCopyXattr) + 1);
}

Result<void> put_restoring(int root, bool restoring) {
  if (restoring) return sys::set_xattr(root, kRestoringXattr, "1", 0);
  auto removed = sys::remove_xattr(root, kRestoringXattr);
  return !removed && removed.error().code == ENODATA ? Result<void>() : removed;
}

bool is_restoring(int root) {
  return sys::get_xattr(root, kRestoringXattr, {}).has_value();
}

}  // namespace kvcachefs
