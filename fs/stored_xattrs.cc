#include "fs/stored_xattrs.h"

#include <fmt/format.h>
#include <sys/xattr.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/key_value.h"
#include "base/sys.h"
#include "tier/entries/entry.h"
#include "tier/index/metadata.h"

namespace kvcachefs {
namespace {

constexpr int kMostPriority = 1000;

// Beyond XATTR_LIST_MAX (64 KiB) of names the kernel lists none of them any more, and the daemon's own marks
// come on top.
constexpr uint64_t kMostXattrNamesBytes = 32 << 10;

struct Sums {
  explicit Sums(const std::map<std::string, uint64_t, std::less<>>& sizes) {
    for (const auto& [name, size] : sizes) {
      bytes += name.size() + size;
      names_bytes += name.size() + 1;
      ++count;
    }
  }
  uint64_t bytes = 0, names_bytes = 0, count = 0;
};

}  // namespace

Result<void> check_xattr(std::string_view name, std::string_view value) {
  if (name != kPriorityXattr) return check_metadata(name, value);
  const auto priority = number_in<int>(value);
  return priority && *priority <= kMostPriority && *priority >= -kMostPriority ? Result<void>()
                                                                               : fail(EINVAL);
}

Waited wait_for_attributes(Pool& pool, uint64_t ino, std::span<const XattrChange> changes,
                           Patience patience) {
  constexpr uint64_t kXattrInodeBytes = 1024, kFactsBytes = 64;
  uint64_t inodes = 0;
  for (const XattrChange& change : changes)
    if (change.value)
      inodes += (change.value->size() + change.name.size() + kFactsBytes) / kXattrInodeBytes + 1;
  const auto file = pool.inodes().attributes(ino);
  const uid_t owner = file ? file->st_uid : 0;
  Evictor& evictor = pool.evictor();
  const Waited waited = evictor.gives_way(owner, nullptr)
                            ? Waited::kNoRoom
                            : evictor.wait_to_make(patience, owner, nullptr, false, inodes);
  if (waited == Waited::kNoRoom) pool.insight().report_full(true);
  return waited;
}

Result<void> check_room(const NameLimits& limits, int fd, std::span<const XattrChange> changes) {
  // The list is not asked for its length first, because the spiller may add an attribute of the daemon's
  // before the second call.
  std::vector<char> names(XATTR_LIST_MAX);
  auto length = sys::list_xattr(fd, names);
  if (!length) return pass(length);
  std::map<std::string, uint64_t, std::less<>> sizes;
  for (size_t at = 0; at < *length; at += std::strlen(&names[at]) + 1)
    if (const char* const name = &names[at]; !std::string_view(name).starts_with(kOwnXattrs))
      sizes[name] = sys::get_xattr(fd, name, {}).value_or(0);
  const Sums before(sizes);
  for (const XattrChange& change : changes) {
    if (change.value)
      sizes[change.name] = change.value->size();
    else
      sizes.erase(change.name);
  }
  const Sums after(sizes);
  const bool has_too_many =
      after.count > before.count && (after.names_bytes > kMostXattrNamesBytes || after.count > limits.xattrs);
  const bool is_too_large = after.bytes > before.bytes && after.bytes > limits.xattr_bytes;
  if (!has_too_many && !is_too_large) return {};
  return fail(ENOSPC,
              fmt::format("{} xattrs of {} bytes with their names are more than an inode may have: {} of "
                          "{} bytes (max_xattrs, max_xattr_bytes)",
                          after.count, after.bytes, limits.xattrs.load(), limits.xattr_bytes.load()));
}

}  // namespace kvcachefs
