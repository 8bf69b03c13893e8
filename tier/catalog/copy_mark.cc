#include "tier/catalog/copy_mark.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/size.h"
#include "base/sys.h"
#include "tier/catalog/catalog_records.h"
#include "tier/kept_ctime.h"

namespace kvcachefs {
namespace {

// The mark is its state, the node's number, then the content's record as in the catalog, whose check covers
// the number.
constexpr size_t kHeadBytes = 1 + sizeof(uint64_t);
constexpr size_t kUsualBytes = 128;
constexpr size_t kMostBytes = 64 << 10;  // XATTR_SIZE_MAX, linux/limits.h
// A DirtyRecord follows the head of a kNone mark, which has no content, and the content of a kClean one if
// the file was ever truncated to 0 bytes. The place hash of emptied_as follows it in a kNone mark; programs
// that do not know it leave it alone.
struct DirtyRecord {
  uint32_t first_version;
  uint32_t synced_nameless;
};
constexpr const char* kRestoringXattr = "trusted.kvcachefs.restoring";

}  // namespace

Result<void> put_copy_mark(int fd, const CopyMark& mark) {
  std::string value(kHeadBytes, static_cast<char>(mark.state));
  std::memcpy(&value[1], &mark.node_id, sizeof mark.node_id);
  if (mark.state != CopyMark::State::kNone) value += records::encode_content(mark.node_id, mark.content);
  const DirtyRecord dirty{.first_version = mark.first_version, .synced_nameless = mark.synced_nameless};
  if (mark.state == CopyMark::State::kNone ||
      (mark.state == CopyMark::State::kClean && mark.first_version > 0))
    value.append(reinterpret_cast<const char*>(&dirty), sizeof dirty);
  if (mark.state == CopyMark::State::kNone && mark.emptied_as != 0)
    value.append(reinterpret_cast<const char*>(&mark.emptied_as), sizeof mark.emptied_as);
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
  if (!size) unreadable.error = size.error().code;
  if (!size || *size < kHeadBytes) return unreadable;
  CopyMark mark;
  mark.state = static_cast<CopyMark::State>(value[0]);
  std::memcpy(&mark.node_id, &value[1], sizeof mark.node_id);
  std::string_view record(value.data() + kHeadBytes, *size - kHeadBytes);
  if (mark.state == CopyMark::State::kClean || mark.state == CopyMark::State::kCold) {
    size_t content_bytes = record.size();
    if (!records::decode_content(mark.node_id, record, mark.content)) {
      content_bytes -= std::min(content_bytes, sizeof(DirtyRecord));
      if (!records::decode_content(mark.node_id, record.substr(0, content_bytes), mark.content))
        return unreadable;
    }
    record.remove_prefix(content_bytes);
  } else if (mark.state != CopyMark::State::kNone) {
    return unreadable;
  }
  DirtyRecord dirty{};
  std::memcpy(&dirty, record.data(), std::min(record.size(), sizeof dirty));
  mark.first_version = dirty.first_version;
  mark.synced_nameless = dirty.synced_nameless != 0;
  if (mark.state == CopyMark::State::kNone && record.size() >= sizeof dirty + sizeof mark.emptied_as)
    std::memcpy(&mark.emptied_as, &record[sizeof dirty], sizeof mark.emptied_as);
  return mark;
}

uint64_t promised_number(const std::optional<CopyMark>& mark) {
  return mark && mark->state == CopyMark::State::kNone ? mark->node_id : 0;
}

bool has_other_xattrs(int fd) {
  std::array<char, kUsualBytes> names{};
  const auto length = sys::list_xattr(fd, names);
  if (!length) return true;
  for (size_t at = 0; at < *length; at += std::strlen(&names[at]) + 1)
    if (std::strcmp(&names[at], kCopyXattr) != 0 && std::strcmp(&names[at], kTimesXattr) != 0) return true;
  return false;
}

uint64_t place_hash(uint64_t parent_ino, std::string_view name) {
  Hasher hasher;
  hasher.update(std::as_bytes(std::span(&parent_ino, 1)));
  hasher.update(std::as_bytes(std::span(name)));
  return std::max(hasher.digest().low, uint64_t{1});
}

// The number up to which all are back stands first, in digits and a 0 byte: an earlier version wrote no more
// than a digit.
Result<void> put_restoring(int root, uint64_t up_to, std::span<const uint64_t> changed) {
  std::string value = std::to_string(up_to);
  if (!changed.empty()) {
    value.push_back('\0');
    value.append(reinterpret_cast<const char*>(changed.data()), changed.size_bytes());
  }
  return sys::set_xattr(root, kRestoringXattr, value, 0);
}

Result<void> put_restored(int root) {
  auto removed = sys::remove_xattr(root, kRestoringXattr);
  return !removed && removed.error().code == ENODATA ? Result<void>() : removed;
}

std::optional<RestoringMark> restoring_mark_of(int root) {
  std::vector<char> value(kMostBytes);
  const auto length = sys::get_xattr(root, kRestoringXattr, value);
  if (!length) return std::nullopt;
  const std::string_view text(value.data(), *length);
  const size_t digits = std::min(text.find('\0'), text.size());
  RestoringMark mark{.up_to = parse_number(text.substr(0, digits)).value_or(0)};
  const std::string_view ids = text.substr(std::min(digits + 1, text.size()));
  mark.changed.resize(ids.size() / sizeof(uint64_t));
  if (!mark.changed.empty())
    std::memcpy(mark.changed.data(), ids.data(), mark.changed.size() * sizeof(uint64_t));
  return mark;
}

std::optional<uint64_t> restoring_up_to(int root) {
  const auto mark = restoring_mark_of(root);
  return mark ? std::optional(mark->up_to) : std::nullopt;
}

}  // namespace kvcachefs
