#include <linux/capability.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "fs/control_files.h"
#include "fs/operations.h"
#include "fs/server.h"

namespace kvcachefs::operations {
namespace {

constexpr uint64_t kBlockBytes = 4096;

timespec time_to_set(int valid, int now_bit, int set_bit, const timespec& time) {
  if ((valid & now_bit) != 0) return {0, UTIME_NOW};
  if ((valid & set_bit) != 0) return time;
  return {0, UTIME_OMIT};
}

// `begun`: some of it is done.
Result<void> set_attributes(fuse_req_t request, const Node& node, const struct stat& wanted, int valid,
                            bool& begun) {
  auto fd = node.pool->open_inode(node.ino, O_PATH | O_NOFOLLOW);
  if (!fd) return pass(fd);
  // First, since it may have to wait for the disk, and all is then done again.
  if ((valid & FUSE_SET_ATTR_SIZE) != 0)
    if (auto done = node.pool->truncate(node.ino, static_cast<uint64_t>(wanted.st_size)); !done) return done;
  begun = (valid & FUSE_SET_ATTR_SIZE) != 0;
  if ((valid & FUSE_SET_ATTR_MODE) != 0) {
    if (auto done = sys::change_mode(fd->get(), wanted.st_mode & 07777); !done) return done;
    begun = true;
  }
  if ((valid & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)) != 0) {
    const uid_t uid = (valid & FUSE_SET_ATTR_UID) != 0 ? wanted.st_uid : static_cast<uid_t>(-1);
    const gid_t gid = (valid & FUSE_SET_ATTR_GID) != 0 ? wanted.st_gid : static_cast<gid_t>(-1);
    if (auto done = sys::change_owner(fd->get(), uid, gid); !done) return done;
    begun = true;
  }
  // Without passthrough the kernel asks for it in part only (FATTR_KILL_SUIDGID is of
  // FUSE_HANDLE_KILLPRIV_V2).
  if ((valid & FUSE_SET_ATTR_SIZE) != 0)
    if (auto done = drop_set_id_bits(request, fd->get()); !done) return done;
  const std::array<timespec, 2> times = {
      time_to_set(valid, FUSE_SET_ATTR_ATIME_NOW, FUSE_SET_ATTR_ATIME, wanted.st_atim),
      time_to_set(valid, FUSE_SET_ATTR_MTIME_NOW, FUSE_SET_ATTR_MTIME, wanted.st_mtim)};
  if (times[0].tv_nsec != UTIME_OMIT || times[1].tv_nsec != UTIME_OMIT)
    return node.pool->set_times(node.ino, times);
  return {};
}

}  // namespace

Result<void> drop_set_id_bits(fuse_req_t request, int fd) {
  auto attributes = sys::stat_of(fd);
  if (!attributes || !S_ISREG(attributes->st_mode)) return {};
  mode_t mode = attributes->st_mode & 07777;
  if ((mode & (S_ISUID | S_ISGID)) == 0) return {};
  const auto caller = Caller::of(fuse_req_ctx(request)->pid);
  if (caller && caller->may(CAP_FSETID)) return {};
  mode &= ~static_cast<mode_t>(S_ISUID);
  // Without the group's right to execute, set-group-ID is nothing that others could use: its members keep it.
  const bool member = caller && caller->in_group(attributes->st_gid);
  if ((mode & S_IXGRP) != 0 || !member) mode &= ~static_cast<mode_t>(S_ISGID);
  if (mode == (attributes->st_mode & 07777)) return {};
  return sys::change_mode(fd, mode);
}

void getattr(fuse_req_t request, fuse_ino_t ino, fuse_file_info*) {
  const NodeId id{ino};
  if (id.is_root()) return reply_attributes(request, ino, root_attributes(server_of(request)));
  if (id.is_control()) return server_of(request).control.getattr(request, id);
  auto node = find_node(server_of(request), ino);
  if (!node) return reply_error(request, std::move(node.error()));
  auto attributes = node->pool->attributes(node->ino);
  if (!attributes) return reply_error(request, std::move(attributes.error()));
  reply_attributes(request, ino, *attributes);
}

namespace {

void change(fuse_req_t request, fuse_ino_t ino, struct stat wanted, int valid, int tries) {
  auto node = find_node(server_of(request), ino);
  if (!node) return reply_error(request, std::move(node.error()));
  bool begun = false;
  auto done = set_attributes(request, *node, wanted, valid, begun);
  if (!done && done.error().code == kColdEntry) {
    if (tries == kPromotions) return reply_error(request, {ENOSPC, {}});
    return when_resident(request, *node, [=] { change(request, ino, wanted, valid, tries + 1); });
  }
  node->pool->attributes_changed(node->ino);
  if (!done) return reply_error(request, begun ? in_effect(done.error()) : std::move(done.error()));
  auto attributes = node->pool->attributes(node->ino);
  if (!attributes) return reply_error(request, in_effect(attributes.error()));
  reply_attributes(request, ino, *attributes);
}

}  // namespace

void setattr(fuse_req_t request, fuse_ino_t ino, struct stat* attributes, int valid, fuse_file_info* file) {
  const NodeId id{ino};
  if (id.is_control()) {
    // A shell's `>` truncates first; there is nothing to truncate.
    if ((valid & ~(FUSE_SET_ATTR_SIZE | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_CTIME | FUSE_SET_ATTR_MTIME_NOW |
                   FUSE_SET_ATTR_KILL_SUID)) == 0)
      return getattr(request, ino, file);
    return reply_error(request, {EPERM, {}});
  }
  change(request, ino, *attributes, valid, 1);
}

void readlink(fuse_req_t request, fuse_ino_t ino) {
  auto node = find_node(server_of(request), ino);
  if (!node) return reply_error(request, std::move(node.error()));
  auto fd = node->pool->open_inode(node->ino, O_PATH | O_NOFOLLOW);
  if (!fd) return reply_error(request, std::move(fd.error()));
  auto target = sys::read_link(fd->get());
  if (!target) return reply_error(request, std::move(target.error()));
  (void)fuse_reply_readlink(request, target->c_str());
}

void statfs(fuse_req_t request, fuse_ino_t ino) {
  Server& server = server_of(request);
  const NodeId id{ino};
  std::vector<std::shared_ptr<Pool>> pools;
  if (id.pool_number() == 0) {
    pools = server.pools.list();
  } else if (auto pool = server.pools.find(id.pool_number())) {
    pools.push_back(std::move(pool));
  }
  struct statvfs answer {};
  answer.f_bsize = kBlockBytes;
  answer.f_frsize = kBlockBytes;
  answer.f_namemax = 255;
  for (const auto& pool : pools) {
    const PoolUsage usage = pool->usage();
    const ArenaUsage inodes = pool->inode_usage();
    answer.f_blocks += usage.size_bytes / kBlockBytes;
    answer.f_bfree += usage.free_bytes / kBlockBytes;
    answer.f_bavail += std::min(usage.free_bytes + usage.evictable_bytes, usage.size_bytes) / kBlockBytes;
    answer.f_files += inodes.inodes;
    answer.f_ffree += inodes.free_inodes;
    answer.f_favail += inodes.free_inodes;
  }
  (void)fuse_reply_statfs(request, &answer);
}

}  // namespace kvcachefs::operations
