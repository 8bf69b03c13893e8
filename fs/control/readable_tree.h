// A ReadableTree is a pool's names as one caller may see them: the kernel checks file modes at each call on a
// name, and an answer that names many entries must respect the same modes. Each system call counts against
// the query's work: one for the name, and one for each directory above it that is not known yet. One thread.
// Failure: a name that cannot be looked up counts as one that the caller may not look up; ETIME once the
// query's work is used up.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/result.h"
#include "base/unique_fd.h"
#include "fs/caller.h"
#include "tier/index/query_work.h"

namespace kvcachefs {

// The rights of a caller. If the caller's thread cannot be seen, only its user and group are known, and it
// has no rights beyond theirs.
class Rights {
 public:
  Rights(uid_t uid, gid_t gid, pid_t thread);

  bool may_read(const struct stat& file) const { return may(file, S_IROTH); }
  bool may_write(const struct stat& file) const { return may(file, S_IWOTH); }
  bool may_search(const struct stat& directory) const { return may(directory, S_IXOTH); }
  bool is(uid_t user) const { return user == uid_; }
  // True if the caller may set the attributes that only a file's owner may set (belongs_to_owner(),
  // tier/index/metadata.h).
  bool owns(const struct stat& file) const { return owns_all_ || file.st_uid == uid_; }
  // Two callers with the same text may do the same.
  std::string text() const;

 private:
  bool may(const struct stat& file, mode_t wanted) const;  // `wanted` as of others

  const std::optional<Caller> caller_;
  const uid_t uid_;
  const gid_t gid_;
  const bool reads_all_;   // CAP_DAC_READ_SEARCH
  const bool passes_all_;  // CAP_DAC_OVERRIDE
  const bool owns_all_;    // CAP_FOWNER
};

class ReadableTree {
 public:
  // The work has to outlive the tree.
  ReadableTree(UniqueFd root, const Rights& rights, QueryWork& work)
      : root_(std::move(root)), rights_(rights), work_(work) {}

  // Returns what the caller's stat(2) of the name would return. ENOENT: the name is missing. EACCES: the
  // caller may not search a directory above it. EINVAL: no call can use this name.
  Result<struct stat> look_up(std::string_view name);
  // The same, and EACCES if the caller may not read the file.
  Result<struct stat> readable(std::string_view name);
  // Returns the inode of a file that the caller may look up, or nullopt. For queries of many names: a
  // directory that is asked for many of its names is listed once, and answers as it was at that moment.
  std::optional<uint64_t> file_at(std::string_view name);
  const Rights& rights() const { return rights_; }
  QueryWork& work() { return work_; }

 private:
  struct NameHash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  struct Directory {
    Result<UniqueFd> fd;
    uint64_t names = 0;  // in it when it was opened
    uint64_t asked = 0;  // of files that were sought in it
    bool is_listed = false;
    std::unordered_map<std::string, uint64_t, NameHash, std::equal_to<>> files =
        {};  // their inodes, once it is listed
  };

  Directory open(std::string_view path);
  Directory& open_directory(std::string_view path);
  void list(Directory& directory);

  UniqueFd root_;
  const Rights& rights_;
  QueryWork& work_;
  std::unordered_map<std::string, Directory> directories_;
  uint64_t listed_ = 0;  // names in all listed directories
};

// The directory of a name, without the slash, and the rest of it.
inline std::pair<std::string_view, std::string_view> split_name(std::string_view name) {
  const size_t slash = name.rfind('/');
  if (slash == std::string_view::npos) return {{}, name};
  return {name.substr(0, slash), name.substr(slash + 1)};
}

}  // namespace kvcachefs
