#include "fs/control/readable_tree.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/capability.h>

#include <utility>

#include "base/sys.h"

namespace kvcachefs {
namespace {

// Engines spread their entries over 256 directories and more; beyond these they are opened anew.
constexpr size_t kMostDirectories = 256;
// Where mapped ids are allowed (fs/mapped_ids.h) the kernel tells the user and the group of creates alone.
// caller_ has both.
constexpr uid_t kNotTold = static_cast<uid_t>(-1);

std::optional<int> descriptor_of(const UniqueFd& directory) {
  return directory ? std::optional(directory.get()) : std::nullopt;
}

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
      passes_all_(caller_ && caller_->may(CAP_DAC_OVERRIDE)) {}

bool Rights::may(const struct stat& file, mode_t wanted) const {
  const bool reads = wanted == S_IROTH || (wanted == S_IXOTH && S_ISDIR(file.st_mode));
  if (passes_all_ || (reads_all_ && reads)) return true;
  if (file.st_uid == uid_) return (file.st_mode & wanted << 6) != 0;
  const bool is_in_group = file.st_gid == gid_ || (caller_ && caller_->in_group(file.st_gid));
  return (file.st_mode & (is_in_group ? wanted << 3 : wanted)) != 0;
}

std::string Rights::text() const {
  return fmt::format("{} {} {} {} {}", uid_, gid_, reads_all_, passes_all_,
                     caller_ ? caller_->groups() : "-");
}

std::optional<int> ReadableTree::directory(std::string_view path) {
  if (path.empty()) {
    // A tree is looked at for one query, which may ask for thousands of names here, and a look takes 1 to 2
    // us.
    if (!may_search_root_) {
      const auto root = sys::stat_of(root_.get());
      may_search_root_ = root && rights_.may_search(*root);
    }
    return *may_search_root_ ? std::optional(root_.get()) : std::nullopt;
  }
  const auto known = directories_.find(std::string(path));
  if (known != directories_.end()) return known->second ? std::optional(known->second.get()) : std::nullopt;
  const auto [parent_path, name] = split_name(path);
  UniqueFd opened;
  if (const auto parent = directory(parent_path); parent && !name.empty() && name != "." && name != "..") {
    auto fd = sys::open_at(*parent, std::string(name).c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW);
    const auto attributes = fd ? sys::stat_of(fd->get()) : pass(fd);
    if (attributes && rights_.may_search(*attributes)) opened = std::move(*fd);
  }
  if (directories_.size() >= kMostDirectories) directories_.clear();
  last_ = &*directories_.insert_or_assign(std::string(path), std::move(opened)).first;
  return descriptor_of(last_->second);
}

bool ReadableTree::may_read(std::string_view name, const struct stat& file) {
  return rights_.may_read(file) && directory(split_name(name).first).has_value();
}

}  // namespace kvcachefs
