// Data operations that reach the daemon: reads and writes in daemon I/O and of control files, the rest in
// every mode.
#include <fcntl.h>

#include <cerrno>
#include <memory>

#include "fs/control_files.h"
#include "fs/operations.h"
#include "fs/server.h"

namespace kvcachefs::operations {
namespace {

// A copy on the disk has no holes to tell of.
void seek_on_disk(fuse_req_t request, const Node& node, off_t offset, int whence) {
  auto attributes = node.pool->attributes(node.ino);
  if (!attributes) return reply_error(request, std::move(attributes.error()));
  if (offset < 0 || offset >= attributes->st_size) return reply_error(request, {ENXIO, {}});
  (void)fuse_reply_lseek(request, whence == SEEK_DATA ? offset : attributes->st_size);
}

}  // namespace

void read(fuse_req_t request, fuse_ino_t ino, size_t size, off_t offset, fuse_file_info* file) {
  const NodeId id{ino};
  if (id.is_control()) return server_of(request).control.read(request, id, size, offset, file);
  auto node = find_node(server_of(request), ino);
  if (!node) return reply_error(request, std::move(node.error()));
  if ((file->fh & kFromDisk) != 0) {
    return node->pool->read_from_disk(
        node->ino, static_cast<uint64_t>(offset), size,
        for_this_request([request](Result<std::span<const std::byte>> bytes) {
          if (!bytes) return reply_error(request, std::move(bytes.error()));
          (void)fuse_reply_buf(request, reinterpret_cast<const char*>(bytes->data()), bytes->size());
        }));
  }
  const auto buffer = std::make_unique_for_overwrite<char[]>(size);
  auto count = node->pool->read(node->ino, {buffer.get(), size}, static_cast<uint64_t>(offset));
  if (!count) return reply_error(request, std::move(count.error()));
  (void)fuse_reply_buf(request, buffer.get(), *count);
}

void write(fuse_req_t request, fuse_ino_t ino, const char* bytes, size_t size, off_t offset,
           fuse_file_info* file) {
  const NodeId id{ino};
  if (id.is_control()) return server_of(request).control.write(request, id, {bytes, size}, offset, file);
  auto node = find_node(server_of(request), ino);
  if (!node) return reply_error(request, std::move(node.error()));
  auto count = node->pool->write(node->ino, {bytes, size}, static_cast<uint64_t>(offset));
  if (!count) return reply_error(request, std::move(count.error()));
  if ((file->flags & O_DSYNC) == 0 || node->pool->disk() == nullptr) {
    about_to_answer();
    return (void)fuse_reply_write(request, *count);
  }
  // Opened with O_SYNC or O_DSYNC, or written with RWF_DSYNC. What is written and not durable is an error;
  // the kernel asks for the size again in any case.
  auto reply = [request, written = *count](Result<void> durable) {
    if (!durable) return reply_error(request, std::move(durable.error()));
    about_to_answer();
    (void)fuse_reply_write(request, written);
  };
  node->pool->sync(node->ino, for_this_request(std::move(reply)));
}

void fallocate(fuse_req_t request, fuse_ino_t ino, int mode, off_t offset, off_t length, fuse_file_info*) {
  auto node = find_node(server_of(request), ino);
  if (!node) return reply_error(request, std::move(node.error()));
  reply_outcome(request, node->pool->allocate(node->ino, mode, static_cast<uint64_t>(offset),
                                              static_cast<uint64_t>(length)));
}

void lseek(fuse_req_t request, fuse_ino_t ino, off_t offset, int whence, fuse_file_info* file) {
  // Not ENOSYS, after which the kernel would ask for no file any more.
  if (NodeId{ino}.is_control()) return reply_error(request, {EINVAL, {}});
  auto node = find_node(server_of(request), ino);
  if (!node) return reply_error(request, std::move(node.error()));
  if ((file->fh & kFromDisk) != 0) return seek_on_disk(request, *node, offset, whence);
  auto fd = node->pool->open_inode(node->ino, O_RDONLY);
  if (!fd) return reply_error(request, std::move(fd.error()));
  auto at = sys::seek(fd->get(), static_cast<uint64_t>(offset), whence);
  if (!at) return reply_error(request, std::move(at.error()));
  (void)fuse_reply_lseek(request, static_cast<off_t>(*at));
}

void copy_file_range(fuse_req_t request, fuse_ino_t in, off_t in_offset, fuse_file_info* in_file,
                     fuse_ino_t out, off_t out_offset, fuse_file_info*, size_t length, int) {
  // The kernel then reads and writes itself.
  if ((in_file->fh & kFromDisk) != 0) return reply_error(request, {EOPNOTSUPP, {}});
  auto from = find_node(server_of(request), in);
  if (!from) return reply_error(request, std::move(from.error()));
  auto to = find_node(server_of(request), out);
  if (!to) return reply_error(request, std::move(to.error()));
  auto from_fd = from->pool->open_inode(from->ino, O_RDONLY);
  if (!from_fd) return reply_error(request, std::move(from_fd.error()));
  auto to_fd = to->pool->open_inode(to->ino, O_RDWR);
  if (!to_fd) return reply_error(request, std::move(to_fd.error()));
  auto copied = to->pool->copy_range(from_fd->get(), static_cast<uint64_t>(in_offset), to_fd->get(),
                                     static_cast<uint64_t>(out_offset), length);
  if (!copied) return reply_error(request, std::move(copied.error()));
  about_to_answer();
  (void)fuse_reply_write(request, *copied);
}

}  // namespace kvcachefs::operations
