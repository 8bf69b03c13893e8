// A ReadableTree is a pool's names as one caller may see them: the kernel checks file modes at each call on a
// name, and an answer that names many entries has to keep to the same. One thread. Failure: what cannot be
// looked at, may not be.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/unique_fd.h"
#include "fs/caller.h"

namespace kvcachefs {

// Who asks. Of a thread that cannot be seen its user and group are known, and no rights beyond theirs.
class Rights {
 public:
  Rights(uid_t uid, gid_t gid, pid_t thread);

  bool may_read(const struct stat& file) const { return may(file, S_IROTH); }
  bool may_write(const struct stat& file) const { return may(file, S_IWOTH); }
  bool may_search(const struct stat& directory) const { return may(directory, S_IXOTH); }
  // Two callers with the same text may read the same.
  std::string text() const;

 private:
  bool may(const struct stat& file, mode_t wanted) const;  // `wanted` as of others

  const std::optional<Caller> caller_;
  const uid_t uid_;
  const gid_t gid_;
  const bool reads_all_;   // CAP_DAC_READ_SEARCH
  const bool passes_all_;  // CAP_DAC_OVERRIDE
};

class ReadableTree {
 public:
  ReadableTree(UniqueFd root, const Rights& rights) : root_(std::move(root)), rights_(rights) {}

  // The directory's descriptor, for the next call on this tree at the latest, if each directory of the path
  // lets the caller search it. The path is below the pool, and empty for its root. Links are not followed.
  std::optional<int> directory(std::string_view path);
  bool may_read(std::string_view name, const struct stat& file);
  const Rights& rights() const { return rights_; }

 private:
  UniqueFd root_;
  const Rights& rights_;
  std::optional<bool> may_search_root_;
  std::unordered_map<std::string, UniqueFd> directories_;  // an empty one: it may not be searched
  const std::pair<const std::string, UniqueFd>* last_ = nullptr;
};

// The directory of a name, without the slash, and the rest of it.
inline std::pair<std::string_view, std::string_view> split_name(std::string_view name) {
  const size_t slash = name.rfind('/');
  if (slash == std::string_view::npos) return {{}, name};
  return {name.substr(0, slash), name.substr(slash + 1)};
}

}  // namespace kvcachefs
