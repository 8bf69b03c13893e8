#include "alloc/memory_arena.h"

#include <fmt/format.h>
#include <linux/falloc.h>
#include <linux/magic.h>
#include <sys/mount.h>

#include <algorithm>
#include <cerrno>

#include "base/fault_point.h"
#include "base/log.h"
#include "base/sys_beneath.h"

namespace kvcachefs {
namespace {

// At most half of a pool is names, whatever its users make.
uint64_t inode_budget(uint64_t size_bytes) {
  return size_bytes / 2 / kInodeBytes + kFreeInodes;
}

std::string size_options(uint64_t size_bytes) {
  return fmt::format("size={},nr_inodes={}", size_bytes, inode_budget(size_bytes));
}

constexpr unsigned long kMountFlags = MS_NOSUID | MS_NODEV;

bool is_same(int a, int b) {
  const auto first = sys::stat_of(a), second = sys::stat_of(b);
  return first && second && first->st_dev == second->st_dev && first->st_ino == second->st_ino;
}

// In the order in which the options are given up.
constexpr TmpfsLack kLacks[] = {
    {}, {.noswap = true}, {.huge_pages = true}, {.huge_pages = true, .noswap = true}};

void log_lack(const std::string& path, TmpfsLack lack) {
  if (lack.huge_pages)
    log_warning(
        "{}: without huge pages, which this kernel does not have on a tmpfs: slower, by what a page of "
        "4 KiB costs",
        path);
  if (lack.noswap)
    log_info("{}: without noswap, which needs Linux 6.4: the kernel may swap the memory out", path);
}

}  // namespace

Result<TmpfsLack> mount_pool_memory(const std::string& path, uint64_t size_bytes) {
  Result<void> mounted;
  for (const TmpfsLack& lack : kLacks) {
    const std::string data = size_options(size_bytes) + ",mode=0700,inode64" +
                             (lack.huge_pages ? "" : ",huge=within_size") + (lack.noswap ? "" : ",noswap");
    const int injected = lack.huge_pages ? 0 : injected_error("mount huge");
    mounted = injected != 0 ? fail(injected)
                            : sys::mount("kvcachefs", path.c_str(), "tmpfs", kMountFlags, data.c_str());
    if (mounted) return lack;
    if (mounted.error().code != EINVAL) break;
  }
  return pass(mounted);
}

Result<MemoryArena> MemoryArena::create(const Options& options) {
  MemoryArena arena;
  if (auto made = sys::make_directories(options.path, 0700); !made) return pass(made);
  const auto lack = mount_pool_memory(options.path, options.size_bytes);
  if (!lack) return std::unexpected(lack.error());
  log_lack(options.path, *lack);
  arena.path_ = options.path;

  auto root = sys::open_at(AT_FDCWD, options.path.c_str(), O_RDONLY | O_DIRECTORY);
  if (!root) return pass(root);
  arena.mount_ = std::move(*root);
  if (auto made = sys::make_directory_at(arena.mount_.get(), "tree", 0700); !made) return pass(made);
  if (auto opened = arena.open_tree(); !opened) return pass(opened);
  if (auto owned = sys::change_owner(arena.tree_.get(), options.uid, options.gid); !owned) return pass(owned);
  if (auto moded = sys::change_mode(arena.tree_.get(), options.mode); !moded) return pass(moded);
  return arena;
}

Result<MemoryArena> MemoryArena::adopt(const std::string& path, std::span<const int> nameless) {
  auto root = sys::open_at(AT_FDCWD, path.c_str(), O_RDONLY | O_DIRECTORY);
  if (!root) return pass(root);
  const auto system = sys::statfs_of(root->get());
  if (!system || system->f_type != TMPFS_MAGIC) return fail(ENOENT, path + " is no pool's memory");
  MemoryArena arena;
  arena.mount_ = std::move(*root);
  auto opened = arena.open_tree();
  if (!opened && opened.error().code == ENOENT) {
    arena.removed_ = true;
    const auto is_tree = [&](int fd) { return sys::path_of(fd) == path + "/tree (deleted)"; };
    const auto tree = std::ranges::find_if(nameless, is_tree);
    auto copy = sys::duplicate(tree == nameless.end() ? arena.mount_.get() : *tree);
    opened = copy ? arena.use_tree(std::move(*copy)) : pass(copy);
  }
  if (!opened) return pass(opened);
  // The destructor unmounts the tmpfs from here on.
  arena.path_ = path;
  return arena;
}

Result<void> MemoryArena::open_tree() {
  auto tree = sys::open_at(mount_.get(), "tree", O_RDONLY | O_DIRECTORY);
  return tree ? use_tree(std::move(*tree)) : pass(tree);
}

Result<void> MemoryArena::use_tree(UniqueFd tree) {
  tree_ = std::move(tree);
  auto handle = sys::handle_of(tree_.get());
  if (!handle) return pass(handle);
  tree_handle_ = *handle;
  return {};
}

MemoryArena::~MemoryArena() {
  if (path_.empty()) return;
  tree_.reset();
  mount_.reset();
  // Only open files keep the tmpfs alive after this. Both calls fail only if an administrator unmounted it
  // first.
  (void)sys::unmount(path_.c_str(), MNT_DETACH);
  (void)sys::remove_directory(path_.c_str());
}

Result<UniqueFd> MemoryArena::open(sys::Handle handle, int flags) const {
  if (const int error = injected_error("open inode")) return fail(error);
  return sys::open_by_handle(mount_.get(), handle, flags);
}

Result<std::string> MemoryArena::name_of(int fd) const {
  auto path = sys::path_of(fd);
  if (!path) return path;
  const std::string prefix = path_ + "/tree/";
  if (!path->starts_with(prefix)) return fail(ENOENT);
  std::string name = path->substr(prefix.size());
  // A live name may end with " (deleted)" too; such a name leads to the same inode.
  if (name.ends_with(" (deleted)")) {
    const auto found = sys::open_beneath(tree_.get(), name.c_str(), O_PATH | O_NOFOLLOW);
    if (!found || !is_same(fd, found->get())) return fail(ENOENT);
  }
  return name;
}

Result<void> MemoryArena::drop_pages(int fd) const {
  auto attributes = sys::stat_of(fd);
  if (!attributes) return pass(attributes);
  if (attributes->st_blocks == 0) return {};
  // The punched range includes the rest of the last page and memory that was allocated beyond the file's
  // size, at any offset.
  return sys::allocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, INT64_MAX);
}

ArenaUsage MemoryArena::usage() const {
  auto usage = sys::statfs_of(mount_.get());
  if (!usage) return {};
  const auto block_bytes = static_cast<uint64_t>(usage->f_bsize);
  return {.size_bytes = usage->f_blocks * block_bytes,
          .free_bytes = usage->f_bfree * block_bytes,
          .inodes = usage->f_files,
          .free_inodes = usage->f_ffree,
          .index_bytes = *index_bytes_};
}

Result<void> MemoryArena::resize(uint64_t size_bytes) {
  // A smaller pool may keep more inodes than its limit, because only size= has to hold exactly.
  const ArenaUsage now = usage();
  const uint64_t inodes = std::max(inode_budget(size_bytes), now.inodes - now.free_inodes + 1);
  const std::string data = fmt::format("size={},nr_inodes={}", size_bytes, inodes);
  return sys::mount("kvcachefs", path_.c_str(), "tmpfs", kMountFlags | MS_REMOUNT, data.c_str());
}

Result<void> MemoryArena::remove_tree() {
  return sys::unlink_at(mount_.get(), "tree", AT_REMOVEDIR);
}

}  // namespace kvcachefs
