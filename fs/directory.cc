// Reading directories. A position is the place of a name (fs/listed_names.h): where a listing goes on does
// not depend on which names came, left or were replaced, nor on what this process knows of the open
// directory.
#include <dirent.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fs/control_files.h"
#include "fs/listed_names.h"
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
  bool is_empty() const { return used_ == 0; }
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

// A directory that is being listed, and what was read of it.
struct Reading {
  Pool& pool;
  UniqueFd directory;
  Listings::Names names;
  bool changed = false;  // since its names were read
};

// Adds a name, with its attributes if they are asked for. A name that is gone since the names were read is
// left out. One that leads to another file at each look has its number and type alone.
bool add_present(Listing& listing, bool plus, const Reading& reading, const PlacedName& placed) {
  Pool& pool = reading.pool;
  const int directory = reading.directory.get();
  const char* const name = reading.names->text_of(placed);
  const auto next = static_cast<off_t>(placed.place + 1);
  if (plus) {
    auto handle = sys::handle_at(directory, name);
    const auto known = handle ? pool.inodes().look_up(*handle, directory, name) : pass(handle);
    if (known) {
      const auto entry = entry_of(NodeId::of_inode(pool.number(), handle->ino).value, handle->generation,
                                  known->attributes, known->being_written ? 0 : kLongTimeoutS);
      if (listing.add_plus(name, entry, next)) return true;
      pool.inodes().forget(handle->ino, 1);
      return false;
    }
  }
  uint64_t ino = placed.ino;
  mode_t type = DTTOIF(placed.type);
  if (plus || reading.changed) {
    const auto status = sys::stat_at(directory, name);
    if (!status) return true;
    ino = status->st_ino;
    type = status->st_mode & S_IFMT;
  }
  return add_plain(listing, plus, name, NodeId::of_inode(pool.number(), ino).value, type, next);
}

struct Dots {
  uint64_t directory = 0;
  uint64_t parent = 0;
};

// Adds "." and "..", of which those before `place` are listed already.
bool add_dots(Listing& listing, bool plus, Dots dots, uint64_t place) {
  return (place > 0 || add_plain(listing, plus, ".", dots.directory, S_IFDIR, 1)) &&
         (place > 1 || add_plain(listing, plus, "..", dots.parent, S_IFDIR, kFirstPlace));
}

void read_control(const Request& request, NodeId id, size_t size, uint64_t place, bool plus) {
  Listing listing(request, size);
  Server& server = server_of(request);
  auto all = id.is_root() ? std::vector<ControlFiles::Named>{} : server.control.list(id);
  if (id.is_root()) {
    if (!add_dots(listing, plus, {id.value, id.value}, place)) return listing.reply();
    for (const auto& pool : server.pools.list())
      all.push_back({pool->name(), NodeId::of_inode(pool->number(), pool->root_ino()), true});
  }
  NameCollector collector(place, SIZE_MAX);
  for (const auto& each : all) collector.add(each.name, each.id.value, each.is_directory ? DT_DIR : DT_REG);
  const ListedNames listed = collector.take();
  for (auto at = listed.first_at(place); at != listed.names.end(); ++at) {
    const char* const name = listed.text_of(*at);
    if (!add_plain(listing, plus, name, at->ino, DTTOIF(at->type), static_cast<off_t>(at->place + 1))) break;
  }
  listing.reply();
}

bool has_changed(const Reading& reading) {
  const auto now = sys::stat_of(reading.directory.get());
  const timespec& read = reading.names->changed;
  return !now || now->st_ctim.tv_sec != read.tv_sec || now->st_ctim.tv_nsec != read.tv_nsec;
}

Dots dots_of(const Node& node, const ListedNames& names) {
  if (node.ino == node.pool->root_ino()) return {node.nodeid(), NodeId::kRoot};
  return {node.nodeid(), NodeId::of_inode(node.pool->number(), names.parent_ino).value};
}

void read_pool_directory(const Request& request, const Node& node, size_t size, uint64_t place, bool plus,
                         uint64_t handle) {
  auto fd = node.pool->inodes().open_inode(node.ino, O_RDONLY | O_DIRECTORY);
  if (!fd) return reply_error(request, std::move(fd.error()));
  Listings& listings = server_of(request).listings;
  Listing listing(request, size);
  Reading reading{*node.pool, std::move(*fd), nullptr};
  // From its start the directory is read anew, because a client that rewinds wants the new names too.
  if (place > 0) reading.names = listings.find(handle, place);
  if (reading.names != nullptr) reading.changed = has_changed(reading);
  bool has_dots = false;
  for (;;) {
    if (reading.names == nullptr) {
      auto read = read_names(reading.directory.get(), place);
      if (!read) return reply_error(request, std::move(read.error()));
      reading.names = std::make_shared<const ListedNames>(std::move(*read));
      reading.changed = false;
      listings.keep(handle, reading.names);
    }
    const ListedNames& names = *reading.names;
    if (!std::exchange(has_dots, true) && !add_dots(listing, plus, dots_of(node, names), place))
      return listing.reply();
    for (auto at = names.first_at(place); at != names.names.end(); ++at)
      if (!add_present(listing, plus, reading, *at)) return listing.reply();
    if (names.to == ListedNames::kNoEnd) break;
    place = names.to;
    reading.names = nullptr;
  }
  // The kernel asks once more after the last name, and what is kept serves for that answer.
  if (listing.is_empty()) listings.drop(handle);
  listing.reply();
}

template <bool plus>
void read_entries(const Request& request, fuse_ino_t ino, size_t size, off_t offset, fuse_file_info* file) {
  const NodeId id{ino};
  const auto place = static_cast<uint64_t>(offset);
  if (id.is_root() || id.is_control()) return read_control(request, id, size, place, plus);
  on_node<read_pool_directory>(request, ino, size, place, plus, file->fh);
}

void opendir(const Request& request, fuse_ino_t, fuse_file_info* file) {
  file->fh = server_of(request).listings.open();
  (void)fuse_reply_open(request, file);
}

void releasedir(const Request& request, fuse_ino_t, fuse_file_info* file) {
  server_of(request).listings.drop(file->fh);
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
