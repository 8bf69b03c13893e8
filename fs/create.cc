// Making things: as root in the tmpfs, then given to the caller. The kernel has checked permissions
// (default_permissions), applied the umask and stripped what set-group-ID rules forbid (vfs_prepare_mode)
// before a request comes here; the tmpfs itself hands down the group of a set-group-ID directory.
#include <cerrno>

#include "base/clock.h"
#include "fs/operations.h"
#include "fs/server.h"

namespace kvcachefs::operations {
namespace {

Result<void> give_to_caller(fuse_req_t request, int directory, int fd, mode_t mode) {
  const fuse_ctx* caller = fuse_req_ctx(request);
  if (caller->uid == 0 && caller->gid == 0) return {};  // it is root's already, or of the directory's group
  auto parent = sys::stat_of(directory);
  if (!parent) return pass(parent);
  const gid_t gid = (parent->st_mode & S_ISGID) != 0 ? static_cast<gid_t>(-1) : caller->gid;
  if (auto done = sys::change_owner(fd, caller->uid, gid); !done) return done;
  // A change of owner clears them on a regular file, whoever asks.
  if ((mode & (S_ISUID | S_ISGID)) != 0 && S_ISREG(mode)) return sys::change_mode(fd, mode & 07777);
  return {};
}

// Takes away what was made for a request that then failed, and what the pool knows of it by now.
void unmake(Pool& pool, int directory, const char* name, bool is_directory) {
  if (!pool.remove(directory, name, is_directory))
    (void)sys::unlink_at(directory, name, is_directory ? AT_REMOVEDIR : 0);
}

Result<fuse_entry_param> adopt_new(fuse_req_t request, const Node& parent, int directory, const char* name,
                                   mode_t mode) {
  auto fd = sys::open_at(directory, name, O_PATH | O_NOFOLLOW);
  if (!fd) return pass(fd);
  if (auto given = give_to_caller(request, directory, fd->get(), mode); !given) return pass(given);
  auto handle = sys::handle_of(fd->get());
  if (!handle) return pass(handle);
  auto attributes = sys::stat_of(fd->get());
  if (!attributes) return pass(attributes);
  if (S_ISREG(attributes->st_mode)) {
    auto known = parent.pool->created({.fd = fd->get(),
                                       .ino = handle->ino,
                                       .generation = handle->generation,
                                       .open = false,
                                       .writer = false,
                                       .named = true,
                                       .name = name,
                                       .reserved_end = 0,
                                       .node = 0});
    if (!known) return pass(known);
  } else if (auto known = parent.pool->looked_up(*handle, *attributes); !known) {
    return pass(known);
  } else {
    parent.pool->made(handle->ino, directory, name);
  }
  return entry_of(NodeId::of_inode(parent.pool->number(), handle->ino).value, handle->generation,
                  *attributes);
}

// Runs `make(directory)` in the parent and answers with the entry that came of it.
template <class Make>
void make_in(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, Make make) {
  auto node = find_node(server_of(request), parent);
  if (!node) return reply_error(request, std::move(node.error()));
  if (is_reserved(*node, name)) return reply_error(request, {EEXIST, {}});
  auto directory = node->pool->directory(node->ino);
  if (!directory) return reply_error(request, std::move(directory.error()));
  const bool attempted = request_identity().attempted;
  if (attempted && S_ISREG(mode)) node->pool->undo_create(directory->fd, name);
  const bool there = sys::stat_at(directory->fd, name).has_value();
  if (there && (!attempted || S_ISREG(mode))) return reply_error(request, {EEXIST, {}});
  server_of(request).survivors.attempt();
  if (!there)
    if (auto made = make(directory->fd); !made) return reply_error(request, std::move(made.error()));
  auto entry = adopt_new(request, *node, directory->fd, name, mode);
  if (!entry) {
    unmake(*node->pool, directory->fd, name, S_ISDIR(mode));
    return reply_error(request, std::move(entry.error()));
  }
  reply_entry(request, *entry);
}

void make_pool(fuse_req_t request, const char* name, mode_t mode) {
  takes_long(request);
  Server& server = server_of(request);
  if (std::string_view(name) == kMountControlName) return reply_error(request, {EEXIST, {}});
  if (auto may = need_administrator(request); !may) return reply_error(request, std::move(may.error()));
  const fuse_ctx* caller = fuse_req_ctx(request);
  if (!server.pools.find(std::string_view(name))) server.survivors.attempt();
  auto pool = server.pools.create_default(name, mode & 07777, caller->uid, caller->gid);
  if (!pool && !(request_identity().attempted && pool.error().code == EEXIST))
    return reply_error(request, std::move(pool.error()));
  server.pools_changed();
  lookup(request, NodeId::kRoot, name);
}

struct NewFile {
  UniqueFd fd;
  sys::Handle handle;
  struct stat attributes {};
  Pool::Reservation reservation;
};

Result<NewFile> prepare(fuse_req_t request, Pool& pool, int directory, UniqueFd fd, mode_t mode) {
  NewFile file;
  if (auto given = give_to_caller(request, directory, fd.get(), mode); !given) return pass(given);
  auto handle = sys::handle_of(fd.get());
  if (!handle) return pass(handle);
  auto attributes = sys::stat_of(fd.get());
  if (!attributes) return pass(attributes);
  auto reservation = pool.reserve(fd.get(), fuse_req_ctx(request)->pid);
  if (!reservation) return pass(reservation);
  file.fd = std::move(fd);
  file.handle = *handle;
  file.attributes = *attributes;
  file.reservation = *reservation;
  return file;
}

bool writes(const fuse_file_info* file) {
  return (file->flags & O_ACCMODE) != O_RDONLY;
}

// Answers a CREATE or, with an empty name, a TMPFILE for a file that is new; after a failure nothing is
// answered.
Result<void> open_new(fuse_req_t request, const std::shared_ptr<Pool>& shared, NewFile& made,
                      const char* name, fuse_file_info* file) {
  Pool& pool = *shared;
  const bool named = name[0] != '\0';
  auto backing = pool.created({.fd = made.fd.get(),
                               .ino = made.handle.ino,
                               .generation = made.handle.generation,
                               .open = true,
                               .writer = writes(file),
                               .named = named,
                               .name = name,
                               .reserved_end = made.reservation.end,
                               .node = made.reservation.node});
  if (!backing) return pass(backing);
  const Node node{.pool = shared, .ino = made.handle.ino};
  if (auto answered = answer_open(request, node, {.backing = *backing, .from_disk = false}, file);
      !answered) {
    pool.forget(made.handle.ino, 1);
    return answered;
  }
  made.fd.reset();  // before the answer: an eviction must not meet it
  const auto entry = entry_of(NodeId::of_inode(pool.number(), made.handle.ino).value, made.handle.generation,
                              made.attributes);
  Server& server = server_of(request);
  about_to_answer();
  if (fuse_reply_create(request, &entry, file) == -ENOENT) {
    close_handle(server, node, *file);
    pool.forget(made.handle.ino, 1);
  }
  return {};
}

// The name was there after all, though the kernel did not know it.
Result<void> open_existing(fuse_req_t request, const std::shared_ptr<Pool>& shared, int directory,
                           const char* name, fuse_file_info* file) {
  Pool& pool = *shared;
  auto handle = sys::handle_at(directory, name);
  if (!handle) return pass(handle);
  auto attributes = sys::stat_at(directory, name);
  if (!attributes) return pass(attributes);
  if (!S_ISREG(attributes->st_mode)) return fail(ESTALE);  // the kernel looks again and opens it its own way
  if (auto known = pool.looked_up(*handle, *attributes); !known) return known;
  auto opened = pool.begin_open(handle->ino, writes(file), client_of(request, pool));
  if (!opened) {
    pool.forget(handle->ino, 1);
    // The kernel looks again, finds it, and opens it as what it is.
    if (opened.error().code == kColdEntry) return fail(ESTALE);
    return pass(opened);
  }
  const Node node{.pool = shared, .ino = handle->ino};
  if (auto answered = answer_open(request, node, *opened, file); !answered) {
    pool.forget(handle->ino, 1);
    return answered;
  }
  // The kernel believes that it made the file, so it will not truncate it. The last that can fail.
  if ((file->flags & O_TRUNC) != 0) {
    if (auto cut = pool.truncate(handle->ino, 0); !cut) {
      close_handle(server_of(request), node, *file);
      pool.forget(handle->ino, 1);
      return cut;
    }
    attributes->st_size = 0;
    attributes->st_blocks = 0;
  }
  const auto entry =
      entry_of(NodeId::of_inode(pool.number(), handle->ino).value, handle->generation, *attributes);
  Server& server = server_of(request);
  about_to_answer();
  if (fuse_reply_create(request, &entry, file) == -ENOENT) {
    close_handle(server, node, *file);
    pool.forget(handle->ino, 1);
  }
  return {};
}

// Answers a CREATE or TMPFILE that a process that died has done and not answered.
bool create_again(fuse_req_t request, const std::shared_ptr<Pool>& pool, fuse_file_info* file) {
  const RequestIdentity identity = request_identity();
  if (!identity.resent) return false;
  Server& server = server_of(request);
  const auto opened = server.survivors.opened_by(identity.unique);
  if (!opened || opened->inode.pool != pool->number()) return false;
  const Node node{.pool = pool, .ino = opened->inode.ino};
  auto attributes = pool->attributes(node.ino);
  const auto adopted = pool->adopted_open(node.ino, opened->from_disk);
  if (!attributes || !adopted) return false;
  const uint32_t generation = pool->generation_of(node.ino);
  (void)pool->looked_up({node.ino, generation}, *attributes);  // what has no name has no lookups
  fill_in(request, *pool, *adopted, opened->handle, file);
  const auto entry = entry_of(NodeId::of_inode(pool->number(), node.ino).value, generation, *attributes);
  about_to_answer();
  if (fuse_reply_create(request, &entry, file) == -ENOENT) close_handle(server, node, *file);
  return true;
}

}  // namespace

void mknod(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, dev_t device) {
  make_in(request, parent, name, mode,
          [&](int directory) { return sys::make_node_at(directory, name, mode, device); });
}

void mkdir(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode) {
  if (parent == NodeId::kRoot) return make_pool(request, name, mode);
  make_in(request, parent, name, S_IFDIR | mode,
          [&](int directory) { return sys::make_directory_at(directory, name, mode); });
}

void symlink(fuse_req_t request, const char* target, fuse_ino_t parent, const char* name) {
  make_in(request, parent, name, S_IFLNK | 0777,
          [&](int directory) { return sys::symlink_at(target, directory, name); });
}

void create(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* file) {
  const uint64_t begun_ns = now_ns();
  auto node = find_node(server_of(request), parent);
  if (!node) return reply_error(request, std::move(node.error()));
  if (is_reserved(*node, name)) return reply_error(request, {EEXIST, {}});
  Pool& pool = *node->pool;
  auto directory = pool.directory(node->ino);
  if (!directory) return reply_error(request, std::move(directory.error()));
  if (create_again(request, node->pool, file)) return;
  // What a process that died has made and nobody has heard of is made anew, with all that belongs to it.
  if (request_identity().attempted) pool.undo_create(directory->fd, name);
  Survivors& survivors = server_of(request).survivors;
  if (survivors.supervised() && !sys::stat_at(directory->fd, name)) survivors.attempt();
  for (int tries = 0;; ++tries) {
    auto fd = sys::open_at(directory->fd, name, O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW, mode & 07777);
    if (fd) {
      auto made = prepare(request, pool, directory->fd, std::move(*fd), S_IFREG | mode);
      const Result<void> answered = made ? open_new(request, node->pool, *made, name, file) : pass(made);
      if (!answered) {
        unmake(pool, directory->fd, name, false);
        return reply_error(request, answered.error());
      }
      return pool.counters().create_ns.record(now_ns() - begun_ns);
    }
    if (fd.error().code != EEXIST || (file->flags & O_EXCL) != 0)
      return reply_error(request, std::move(fd.error()));
    auto opened = open_existing(request, node->pool, directory->fd, name, file);
    if (opened) return;
    // It may be discarded meanwhile, any number of times; four in a row is not chance.
    const bool vanished = opened.error().code == ENOENT || opened.error().code == ESTALE;
    if (!vanished || tries == 3) return reply_error(request, std::move(opened.error()));
  }
}

void tmpfile(fuse_req_t request, fuse_ino_t parent, mode_t mode, fuse_file_info* file) {
  auto node = find_node(server_of(request), parent);
  if (!node) return reply_error(request, std::move(node.error()));
  auto directory = node->pool->open_inode(node->ino, O_RDONLY | O_DIRECTORY);
  if (!directory) return reply_error(request, std::move(directory.error()));
  if (create_again(request, node->pool, file)) return;
  const int exclusive = file->flags & O_EXCL;  // never to be linked
  auto fd = sys::open_at(directory->get(), ".", O_TMPFILE | O_RDWR | exclusive, mode & 07777);
  if (!fd) return reply_error(request, std::move(fd.error()));
  auto made = prepare(request, *node->pool, directory->get(), std::move(*fd), S_IFREG | mode);
  if (!made) return reply_error(request, std::move(made.error()));
  if (auto answered = open_new(request, node->pool, *made, "", file); !answered)
    reply_error(request, std::move(answered.error()));
}

}  // namespace kvcachefs::operations
