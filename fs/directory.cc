// Reading directories. No state is kept between requests: each request opens the directory anew and goes to
// the offset that the last entry gave. A tmpfs keeps that offset stable while entries come and go (Linux 6.6,
// fs/libfs.c, simple offsets).
#include <dirent.h>

#include <array>
#include <cstring>
#include <vector>

#include "base/directory_records.h"
#include "fs/control_files.h"
#include "fs/operations.h"
#include "fs/server.h"

namespace kvcachefs::operations {
namespace {

// A Listing is a reply under construction.
class Listing {
 public:
  Listing(const Request& request, size_t size) : request_(request), buffer_(size) {}

  bool add(const char* name, const struct stat& attributes, off_t next) {
    char* at = buffer_.data() + used_;
    return took(fuse_add_direntry(request_, at, room(), name, &attributes, next));
  }
  bool add_plus(const char* name, const fuse_entry_param& entry, off_t next) {
    char* at = buffer_.data() + used_;
    return took(fuse_add_direntry_plus(request_, at, room(), name, &entry, next));
  }
  void reply() { (void)fuse_reply_buf(request_, buffer_.data(), used_); }

 private:
  size_t room() const { return buffer_.size() - used_; }
  bool took(size_t bytes) {
    if (bytes > room()) return false;
    used_ += bytes;
    return true;
  }

  const Request& request_;
  std::vector<char> buffer_;
  size_t used_ = 0;
};

bool is_dots(const char* name) {
  return std::strcmp(name, ".") == 0 || std::strcmp(name, "..") == 0;
}

// The entry is plain, or one with only its number and type although more was asked for.
bool add_plain(Listing& listing, bool plus, const char* name, uint64_t nodeid, mode_t type, off_t next) {
  struct stat attributes {};
  attributes.st_ino = nodeid;
  attributes.st_mode = type;
  if (!plus) return listing.add(name, attributes, next);
  fuse_entry_param entry{};
  entry.attr = attributes;
  return listing.add_plus(name, entry, next);
}

bool add_known(Listing& listing, Pool& pool, int directory, const char* name, off_t next) {
  auto handle = sys::handle_at(directory, name);
  const auto known = handle ? pool.inodes().look_up(*handle, directory, name) : pass(handle);
  // The name is gone since the directory was read, or is another file now: it is left out.
  if (!known) return true;
  const auto entry = entry_of(NodeId::of_inode(pool.number(), handle->ino).value, handle->generation,
                              known->attributes, known->being_written ? 0 : kLongTimeoutS);
  if (listing.add_plus(name, entry, next)) return true;
  pool.inodes().forget(handle->ino, 1);
  return false;
}

void read_root(const Request& request, size_t size, off_t offset, bool plus) {
  Server& server = server_of(request);
  Listing listing(request, size);
  const auto pools = server.pools.list();
  for (auto at = static_cast<size_t>(offset);; ++at) {
    const auto next = static_cast<off_t>(at + 1);
    if (at < 2) {
      if (!add_plain(listing, plus, at == 0 ? "." : "..", NodeId::kRoot, S_IFDIR, next)) break;
      continue;
    }
    if (at - 2 >= pools.size()) break;
    const Pool& pool = *pools[at - 2];
    const uint64_t nodeid = NodeId::of_inode(pool.number(), pool.root_ino()).value;
    if (!add_plain(listing, plus, pool.name().c_str(), nodeid, S_IFDIR, next)) break;
  }
  listing.reply();
}

void read_pool_directory(const Request& request, const Node& node, size_t size, off_t offset, bool plus) {
  Pool& pool = *node.pool;
  auto fd = pool.inodes().open_inode(node.ino, O_RDONLY | O_DIRECTORY);
  if (!fd) return reply_error(request, std::move(fd.error()));
  if (offset > 0)
    if (auto at = sys::seek(fd->get(), static_cast<uint64_t>(offset), SEEK_SET); !at)
      return reply_error(request, std::move(at.error()));
  Listing listing(request, size);
  std::array<char, 32768> buffer;
  for (;;) {
    auto bytes = sys::read_directory(fd->get(), buffer);
    if (!bytes) return reply_error(request, std::move(bytes.error()));
    if (*bytes == 0) return listing.reply();
    DirectoryRecords records({buffer.data(), *bytes});
    while (const auto record = records.next()) {
      const char* const name = record->name;
      const bool parent_of_root = node.ino == pool.root_ino() && std::strcmp(name, "..") == 0;
      const uint64_t nodeid =
          parent_of_root ? NodeId::kRoot : NodeId::of_inode(pool.number(), record->ino).value;
      const bool fits =
          plus && !is_dots(name)
              ? add_known(listing, pool, fd->get(), name, record->next_offset)
              : add_plain(listing, plus, name, nodeid, DTTOIF(record->type), record->next_offset);
      if (!fits) return listing.reply();
    }
  }
}

template <bool plus>
void read_entries(const Request& request, fuse_ino_t ino, size_t size, off_t offset, fuse_file_info*) {
  const NodeId id{ino};
  if (id.is_root()) return read_root(request, size, offset, plus);
  if (id.is_control()) {
    Listing listing(request, size);
    const auto listed = server_of(request).control.list(id);
    for (auto at = static_cast<size_t>(offset); at < listed.size(); ++at) {
      const mode_t type = listed[at].is_directory ? S_IFDIR : S_IFREG;
      if (!add_plain(listing, plus, listed[at].name.c_str(), listed[at].id.value, type,
                     static_cast<off_t>(at + 1)))
        break;
    }
    return listing.reply();
  }
  on_node<read_pool_directory>(request, ino, size, offset, plus);
}

void opendir(const Request& request, fuse_ino_t, fuse_file_info* file) {
  file->fh = 0;
  (void)fuse_reply_open(request, file);
}

void releasedir(const Request& request, fuse_ino_t, fuse_file_info*) {
  (void)fuse_reply_err(request, 0);
}

}  // namespace

void add_directory(fuse_lowlevel_ops& table) {
  table.opendir = on_request<opendir>;
  table.readdir = on_request<read_entries<false>>;
  table.readdirplus = on_request<read_entries<true>>;
  table.releasedir = on_request<releasedir>;
}

}  // namespace kvcachefs::operations
