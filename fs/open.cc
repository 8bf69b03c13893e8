#include <cerrno>

#include "base/clock.h"
#include "fs/control_files.h"
#include "fs/operations.h"
#include "fs/server.h"

namespace kvcachefs::operations {
namespace {

bool writes(const fuse_file_info* file) {
  return (file->flags & O_ACCMODE) != O_RDONLY;
}

// Answers; kColdEntry is handed back and not answered.
Result<void> try_open(fuse_req_t request, const Node& node, fuse_file_info* file, bool from_disk) {
  const bool writer = writes(file);
  auto opened = node.pool->begin_open(node.ino, writer, client_of(request, *node.pool), from_disk);
  if (!opened) {
    if (opened.error().code == kColdEntry) return pass(opened);
    // To one who means to write, ENOENT would be a failure and not a miss: the kernel may look again in any
    // case.
    if (writer && opened.error().code == ESTALE) {
      // What follows in the same call, a CREATE in a pool that has gone too, is still its second time.
      if (!server_of(request).stale_callers.again(fuse_req_ctx(request)->pid))
        server_of(request).survivors.told_stale(fuse_req_ctx(request)->pid);
      (void)fuse_reply_err(request, ESTALE);
    } else {
      reply_error(request, std::move(opened.error()));
    }
    return {};
  }
  // A passthrough write never comes here, and of others the kernel leaves set-group-ID to the daemon, so such
  // bits go when a user who may not keep them opens for writing.
  if (writer)
    if (auto fd = node.pool->open_inode(node.ino, O_PATH)) (void)drop_set_id_bits(request, fd->get());
  if (auto answered = answer_open(request, node, *opened, file); !answered) {
    reply_error(request, std::move(answered.error()));
    return {};
  }
  // Interrupted: the kernel will never release what it did not get.
  Server& server = server_of(request);
  about_to_answer();
  if (fuse_reply_open(request, file) == -ENOENT) close_handle(server, node, *file);
  return {};
}

// One more round if it was evicted between its promotion and this, or nobody has looked at its copy. A reader
// gets it from the disk only after its checksum was found right.
void open_cold(fuse_req_t request, Node node, fuse_file_info file, uint64_t begun_ns, int tries) {
  Pool& pool = *node.pool;
  const uint64_t ino = node.ino;
  auto reopen = [request, node = std::move(node), file, begun_ns, tries](Result<void> promoted) mutable {
    const bool intact = !promoted && promoted.error().code == kIntactOnDisk;
    if (!promoted && promoted.error().code == ESHUTDOWN) return (void)fuse_reply_err(request, ENOTCONN);
    // Not ENOENT: it is there, and to store it anew may be for nothing.
    if (!promoted && is_disk_error(promoted.error().code)) return reply_error(request, {EIO, {}});
    auto outcome = try_open(request, node, &file, intact);
    if (outcome) return node.pool->counters().open_ns.record(now_ns() - begun_ns);
    // A writer, or many at the last pages.
    if (intact || tries == kPromotions) return reply_error(request, {ENOSPC, {}});
    open_cold(request, std::move(node), file, begun_ns, tries + 1);
  };
  pool.promote(ino, for_this_request(std::move(reopen)));
}

}  // namespace

void fill_in(fuse_req_t request, const Pool& pool, const Pool::Opened& opened, uint64_t handle,
             fuse_file_info* file) {
  Server& server = server_of(request);
  const bool reader = !writes(file);
  file->fh = handle << kHandleShift | (opened.from_disk ? kFromDisk : reader ? 0 : kForWriting);
  // A writer's close is the one sign that its content is whole; a reader's needs no round trip.
  file->noflush = reader;
  if (opened.from_disk) {
    file->direct_io = 1;
  } else if (server.backing.passthrough()) {
    file->backing_id = opened.backing;
    // What is written through it comes here then, to be answered when it is durable; mappings and others' I/O
    // do not.
    file->direct_io = !reader && (file->flags & O_DSYNC) != 0 && pool.disk() != nullptr ? 1 : 0;
  } else {
    file->keep_cache = 1;  // all changes go through this kernel's own cache
  }
}

Result<void> answer_open(fuse_req_t request, const Node& node, const Pool::Opened& opened,
                         fuse_file_info* file) {
  Server& server = server_of(request);
  server.stale_callers.settled(fuse_req_ctx(request)->pid);
  auto handle = server.survivors.opened({.inode = {node.pool->number(), node.ino},
                                         .unique = request_identity().unique,
                                         .writer = writes(file),
                                         .from_disk = opened.from_disk});
  if (!handle) {
    node.pool->end_open(node.ino, writes(file), opened.from_disk);
    return pass(handle);
  }
  fill_in(request, *node.pool, opened, *handle, file);
  fault_point("open written down");
  return {};
}

void close_handle(Server& server, const Node& node, const fuse_file_info& file) {
  const uint64_t handle = file.fh >> kHandleShift;
  // A process that died may have closed it already, and what it had counted went with it.
  if (!server.survivors.is_open(handle)) return;
  server.survivors.closed(handle);
  node.pool->end_open(node.ino, writes(&file), (file.fh & kFromDisk) != 0);
}

bool open_again(fuse_req_t request, const Node& node, fuse_file_info* file) {
  const RequestIdentity identity = request_identity();
  if (!identity.resent) return false;
  Server& server = server_of(request);
  const auto opened = server.survivors.opened_by(identity.unique);
  if (!opened || opened->inode != PoolInode{node.pool->number(), node.ino}) return false;
  const auto adopted = node.pool->adopted_open(node.ino, opened->from_disk);
  if (!adopted) {
    // Begun anew: what is written down of the first time would stay open for ever.
    fuse_file_info first = *file;
    first.fh = opened->handle << kHandleShift | (opened->from_disk ? kFromDisk : 0);
    close_handle(server, node, first);
    return false;
  }
  fill_in(request, *node.pool, *adopted, opened->handle, file);
  about_to_answer();
  if (fuse_reply_open(request, file) == -ENOENT) close_handle(server, node, *file);
  return true;
}

void when_resident(fuse_req_t request, const Node& node, std::move_only_function<void()> then) {
  auto go_on = [request, then = std::move(then)](Result<void> promoted) mutable {
    if (promoted) return then();
    const int code = promoted.error().code;
    if (code == ESHUTDOWN) return (void)fuse_reply_err(request, ENOTCONN);
    if (code == kIntactOnDisk) return reply_error(request, {ENOSPC, {}});
    // A damaged one is gone by now, which is what looking again will show.
    reply_error(request, {is_damage(code) ? ESTALE : is_disk_error(code) ? EIO : code, {}});
  };
  node.pool->promote(node.ino, for_this_request(std::move(go_on)));
}

void open(fuse_req_t request, fuse_ino_t ino, fuse_file_info* file) {
  const NodeId id{ino};
  if (id.is_control()) return server_of(request).control.open(request, id, file);
  const uint64_t begun_ns = now_ns();
  auto node = find_node(server_of(request), ino);
  if (!node) return reply_error(request, std::move(node.error()));
  if (open_again(request, *node, file)) return;
  if (!try_open(request, *node, file, false)) return open_cold(request, std::move(*node), *file, begun_ns, 1);
  node->pool->counters().open_ns.record(now_ns() - begun_ns);
}

void flush(fuse_req_t request, fuse_ino_t ino, fuse_file_info* file) {
  const NodeId id{ino};
  if (id.is_control()) return server_of(request).control.flush(request, id, file);
  auto node = find_node(server_of(request), ino);
  if (!node) return reply_error(request, std::move(node.error()));
  const bool writer = (file->fh & kForWriting) != 0;
  if (writer) node->pool->flushed(node->ino);
  if (!writer || node->pool->durability() != Durability::kSync) return reply_done(request);
  node->pool->sync(node->ino, answer(request));
}

void release(fuse_req_t request, fuse_ino_t ino, fuse_file_info* file) {
  const NodeId id{ino};
  if (id.is_control()) return server_of(request).control.release(request, id, file);
  Server& server = server_of(request);
  auto node = find_node(server, ino);
  if (node)
    close_handle(server, *node, *file);
  else
    server.survivors.closed(file->fh >> kHandleShift);  // of a pool that has gone
  (void)fuse_reply_err(request, 0);
}

void fsync(fuse_req_t request, fuse_ino_t ino, int, fuse_file_info*) {
  auto node = find_node(server_of(request), ino);
  if (!node) return reply_done(request);  // a control file
  node->pool->sync(node->ino, answer(request));
}

void fsyncdir(fuse_req_t request, fuse_ino_t ino, int, fuse_file_info*) {
  auto node = find_node(server_of(request), ino);
  if (!node) return reply_done(request);
  node->pool->sync_directory(node->ino, answer(request));
}

}  // namespace kvcachefs::operations
