#include "tier/pool/counted_inode.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <vector>

#include "tier/blocks.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kXattrSpace = 40;  // beside name and value: simple_xattr_space() of Linux 6.6
constexpr size_t kUsualNames = 256;
// Names that a list does not hold (XATTR_LIST_MAX): what has so many counts as if they were as many
// megabytes.
constexpr uint64_t kUnlistedSpace = uint64_t{1} << 30;

uint64_t xattr_space(int fd) {
  std::vector<char> names(kUsualNames);
  auto length = sys::list_xattr(fd, names);
  if (!length && length.error().code == ERANGE) {
    names.resize(XATTR_LIST_MAX);
    length = sys::list_xattr(fd, names);
  }
  if (!length) return length.error().code == E2BIG ? kUnlistedSpace : 0;
  uint64_t space = 0;
  for (size_t at = 0; at < *length; at += std::strlen(&names[at]) + 1) {
    const std::string_view name(&names[at]);
    if (name.starts_with(kOwnXattrs)) continue;
    if (const auto size = sys::get_xattr(fd, name.data(), {})) space += kXattrSpace + name.size() + *size;
  }
  return space;
}

}  // namespace

void count_inode(Entries& entries, Entry* entry, int fd, const struct stat& attributes) {
  const bool is_file = S_ISREG(attributes.st_mode);
  // A directory's other names are those of directories in it.
  const uint64_t names = S_ISDIR(attributes.st_mode) ? 1 : std::max<uint64_t>(attributes.st_nlink, 1);
  const uint64_t more = std::min<uint64_t>((names - 1) * kNameSpace + xattr_space(fd), UINT32_MAX);
  if (is_file && entry != nullptr)
    entries.contents().owned(*entry, attributes.st_uid, static_cast<uint32_t>(more));
  else if (!is_file && attributes.st_nlink > 0)
    entries.shares().counted(
        attributes.st_ino, attributes.st_uid,
        {.data_bytes = allocated_bytes_of(attributes), .inode_space = kNameSpace + more, .disk_units = 0});
}

void count_inode(Entries& entries, Entry* entry, int fd) {
  if (const auto attributes = sys::stat_of(fd)) count_inode(entries, entry, fd, *attributes);
}

void count_for_holder(Entries& entries, Entry& entry) {
  if (!entry.is_file() || !entry.removed || entry.open_count == 0) return;
  if (const auto holder = entries.shares().holder(entry.policy.ino, entry.open_count))
    entries.contents().owned(entry, *holder, entry.kernel.more_inode_space);
}

}  // namespace kvcachefs
