// The creating operations: the pool's tree makes a file as root and then gives it to the caller.
// Before a request comes here, the kernel has checked permissions (default_permissions), applied the umask
// and stripped what set-group-ID rules forbid (vfs_prepare_mode). The tmpfs itself hands down the group of a
// set-group-ID directory.
#include <cerrno>
#include <string>

#include "base/clock.h"
#include "fs/operations.h"
#include "fs/server.h"

namespace kvcachefs::operations {
namespace {

NewInode of_caller(const Request& request, mode_t mode) {
  const fuse_ctx* caller = fuse_req_ctx(request);
  return {.mode = mode, .uid = caller->uid, .gid = caller->gid};
}

struct NewFile : MadeInode {
  int node = 0;
  std::optional<NameLimit::Claim> place = {};
};

NameLimit* limit_of(Pool& pool, mode_t mode) {
  if (S_ISREG(mode)) return &pool.limits().entries;
  return S_ISDIR(mode) ? &pool.limits().directories : nullptr;
}

Result<Tried> make_file(Pool& pool, Patience patience, NewName& wanted, mode_t mode, bool ever_linked,
                        UniqueFd& file) {
  return with_inode(pool, patience, wanted, [&]() -> Result<Tried> {
    auto made = pool.tree().make_file(wanted.directory, wanted.name, mode, ever_linked);
    if (!made) return pass(made);
    file = std::move(*made);
    return Tried::kDone;
  });
}

// The call makes the file an entry; a file of a TMPFILE has an empty name.
auto created(Pool& pool, const NewFile& made, const char* name, bool open, bool writer) {
  return pool.open_files().created({.fd = made.fd.get(),
                                    .ino = made.handle.ino,
                                    .generation = made.handle.generation,
                                    .open = open,
                                    .writer = writer,
                                    .named = name[0] != '\0',
                                    .name = name,
                                    .node = made.node});
}

Result<fuse_entry_param> adopt_new(Pool& pool, int directory, const char* name, const NewInode& inode) {
  auto given = pool.tree().give(directory, sys::open_at(directory, name, O_PATH | O_NOFOLLOW), inode);
  if (!given) return pass(given);
  NewFile made{std::move(*given)};
  const sys::Handle handle = made.handle;
  struct stat& attributes = made.attributes;
  if (S_ISREG(attributes.st_mode)) {
    if (auto known = created(pool, made, name, false, false); !known) return pass(known);
  } else if (auto known = pool.inodes().looked_up(handle, attributes); !known) {
    return pass(known);
  } else {
    pool.tree().made(handle, S_ISDIR(attributes.st_mode), directory, name);
  }
  return entry_of(NodeId::of_inode(pool.number(), handle.ino).value, handle.generation, attributes);
}

// The call makes the inode in the parent and answers with the resulting entry.
Tried make_in(const Request& request, const Node& parent, Patience patience, const char* name,
              const NewInode& inode) {
  if (is_reserved(parent, name)) return refuse(request, {EEXIST, {}});
  Pool& pool = *parent.pool;
  auto directory = pool.inodes().directory(parent.ino);
  if (!directory) return refuse(request, std::move(directory.error()));
  const bool is_file = S_ISREG(inode.mode);
  if (request.attempted && is_file) pool.tree().undo_create(directory->fd, name);
  const bool there = sys::stat_at(directory->fd, name).has_value();
  if (there && (!request.attempted || is_file)) return refuse(request, {EEXIST, {}});
  server_of(request).survivors.requests().attempt(request.unique);
  NewName wanted{directory->fd, name, inode.uid, limit_of(pool, inode.mode)};
  if (!there) {
    auto made = with_inode(pool, patience, wanted,
                           [&] { return pool.tree().make(directory->fd, name, inode, patience); });
    if (!made) return refuse(request, std::move(made.error()));
    if (*made == Tried::kWouldWait) return Tried::kWouldWait;
  }
  auto entry = adopt_new(pool, directory->fd, name, inode);
  wanted.place.reset();
  if (!entry) {
    pool.tree().unmake(directory->fd, name, S_ISDIR(inode.mode));
    return refuse(request, std::move(entry.error()));
  }
  reply_entry(request, *entry);
  return Tried::kDone;
}

void make_pool(const Request& request, const char* name, mode_t mode) {
  takes_long(request);
  Server& server = server_of(request);
  if (std::string_view(name) == kMountControlName) return reply_error(request, {EEXIST, {}});
  if (auto may = need_administrator(request); !may) return reply_error(request, std::move(may.error()));
  if (auto may = server.may_change_pools(); !may) return reply_error(request, std::move(may.error()));
  const fuse_ctx* caller = fuse_req_ctx(request);
  if (!server.pools.find(std::string_view(name))) server.survivors.requests().attempt(request.unique);
  auto pool = server.pools.create_default(name, mode & 07777, caller->uid, caller->gid);
  if (!pool && !(request.attempted && pool.error().code == EEXIST))
    return reply_error(request, std::move(pool.error()));
  // A pool that the next start would lack is not made; one that a client uses by now stays.
  if (auto written = server.pools_changed(); !written && server.pools.remove(name)) {
    (void)server.pools_changed();
    return reply_error(request, std::move(written.error()));
  }
  lookup(request, NodeId::kRoot, name);
}

void reply_create(const Request& request, const Node& node, const fuse_entry_param& entry,
                  fuse_file_info* file, bool counted = true) {
  Server& server = server_of(request);
  about_to_answer(request);
  if (fuse_reply_create(request, &entry, file) != -ENOENT) return;
  // The call was interrupted: the kernel has neither the open nor the lookup.
  close_handle(server, node, *file);
  if (counted) node.pool->inodes().forget(node.ino, 1);
}

// The call answers a CREATE or, with an empty name, a TMPFILE for a new file. If it fails, the request is not
// answered.
Result<void> open_new(const Request& request, const std::shared_ptr<Pool>& shared, NewFile made,
                      const char* name, uint64_t begun_ns, fuse_file_info* file) {
  Pool& pool = *shared;
  made.node = pool.open_files().place(made.fd.get(), fuse_req_ctx(request)->pid);
  auto opened = created(pool, made, name, true, writes(file));
  if (!opened) return pass(opened);
  made.place.reset();
  const Node node{.pool = shared, .ino = made.handle.ino};
  PageCache& page_cache = server_of(request).page_cache;
  if ((file->flags & O_ACCMODE) == O_WRONLY) page_cache.stored(node.nodeid());
  if (auto answered = answer_open(request, node, *opened, file); !answered) {
    page_cache.closed(node.nodeid());
    pool.inodes().forget(node.ino, 1);
    return answered;
  }
  made.fd.reset();  // before the answer: an eviction must not find it open
  log_access(request, node, AccessRecord::Event::kCreate, *opened, begun_ns);
  reply_create(request, node, entry_of(node.nodeid(), made.handle.generation, made.attributes), file);
  return {};
}

// The name exists after all, although the kernel did not know it.
Result<void> open_existing(const Request& request, const std::shared_ptr<Pool>& shared, int directory,
                           const char* name, fuse_file_info* file) {
  Pool& pool = *shared;
  auto handle = sys::handle_at(directory, name);
  if (!handle) return pass(handle);
  auto known = pool.inodes().look_up(*handle, directory, name);
  if (!known) return pass(known);
  struct stat& attributes = known->attributes;
  if (!S_ISREG(attributes.st_mode)) {
    pool.inodes().forget(handle->ino, 1);
    return fail(ESTALE);  // the kernel looks again and opens it in its own way
  }
  auto answer = pool.open_files().begin_open(handle->ino, {.writer = writes(file)}, client_of(request, pool));
  if (!answer || answer->presence != Presence::kHere) {
    pool.inodes().forget(handle->ino, 1);
    return answer ? std::unexpected(error_of(answer->presence)) : pass(answer);
  }
  const Node node{.pool = shared, .ino = handle->ino};
  if (auto answered = answer_open(request, node, answer->opened, file); !answered) {
    pool.inodes().forget(handle->ino, 1);
    return answered;
  }
  // The kernel believes that it created the file, so it will not truncate it. This is the last step that can
  // fail.
  if ((file->flags & O_TRUNC) != 0) {
    const auto cutting = server_of(request).pages_in_use.cut(node.nodeid());
    if (auto cut = pool.open_files().truncate(handle->ino, 0); !cut || *cut != Presence::kHere) {
      close_handle(server_of(request), node, *file);
      pool.inodes().forget(handle->ino, 1);
      return cut ? std::unexpected(error_of(*cut)) : pass(cut);
    }
    if (auto now = pool.inodes().attributes(handle->ino)) attributes = *now;
  }
  const double timeout_s = known->being_written || writes(file) ? 0 : kLongTimeoutS;
  reply_create(request, node, entry_of(node.nodeid(), handle->generation, attributes, timeout_s), file);
  return {};
}

// The call answers a CREATE or TMPFILE that a process that died has carried out and not answered.
bool create_again(const Request& request, const std::shared_ptr<Pool>& pool, fuse_file_info* file) {
  if (!request.resent) return false;
  Server& server = server_of(request);
  const auto opened = server.survivors.handles().opened_by(request.unique);
  if (!opened || opened->inode.pool != pool->number()) return false;
  const Node node{.pool = pool, .ino = opened->inode.ino};
  auto attributes = pool->inodes().attributes(node.ino);
  const auto adopted = pool->open_files().adopted_open(node.ino, opened->from_disk);
  if (!attributes || !adopted) {
    close_first(server, node, *opened, *file);
    return false;
  }
  // What the process made is empty, what it found may not be cut yet.
  if ((file->flags & O_TRUNC) != 0 && attributes->st_size > 0) {
    const auto cutting = server.pages_in_use.cut(node.nodeid());
    const auto cut = pool->open_files().truncate(node.ino, 0);
    attributes = pool->inodes().attributes(node.ino);
    if (!cut || *cut != Presence::kHere || !attributes) {
      close_first(server, node, *opened, *file);
      return false;
    }
  }
  const uint32_t generation = pool->inodes().generation_of(node.ino);
  // The lookup is counted only if the file has a name.
  const bool counted = pool->inodes().looked_up({node.ino, generation}, *attributes).has_value();
  fill_in(request, *pool, *adopted, opened->handle, server.page_cache.bypasses(node.nodeid()), file);
  reply_create(request, node, entry_of(node.nodeid(), generation, *attributes), file, counted);
  return true;
}

Tried mknod(const Request& request, const Node& parent, Patience patience, const char* name, mode_t mode,
            dev_t device) {
  NewInode inode = of_caller(request, mode);
  inode.device = device;
  return make_in(request, parent, patience, name, inode);
}

Tried make_directory(const Request& request, const Node& parent, Patience patience, const char* name,
                     mode_t mode) {
  return make_in(request, parent, patience, name, of_caller(request, S_IFDIR | mode));
}

void mkdir(const Request& request, fuse_ino_t parent, const char* name, mode_t mode) {
  if (parent == NodeId::kRoot) return make_pool(request, name, mode);
  on_node_for_a_name<make_directory>(request, parent, name, mode);
}

Tried make_symlink(const Request& request, const Node& parent, Patience patience, const char* target,
                   const char* name) {
  NewInode inode = of_caller(request, S_IFLNK | 0777);
  inode.target = target;
  return make_in(request, parent, patience, name, inode);
}

Tried create(const Request& request, const Node& parent, Patience patience, const char* name, mode_t mode,
             fuse_file_info* file) {
  if (is_reserved(parent, name)) return refuse(request, {EEXIST, {}});
  const uid_t uid = fuse_req_ctx(request)->uid;
  Pool& pool = *parent.pool;
  auto directory = pool.inodes().directory(parent.ino);
  if (!directory) return refuse(request, std::move(directory.error()));
  if (create_again(request, parent.pool, file)) return Tried::kDone;
  // A file that a process that died has created, and of which the kernel was not told, is made anew with all
  // that belongs to it.
  if (request.attempted) pool.tree().undo_create(directory->fd, name);
  if (!sys::stat_at(directory->fd, name)) {
    if (pool.open_files().make_way(patience, uid) == Tried::kWouldWait) return Tried::kWouldWait;
    server_of(request).survivors.requests().attempt(request.unique);
  }
  for (int tries = 0;; ++tries) {
    UniqueFd fd;
    NewName wanted{directory->fd, name, uid, &pool.limits().entries};
    auto made = make_file(pool, patience, wanted, mode, true, fd);
    if (made && *made == Tried::kWouldWait) return Tried::kWouldWait;
    if (made) {
      auto given = pool.tree().give(directory->fd, std::move(fd), of_caller(request, S_IFREG | mode));
      const auto answered =
          given ? open_new(request, parent.pool, {std::move(*given), 0, std::move(wanted.place)}, name,
                           patience.begun_ns, file)
                : pass(given);
      if (!answered) {
        pool.tree().unmake(directory->fd, name, false);
        return refuse(request, answered.error());
      }
      pool.counters().create_ns.record(now_ns() - patience.begun_ns);
      return Tried::kDone;
    }
    if (made.error().code != EEXIST || (file->flags & O_EXCL) != 0)
      return refuse(request, std::move(made.error()));
    auto opened = open_existing(request, parent.pool, directory->fd, name, file);
    if (opened) return Tried::kDone;
    // The name may be discarded between the two calls, any number of times; four times in a row is not
    // chance.
    const bool vanished = opened.error().code == ENOENT || opened.error().code == ESTALE;
    if (!vanished || tries == 3) return refuse(request, std::move(opened.error()));
  }
}

Tried tmpfile(const Request& request, const Node& parent, Patience patience, mode_t mode,
              fuse_file_info* file) {
  const uid_t uid = fuse_req_ctx(request)->uid;
  Pool& pool = *parent.pool;
  auto directory = pool.inodes().open_inode(parent.ino, O_RDONLY | O_DIRECTORY);
  if (!directory) return refuse(request, std::move(directory.error()));
  if (create_again(request, parent.pool, file)) return Tried::kDone;
  if (pool.open_files().make_way(patience, uid) == Tried::kWouldWait) return Tried::kWouldWait;
  UniqueFd fd;
  NewName wanted{directory->get(), "", uid};  // no entry before it gets a name
  auto made = make_file(pool, patience, wanted, mode, (file->flags & O_EXCL) == 0, fd);
  if (!made) return refuse(request, std::move(made.error()));
  if (*made == Tried::kWouldWait) return Tried::kWouldWait;
  auto given = pool.tree().give(directory->get(), std::move(fd), of_caller(request, S_IFREG | mode));
  if (!given) return refuse(request, std::move(given.error()));
  if (auto answered = open_new(request, parent.pool, {std::move(*given)}, "", patience.begun_ns, file);
      !answered)
    return refuse(request, std::move(answered.error()));
  return Tried::kDone;
}

}  // namespace

void add_create(fuse_lowlevel_ops& table) {
  table.mknod = on_node_for_a_name<mknod>;
  table.mkdir = on_request<mkdir>;
  table.symlink = [](fuse_req_t request, const char* target, fuse_ino_t parent, const char* name) {
    on_node_for_a_name<make_symlink>(request, parent, target, name);
  };
  table.create = on_node_with_patience<create>;
  table.tmpfile = on_node_with_patience<tmpfile>;
}

}  // namespace kvcachefs::operations
