// The data operations that reach the daemon: reads and writes in daemon I/O and of control files, all others
// in every mode.
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "base/mapping.h"
#include "fs/control_files.h"
#include "fs/operations.h"
#include "fs/server.h"

namespace kvcachefs::operations {
namespace {

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

// The result is true if the request was answered with the pages themselves, so that the bytes are copied
// once. Otherwise nothing was done: a part of the range is a hole, for which a mapping would allocate memory,
// or a call cuts the file.
bool reply_from_pages(const Request& request, const Node& node, uint64_t offset, size_t size) {
  const PagesInUse::Reading reading = server_of(request).pages_in_use.read(node.nodeid());
  if (reading.refused()) return false;
  auto fd = node.pool->inodes().open_inode(node.ino, O_RDONLY);
  if (!fd) return false;
  const auto attributes = sys::stat_of(fd->get());
  if (!attributes) return false;
  const uint64_t end = std::min<uint64_t>(offset + size, static_cast<uint64_t>(attributes->st_size));
  if (end < offset + kBufferedBytesMax) return false;
  // The mapping consists of whole huge pages, each of which is mapped with one entry.
  const uint64_t from = offset / kHugePageBytes * kHugePageBytes;
  const uint64_t to = (end + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const auto pages = Mapping::of_range(fd->get(), from, to - from);
  if (!pages || !pages->is_resident(offset - from, end - offset)) return false;
  // The pages are populated first: if the daemon is killed while a page of its answer has to be fetched, the
  // client gets an EIO (as in Session::serve_device).
  if (!pages->populate(offset - from, end - offset)) return false;
  const auto bytes = pages->bytes().subspan(offset - from, end - offset);
  (void)fuse_reply_buf(request, reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return true;
}

void read(const Request& request, const Node& node, size_t size, off_t offset, fuse_file_info* file) {
  if ((file->fh & kFromDisk) != 0) {
    return node.pool->disk_requests().read_from_disk(
        node.ino, static_cast<uint64_t>(offset), size, [request](Result<std::span<const std::byte>> bytes) {
          if (!bytes) return reply_error(request, std::move(bytes.error()));
          (void)fuse_reply_buf(request, reinterpret_cast<const char*>(bytes->data()), bytes->size());
        });
  }
  if (size >= kBufferedBytesMax && reply_from_pages(request, node, static_cast<uint64_t>(offset), size))
    return;
  const auto buffer = std::make_unique_for_overwrite<char[]>(size);
  auto count = node.pool->open_files().read(node.ino, {buffer.get(), size}, static_cast<uint64_t>(offset));
  if (!count) return reply_error(request, std::move(count.error()));
  (void)fuse_reply_buf(request, buffer.get(), *count);
}

Tried write_bytes(const Request& request, const Node& node, Patience patience, Writing& writing,
                  fuse_file_info* file) {
  auto written = node.pool->open_files().write(node.ino, writing.bytes, writing.offset, patience);
  // What was written before the wait is told, as for a write that ends at a full pool.
  if (!written && writing.done == 0) return refuse(request, std::move(written.error()));
  if (written) writing.wrote(written->bytes);
  if (written && written->tried == Tried::kWouldWait) return Tried::kWouldWait;
  // Because the kernel clears set-id bits only for writes through its page cache, the daemon does it for
  // others. A later flush of cached pages (`writepage`) is no user's write.
  if (file->writepage == 0) (void)drop_set_id_bits(request, node);
  if ((file->flags & O_DSYNC) == 0 || !node.pool->disk().exists()) {
    about_to_answer(request);
    (void)fuse_reply_write(request, writing.done);
    return Tried::kDone;
  }
  // The file was opened with O_SYNC or O_DSYNC, or written with RWF_DSYNC. A write that is not durable is an
  // error; the kernel asks for the size again in any case.
  auto reply = [request, done = writing.done](Result<void> durable) {
    if (!durable) return reply_error(request, std::move(durable.error()));
    about_to_answer(request);
    (void)fuse_reply_write(request, done);
  };
  node.pool->disk_requests().sync(node.ino, std::move(reply));
  return Tried::kDone;
}

void write(const Request& request, const Node& node, const char* bytes, size_t size, off_t offset,
           fuse_file_info* file) {
  Writing writing{{bytes, size}, static_cast<uint64_t>(offset)};
  with_patience<write_bytes>(request, node, writing, file);
}

Tried fallocate(const Request& request, const Node& node, Patience patience, int mode, off_t offset,
                off_t length, fuse_file_info*) {
  const auto cutting = server_of(request).pages_in_use.cut(node.nodeid());
  auto done = node.pool->open_files().allocate(node.ino, mode, static_cast<uint64_t>(offset),
                                               static_cast<uint64_t>(length), patience);
  if (done && *done == Tried::kWouldWait) return Tried::kWouldWait;
  reply_outcome(request, std::move(done));
  return Tried::kDone;
}

void lseek(const Request& request, fuse_ino_t ino, off_t offset, int whence, fuse_file_info* file) {
  // The error is not ENOSYS: after that the kernel would not send an LSEEK for any file.
  if (NodeId{ino}.is_control()) return reply_error(request, {EINVAL, {}});
  auto node = find_node(server_of(request), ino);
  if (!node) return reply_error(request, std::move(node.error()));
  const bool from_disk = (file->fh & kFromDisk) != 0;
  auto fd = from_disk ? Result<UniqueFd>(UniqueFd()) : node->pool->inodes().open_inode(node->ino, O_RDONLY);
  if (!fd) return reply_error(request, std::move(fd.error()));
  const auto from = static_cast<uint64_t>(offset);
  auto at = from_disk ? node->pool->disk_requests().seek_on_disk(node->ino, from, whence)
                      : sys::seek(fd->get(), from, whence);
  if (!at) return reply_error(request, std::move(at.error()));
  (void)fuse_reply_lseek(request, static_cast<off_t>(*at));
}

Tried copy_into(const Request& request, const Node& to, Patience patience, const Node& from, off_t in_offset,
                off_t out_offset, size_t length) {
  auto from_fd = from.pool->inodes().open_inode(from.ino, O_RDONLY);
  if (!from_fd) return refuse(request, std::move(from_fd.error()));
  auto to_fd = to.pool->inodes().open_inode(to.ino, O_RDWR);
  if (!to_fd) return refuse(request, std::move(to_fd.error()));
  auto copied =
      to.pool->open_files().copy_range({from_fd->get(), static_cast<uint64_t>(in_offset)},
                                       {to_fd->get(), static_cast<uint64_t>(out_offset)}, length, patience);
  if (!copied) return refuse(request, std::move(copied.error()));
  if (copied->tried == Tried::kWouldWait) return Tried::kWouldWait;
  about_to_answer(request);
  (void)fuse_reply_write(request, copied->bytes);
  return Tried::kDone;
}

void copy_file_range(const Request& request, const Node& from, off_t in_offset, fuse_file_info* in_file,
                     fuse_ino_t out, off_t out_offset, fuse_file_info*, size_t length, int) {
  // The kernel then reads and writes by itself.
  if ((in_file->fh & kFromDisk) != 0) return reply_error(request, {EOPNOTSUPP, {}});
  auto to = find_node(server_of(request), out);
  if (!to) return reply_error(request, std::move(to.error()));
  with_patience<copy_into>(request, *to, from, in_offset, out_offset, length);
}

}  // namespace

void add_data(fuse_lowlevel_ops& table) {
  table.read = on_node_or_control<read, &ControlFiles::read>;
  table.write = on_node_or_control<write, &ControlFiles::write>;
  table.fallocate = on_node_with_patience<fallocate>;
  table.lseek = on_request<lseek>;
  table.copy_file_range = on_node<copy_file_range>;
}

}  // namespace kvcachefs::operations
