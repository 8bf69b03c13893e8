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

}  // namespace

void open(fuse_req_t request, fuse_ino_t ino, fuse_file_info* file) {
  const NodeId id{ino};
  if (id.is_control()) return server_of(request).control.open(request, id, file);
  const uint64_t begun_ns = now_ns();
  auto node = find_node(server_of(request), ino);
  if (!node) return reply_error(request, std::move(node.error()));
  auto backing = node->pool->begin_open(node->ino, writes(file));
  if (!backing) {
    // To one who means to write, ENOENT would be a failure and not a miss: the kernel may look again in any
    // case. What follows in the same call, a CREATE in a pool that has gone too, is still its second time.
    if (writes(file) && backing.error().code == ESTALE) {
      (void)server_of(request).stale_callers.again(fuse_req_ctx(request)->pid);
      return (void)fuse_reply_err(request, ESTALE);
    }
    return reply_error(request, std::move(backing.error()));
  }
  // A passthrough write never comes here, so set-ID bits go when a user who may not keep them opens for
  // writing.
  if (writes(file) && server_of(request).backing.passthrough() && fuse_req_ctx(request)->uid != 0)
    if (auto fd = node->pool->open_inode(node->ino, O_PATH)) (void)drop_set_id_bits(fd->get());
  answer_open(request, *backing, file);
  const bool writer = writes(file);
  // Interrupted: the kernel will never release what it did not get.
  if (fuse_reply_open(request, file) == -ENOENT) node->pool->end_open(node->ino, writer);
  node->pool->counters().open_ns.record(now_ns() - begun_ns);
}

void flush(fuse_req_t request, fuse_ino_t ino, fuse_file_info* file) {
  const NodeId id{ino};
  if (id.is_control()) return server_of(request).control.flush(request, id, file);
  auto node = find_node(server_of(request), ino);
  if (!node) return reply_error(request, std::move(node.error()));
  if (writes(file)) node->pool->flushed(node->ino);
  reply_done(request);
}

void release(fuse_req_t request, fuse_ino_t ino, fuse_file_info* file) {
  const NodeId id{ino};
  if (id.is_control()) return server_of(request).control.release(request, id, file);
  if (auto node = find_node(server_of(request), ino)) node->pool->end_open(node->ino, writes(file));
  (void)fuse_reply_err(request, 0);
}

// Memory is all there is: what is written is as safe as it gets.
void fsync(fuse_req_t request, fuse_ino_t, int, fuse_file_info*) {
  reply_done(request);
}

}  // namespace kvcachefs::operations
