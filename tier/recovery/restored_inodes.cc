#include "tier/recovery/restored_inodes.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "base/fault_point.h"
#include "base/sys.h"
#include "tier/catalog/copy_mark.h"
#include "tier/kept_ctime.h"

namespace kvcachefs {

Result<void> dress(const CatalogNode& node, int fd) {
  // Also to root, because in a set-group-ID directory the inode has got that one's group.
  if (auto owned = sys::change_owner(fd, node.uid, node.gid); !owned) return pass(owned);
  // Because the umask is 0 the mode is right, except that a set-group-ID directory and a change of owner
  // change bits.
  if (!S_ISLNK(node.mode) && (S_ISDIR(node.mode) || (node.mode & 07000) != 0))
    if (auto moded = sys::change_mode(fd, node.mode & 07777); !moded) return pass(moded);
  for (const auto& [name, value] : node.xattrs)
    if (auto set = sys::set_xattr(fd, name.c_str(), value, 0); !set) return pass(set);
  (void)sys::change_times(fd, {node.accessed, node.modified});
  return {};
}

// A file gets its name when all of it is there, above all its mark: if this process dies, nothing may take
// the lack of pages for its content.
Result<UniqueFd> make_restored_file(const CatalogNode& node, int directory, const CatalogContent& content,
                                    bool marks) {
  if (const int error = injected_error("restore a file")) return fail(error);
  auto fd = sys::open_at(directory, ".", O_TMPFILE | O_RDWR, node.mode & 07777);
  if (!fd) return fd;
  if (content.size_bytes > 0)
    if (auto sized = sys::truncate(fd->get(), content.size_bytes); !sized) return pass(sized);
  if (auto dressed = dress(node, fd->get()); !dressed) return pass(dressed);
  if (!marks) return fd;
  (void)restore_ctime(fd->get(), node.modified, node.changed, true);
  const CopyMark mark{.state = CopyMark::State::kCold, .node_id = node.id, .content = content};
  if (auto put = put_copy_mark(fd->get(), mark); !put) return pass(put);
  return fd;
}

Result<UniqueFd> make_restored_inode(const CatalogNode& node, int directory, const char* name,
                                     bool may_be_there, bool& is_new) {
  const mode_t mode = node.mode & 07777;
  Result<void> made = S_ISDIR(node.mode)   ? sys::make_directory_at(directory, name, mode)
                      : S_ISLNK(node.mode) ? sys::symlink_at(node.link_target.c_str(), directory, name)
                                           : sys::make_node_at(directory, name, node.mode, node.device);
  is_new = made.has_value();
  if (!made && !(may_be_there && made.error().code == EEXIST)) return pass(made);
  auto fd = sys::open_at(directory, name, O_PATH | O_NOFOLLOW);
  if (!fd) return fd;
  auto attributes = sys::stat_of(fd->get());
  if (!attributes) return pass(attributes);
  if ((attributes->st_mode & S_IFMT) != (node.mode & S_IFMT)) return fail(EEXIST);
  return fd;
}

}  // namespace kvcachefs
