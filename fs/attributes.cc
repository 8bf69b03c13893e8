#include <linux/capability.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>

#include "base/clock.h"
#include "base/fault_point.h"
#include "fs/control_files.h"
#include "fs/operations.h"
#include "fs/server.h"
#include "tier/pool/headroom.h"

namespace kvcachefs::operations {
namespace {

timespec time_to_set(int valid, int now_bit, int set_bit, const timespec& time) {
  if ((valid & now_bit) != 0) return {0, UTIME_NOW};
  if ((valid & set_bit) != 0) return time;
  return {0, UTIME_OMIT};
}

struct Space {
  uint64_t bytes;
  uint64_t free_bytes;
  uint64_t available_bytes;
};

// Memory that is kept free for writers is not counted. A pool with a disk tier holds as much as the larger of
// its memory and its disk: entries that clients read come to memory and keep their place on the disk. Clients
// take `bytes` for the most that they may keep in the pool, and `available_bytes` for what they may still
// store: cached entries leave for new ones, and entries that are open or pinned are the clients' own to let
// go of.
Space space_of(Pool& pool, bool passes) {
  const PoolUsage memory = pool.insight().usage();
  const uint64_t holdable = holdable_bytes(pool.capacity().limit(), passes);
  const DiskTier* const disk = pool.disk().tier();
  const uint64_t disk_bytes = disk != nullptr ? disk->store->space().units() * disk->store->unit_bytes() : 0;
  const uint64_t bytes = std::max(holdable, disk_bytes);
  const uint64_t free_bytes = bytes - std::min(bytes, memory.used_bytes + pool.insight().cold_bytes());
  // A pool without its disk cannot evict entries that only its memory stores. While the host is short of
  // memory, a pool without a larger disk can store less, and only that is available.
  const uint64_t storable_bytes = std::max(std::min(holdable, memory.limit_bytes), disk_bytes);
  const uint64_t available_bytes = pool.disk().away() != nullptr
                                       ? std::min(storable_bytes, free_bytes + memory.evictable_bytes)
                                       : storable_bytes;
  return {bytes, free_bytes, available_bytes};
}

// `begun` is set to true when some of the change is done. The result is kHere, or kCold for an entry that
// has to be promoted before it is cut.
Result<Presence> set_attributes(const Request& request, const Node& node, const struct stat& wanted,
                                int valid, bool& begun) {
  // The size goes first, because it may have to wait for the disk, and then everything is done again.
  if ((valid & FUSE_SET_ATTR_SIZE) != 0) {
    const auto cutting = server_of(request).pages_in_use.cut(node.nodeid());
    auto cut = node.pool->open_files().truncate(node.ino, static_cast<uint64_t>(wanted.st_size));
    if (!cut || *cut == Presence::kCold) return cut;
    if (*cut != Presence::kHere) return std::unexpected(error_of(*cut));
    begun = true;
  }
  AttributeChange change;
  if ((valid & FUSE_SET_ATTR_MODE) != 0) change.mode = wanted.st_mode & 07777;
  if ((valid & FUSE_SET_ATTR_UID) != 0) change.uid = wanted.st_uid;
  if ((valid & FUSE_SET_ATTR_GID) != 0) change.gid = wanted.st_gid;
  const std::array<timespec, 2> times = {
      time_to_set(valid, FUSE_SET_ATTR_ATIME_NOW, FUSE_SET_ATTR_ATIME, wanted.st_atim),
      time_to_set(valid, FUSE_SET_ATTR_MTIME_NOW, FUSE_SET_ATTR_MTIME, wanted.st_mtim)};
  if (times[0].tv_nsec != UTIME_OMIT || times[1].tv_nsec != UTIME_OMIT) change.times = times;
  if (auto done = node.pool->tree().change(node.ino, change, begun); !done) return pass(done);
  // The kernel asks for this only in part without passthrough (FATTR_KILL_SUIDGID comes with
  // FUSE_HANDLE_KILLPRIV_V2).
  if ((valid & FUSE_SET_ATTR_SIZE) != 0)
    if (auto done = drop_set_id_bits(request, node); !done) return pass(done);
  return Presence::kHere;
}

// The kernel does not tell itself of a write through a mapping either, so the attributes of a file that may
// be written are asked for each time. may_be_written() is called first, because a mapping may end before the
// attributes are read.
void reply_attributes_of(const Request& request, const Node& node, Error (*error_of)(Error)) {
  const bool may_change = node.pool->recovery().is_adopting() || node.pool->inodes().may_be_written(node.ino);
  const double timeout_s = may_change ? 0 : kLongTimeoutS;
  auto attributes = node.pool->inodes().attributes(node.ino);
  if (!attributes) return reply_error(request, error_of(attributes.error()));
  reply_attributes(request, node.nodeid(), *attributes, timeout_s);
}

// Empty if the caller's write takes no bit away.
std::optional<mode_t> mode_without_set_id_bits(const Request& request, const Node& node) {
  const auto fd = node.pool->inodes().open_inode(node.ino, O_PATH);
  if (!fd) return std::nullopt;
  const auto attributes = sys::stat_of(fd->get());
  if (!attributes || !S_ISREG(attributes->st_mode)) return std::nullopt;
  mode_t mode = attributes->st_mode & 07777;
  if ((mode & (S_ISUID | S_ISGID)) == 0) return std::nullopt;
  const auto caller = Caller::of(fuse_req_ctx(request)->pid);
  if (caller && caller->may(CAP_FSETID)) return std::nullopt;
  mode &= ~static_cast<mode_t>(S_ISUID);
  // Without the group's right to execute, set-group-ID gives nothing to others, so members of the group keep
  // it.
  const bool member = caller && caller->in_group(attributes->st_gid);
  if ((mode & S_IXGRP) != 0 || !member) mode &= ~static_cast<mode_t>(S_ISGID);
  return mode == (attributes->st_mode & 07777) ? std::nullopt : std::optional(mode);
}

void getattr(const Request& request, fuse_ino_t ino, fuse_file_info*) {
  const NodeId id{ino};
  if (id.is_root()) return reply_attributes(request, ino, root_attributes(server_of(request)));
  if (id.is_control()) return server_of(request).control.getattr(request, id);
  auto node = find_node(server_of(request), ino);
  if (!node) return reply_error(request, std::move(node.error()));
  reply_attributes_of(request, *node, [](Error error) { return error; });
}

// The attributes of a pool's root are settings of the pool. They are written down after the call is answered,
// because an owner may make any number of such calls.
void root_has_changed(Server& server, const std::shared_ptr<Pool>& pool) {
  WaitingLane::Job job = [&server] { (void)server.pools_changed(); };
  WaitingLane& lane = pool->settings().orders();
  if (!server.start_helper || !lane.hand_over(job, [&] { return server.start_helper(pool, lane); })) job();
}

// An entry that was evicted after the change is gone with it: at ESTALE the kernel looks for the name again.
Error after_change(Error why) {
  return why.code == ESTALE ? why : in_effect(std::move(why));
}

void change(const Request& request, const Node& node, struct stat wanted, int valid,
            uint64_t patience_ends_ms, int tries) {
  bool begun = false;
  auto done = set_attributes(request, node, wanted, valid, begun);
  if (done && *done == Presence::kCold) {
    const auto refuse_cold = [request, node](Error why) {
      if (why.code == ENOSPC) node.pool->insight().report_full(true);
      reply_error(request, std::move(why));
    };
    if (tries == kPromotions) return refuse_cold({ENOSPC, {}});
    auto again = [=](const PromoteOutcome& outcome) {
      if (outcome.kind != PromoteOutcome::Kind::kPromoted) return refuse_cold(error_of(outcome));
      change(request, node, wanted, valid, patience_ends_ms, tries + 1);
    };
    return node.pool->disk_requests().promote(node.ino, again, Room::Whose::kWriter, patience_ends_ms);
  }
  if (!done) return reply_error(request, begun ? after_change(done.error()) : std::move(done.error()));
  fault_point("attributes changed");
  const bool is_setting = (valid & (FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)) != 0;
  if (is_setting && node.ino == node.pool->root_ino()) root_has_changed(server_of(request), node.pool);
  reply_attributes_of(request, node, after_change);
}

void setattr_of_node(const Request& request, const Node& node, struct stat* attributes, int valid,
                     fuse_file_info*) {
  when_catalog_takes_more(request, node, [request, node, wanted = *attributes, valid] {
    change(request, node, wanted, valid, now_coarse_ms() + kTruncationPatienceMs, 1);
  });
}

void setattr(const Request& request, fuse_ino_t ino, struct stat* attributes, int valid,
             fuse_file_info* file) {
  if (!NodeId{ino}.is_control()) return on_node<setattr_of_node>(request, ino, attributes, valid, file);
  // A shell's `>` truncates first; a control file has nothing to truncate.
  if ((valid & ~(FUSE_SET_ATTR_SIZE | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_CTIME | FUSE_SET_ATTR_MTIME_NOW |
                 FUSE_SET_ATTR_KILL_SUID)) == 0)
    return getattr(request, ino, file);
  reply_error(request, {EPERM, {}});
}

void readlink(const Request& request, const Node& node) {
  auto fd = node.pool->inodes().open_inode(node.ino, O_PATH | O_NOFOLLOW);
  if (!fd) return reply_error(request, std::move(fd.error()));
  auto target = sys::read_link(fd->get());
  if (!target) return reply_error(request, std::move(target.error()));
  (void)fuse_reply_readlink(request, target->c_str());
}

void statfs(const Request& request, fuse_ino_t ino) {
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
    const Space space = space_of(*pool, server.backing.passthrough());
    const ArenaUsage inodes = pool->insight().inode_usage();
    answer.f_blocks += space.bytes / kBlockBytes;
    answer.f_bfree += space.free_bytes / kBlockBytes;
    answer.f_bavail += space.available_bytes / kBlockBytes;
    answer.f_files += inodes.inodes;
    answer.f_ffree += inodes.free_inodes;
    answer.f_favail += inodes.free_inodes;
  }
  (void)fuse_reply_statfs(request, &answer);
}

// The requests that waited go on one after the other, until their changes fill the catalog's queue again. A
// catalog that cannot be written now holds up no request. While its disk hangs, a request fails after a time,
// because more and more would wait.
void wait_for_catalog(const Request& request, const Node& node, std::move_only_function<void()> then,
                      unsigned full_times) {
  node.pool->disk_requests().when_catalog_takes_more(
      [request, node, then = std::move(then), full_times](const Result<void>& outcome) mutable {
        if (outcome && node.pool->disk().tier()->store->log().is_full(full_times))
          return wait_for_catalog(request, node, std::move(then), full_times);
        if (!outcome && outcome.error().code == ETIMEDOUT)
          return reply_error(request, {EIO, outcome.error().message});
        then();
      });
}

}  // namespace

Result<void> drop_set_id_bits(const Request& request, const Node& node) {
  const auto mode = mode_without_set_id_bits(request, node);
  if (!mode) return {};
  AttributeChange change;
  change.mode = *mode;
  bool begun = false;
  return node.pool->tree().change(node.ino, change, begun);
}

void drop_set_id_bits_at_open(const Request& request, const Node& node) {
  if (const auto mode = mode_without_set_id_bits(request, node))
    node.pool->inodes().change_mode_unless_written(node.ino, *mode);
}

void when_catalog_takes_more(const Request& request, const Node& node, std::move_only_function<void()> then,
                             unsigned full_times) {
  const DiskTier* const tier = node.pool->disk().tier();
  if (tier == nullptr || !tier->store->log().is_full(full_times)) return then();
  wait_for_catalog(request, node, std::move(then), full_times);
}

void add_attributes(fuse_lowlevel_ops& table) {
  table.getattr = on_request<getattr>;
  table.setattr = on_request<setattr>;
  table.readlink = on_node<readlink>;
  table.statfs = on_request<statfs>;
}

}  // namespace kvcachefs::operations
