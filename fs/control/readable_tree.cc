#include "fs/control/readable_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/capability.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <utility>

#include "base/directory_records.h"
#include "base/sys.h"

namespace kvcachefs {
namespace {

// Engines spread their entries over 256 directories and more; beyond these they are opened anew.
constexpr size_t kMostDirectories = 256;
// The size of a directory on a tmpfs for each of its names (Linux 6.6, mm/shmem.c, BOGO_DIRENT_SIZE).
constexpr uint64_t kTmpfsNameBytes = 20;
// To list a directory costs 0.35 us a name and 0.25 us to keep it, a stat of a name in it 1.9 us: it is
// listed when that costs at most some five times what its stats have cost by then. A run of names that goes
// on gains most of its stats, and one that ends there has lost less than it would have by listing first.
constexpr uint64_t kNamesListedForStat = 16;
constexpr uint64_t kAskedBeforeListing = 64;
constexpr uint64_t kMostListed = 65'536;  // in all: 10 MiB
// Where mapped ids are allowed (fs/mapped_ids.h), the kernel reports the user and the group of creates alone.
// caller_ has both.
constexpr uid_t kNotTold = static_cast<uid_t>(-1);

std::optional<Caller> caller_of(pid_t thread) {
  auto caller = Caller::of(thread);
  if (!caller) return std::nullopt;
  return std::move(*caller);
}

}  // namespace

Rights::Rights(uid_t uid, gid_t gid, pid_t thread)
    : caller_(caller_of(thread)),
      uid_(uid != kNotTold || !caller_ ? uid : caller_->user()),
      gid_(gid),
      reads_all_(caller_ && caller_->may(CAP_DAC_READ_SEARCH)),
      passes_all_(caller_ && caller_->may(CAP_DAC_OVERRIDE)),
      owns_all_(caller_ && caller_->may(CAP_FOWNER)) {}

bool Rights::may(const struct stat& file, mode_t wanted) const {
  const bool reads = wanted == S_IROTH || (wanted == S_IXOTH && S_ISDIR(file.st_mode));
  if (passes_all_ || (reads_all_ && reads)) return true;
  if (file.st_uid == uid_) return (file.st_mode & wanted << 6) != 0;
  const bool is_in_group = file.st_gid == gid_ || (caller_ && caller_->in_group(file.st_gid));
  return (file.st_mode & (is_in_group ? wanted << 3 : wanted)) != 0;
}

std::string Rights::text() const {
  return fmt::format("{} {} {} {} {} {}", uid_, gid_, reads_all_, passes_all_, owns_all_,
                     caller_ ? caller_->groups() : "-");
}

ReadableTree::Directory ReadableTree::open(std::string_view path) {
  const auto [parent_path, name] = split_name(path);
  Directory opened{.fd = fail(EINVAL)};
  if (!work_.goes_on()) {
    opened.fd = fail(ETIME);
  } else if (path.empty()) {
    opened.fd = sys::duplicate(root_.get());
  } else if (!name.empty() && name != "." && name != "..") {
    const Directory& parent = open_directory(parent_path);
    opened.fd = parent.fd ? sys::open_at(parent.fd->get(), std::string(name).c_str(),
                                         O_PATH | O_DIRECTORY | O_NOFOLLOW)
                          : fail(parent.fd.error().code);
  }
  const auto attributes = opened.fd ? sys::stat_of(opened.fd->get()) : fail(opened.fd.error().code);
  if (!attributes)
    opened.fd = fail(attributes.error().code);
  else if (!rights_.may_search(*attributes))
    opened.fd = fail(EACCES);
  else
    opened.names = static_cast<uint64_t>(attributes->st_size) / kTmpfsNameBytes;
  return opened;
}

ReadableTree::Directory& ReadableTree::open_directory(std::string_view path) {
  const std::string key(path);
  if (const auto known = directories_.find(key); known != directories_.end()) return known->second;
  Directory opened = open(path);
  if (directories_.size() >= kMostDirectories) {
    directories_.clear();
    listed_ = 0;
  }
  return directories_.insert_or_assign(key, std::move(opened)).first->second;
}

Result<struct stat> ReadableTree::look_up(std::string_view name) {
  const auto [path, last] = split_name(name);
  if (last.empty() || last == "." || last == "..") return fail(EINVAL);
  const Directory& directory = open_directory(path);
  if (!directory.fd) return fail(directory.fd.error().code);
  if (!work_.goes_on()) return fail(ETIME);
  return sys::stat_at(directory.fd->get(), std::string(last).c_str());
}

Result<struct stat> ReadableTree::readable(std::string_view name) {
  auto file = look_up(name);
  if (file && !rights_.may_read(*file)) return fail(EACCES);
  return file;
}

std::optional<uint64_t> ReadableTree::file_at(std::string_view name) {
  const auto [path, last] = split_name(name);
  Directory& directory = open_directory(path);
  if (!directory.fd || last.empty()) return std::nullopt;
  ++directory.asked;
  if (!directory.is_listed && directory.asked >= kAskedBeforeListing &&
      directory.names <= std::min(directory.asked * kNamesListedForStat, kMostListed - listed_))
    list(directory);
  if (directory.is_listed) {
    const auto found = directory.files.find(last);
    return found == directory.files.end() ? std::nullopt : std::optional(found->second);
  }
  const auto file =
      work_.goes_on() ? sys::stat_at(directory.fd->get(), std::string(last).c_str()) : fail(ETIME);
  return file && S_ISREG(file->st_mode) ? std::optional(file->st_ino) : std::nullopt;
}

void ReadableTree::list(Directory& directory) {
  const auto fd = sys::open_at(directory.fd->get(), ".", O_RDONLY | O_DIRECTORY);
  std::array<char, 32768> buffer;
  directory.files.reserve(directory.names);
  auto bytes = fd ? sys::read_directory(fd->get(), buffer) : fail(fd.error().code);
  for (; bytes && *bytes > 0; bytes = sys::read_directory(fd->get(), buffer)) {
    if (directory.files.size() > 2 * directory.names) break;  // names are being made
    if (!work_.goes_on()) break;
    DirectoryRecords records({buffer.data(), *bytes});
    while (const auto record = records.next())
      if (record->type == DT_REG) directory.files.emplace(record->name, record->ino);
  }
  directory.is_listed = bytes && *bytes == 0;
  if (directory.is_listed) {
    listed_ += std::min(directory.names, kMostListed - listed_);
    return;
  }
  directory.files = {};
  directory.names = UINT64_MAX;  // it is not tried again
}

}  // namespace kvcachefs
