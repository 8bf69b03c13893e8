#include <cerrno>
#include <cstring>

#include "fs/control_files.h"
#include "fs/operations.h"
#include "fs/server.h"

namespace kvcachefs::operations {
namespace {

void lookup_in_root(fuse_req_t request, const char* name) {
  Server& server = server_of(request);
  if (std::strcmp(name, kMountControlName) == 0) return server.control.lookup_directory(request, 0);
  auto pool = server.pools.find(std::string_view(name));
  if (pool == nullptr) return reply_no_entry(request);
  auto attributes = pool->inodes().attributes(pool->root_ino());
  if (!attributes) return reply_error(request, std::move(attributes.error()));
  sys::Handle handle{pool->root_ino(), 0};
  if (auto known = pool->inodes().looked_up(handle, *attributes); !known)
    return reply_error(request, std::move(known.error()));
  reply_entry(request, entry_of(NodeId::of_inode(pool->number(), pool->root_ino()).value, 0, *attributes));
}

}  // namespace

void lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  const NodeId id{parent};
  if (id.is_root()) return lookup_in_root(request, name);
  if (id.is_control()) return server_of(request).control.lookup(request, id, name);
  auto node = find_node(server_of(request), parent);
  if (!node) return reply_error(request, std::move(node.error()));
  Pool& pool = *node->pool;
  if (is_reserved(*node, name)) return server_of(request).control.lookup_directory(request, pool.number());
  auto directory = pool.inodes().directory(node->ino);
  if (!directory) return reply_error(request, std::move(directory.error()));

  // An open that was told ESTALE looks its name up here again, and has no third try. The mark in
  // stale_callers stays as it is.
  const bool last_try = server_of(request).stale_callers.told(fuse_req_ctx(request)->pid);
  // A discard may remove the name between two of these calls, or another store may put a new file there.
  for (int tries = 0; tries < 4; ++tries) {
    auto handle = sys::handle_at(directory->fd, name);
    if (!handle) {
      if (handle.error().code != ENOENT) return reply_error(request, std::move(handle.error()));
      break;
    }
    const auto known = pool.inodes().look_up(*handle, directory->fd, name, last_try);
    if (!known) continue;
    return reply_entry(request,
                       entry_of(NodeId::of_inode(pool.number(), handle->ino).value, handle->generation,
                                known->attributes, known->being_written ? 0 : kLongTimeoutS));
  }
  pool.inodes().looked_for_nothing(node->ino);
  // A miss is not cached while names are being restored, because the name may appear at any moment.
  reply_no_entry(request, pool.restoring() ? 0 : kLongTimeoutS);
}

void forget(fuse_req_t request, fuse_ino_t ino, uint64_t lookups) {
  const NodeId id{ino};
  if (id.is_inode())
    if (auto pool = server_of(request).pools.find(id.pool_number())) pool->inodes().forget(id.ino(), lookups);
  fuse_reply_none(request);
}

void forget_multi(fuse_req_t request, size_t count, fuse_forget_data* forgets) {
  for (size_t i = 0; i < count; ++i) {
    const NodeId id{forgets[i].ino};
    if (!id.is_inode()) continue;
    if (auto pool = server_of(request).pools.find(id.pool_number()))
      pool->inodes().forget(id.ino(), forgets[i].nlookup);
  }
  fuse_reply_none(request);
}

}  // namespace kvcachefs::operations
