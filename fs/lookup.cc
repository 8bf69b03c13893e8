#include <cerrno>
#include <cstring>
#include <span>

#include "fs/control_files.h"
#include "fs/operations.h"
#include "fs/server.h"

namespace kvcachefs::operations {
namespace {

void lookup_in_root(const Request& request, const char* name) {
  Server& server = server_of(request);
  if (std::strcmp(name, kMountControlName) == 0)
    return server.control.reply_entry_of(request, NodeId::of_control(0, 0));
  auto pool = server.pools.find(std::string_view(name));
  // A miss is not cached: a pool also comes by `configure`, of which the kernel learns nothing.
  if (pool == nullptr) return reply_no_entry(request, 0);
  auto attributes = pool->inodes().attributes(pool->root_ino());
  if (!attributes) return reply_error(request, std::move(attributes.error()));
  sys::Handle handle{pool->root_ino(), 0};
  if (auto known = pool->inodes().looked_up(handle, *attributes); !known)
    return reply_error(request, std::move(known.error()));
  reply_entry(request, entry_of(Node{pool, pool->root_ino()}.nodeid(), 0, *attributes));
}

void forget_multi(const Request& request, size_t count, fuse_forget_data* forgets) {
  for (const fuse_forget_data& each : std::span(forgets, count))
    if (auto node = find_node(server_of(request), each.ino))
      node->pool->inodes().forget(node->ino, each.nlookup);
  fuse_reply_none(request);
}

void forget(const Request& request, fuse_ino_t ino, uint64_t lookups) {
  fuse_forget_data one{.ino = ino, .nlookup = lookups};
  forget_multi(request, 1, &one);
}

}  // namespace

void lookup(const Request& request, fuse_ino_t parent, const char* name) {
  const NodeId id{parent};
  if (id.is_root()) return lookup_in_root(request, name);
  if (id.is_control()) return server_of(request).control.lookup(request, id, name);
  auto node = find_node(server_of(request), parent);
  if (!node) return reply_error(request, std::move(node.error()));
  Pool& pool = *node->pool;
  if (is_reserved(*node, name))
    return server_of(request).control.reply_entry_of(request, NodeId::of_control(pool.number(), 0));
  auto directory = pool.inodes().directory(node->ino);
  if (!directory) return reply_error(request, std::move(directory.error()));

  // A miss is not cached while names are being restored, because the name may appear at any moment: from here
  // on, if the restore ends meanwhile.
  const bool may_appear = pool.disk().restoring() || pool.recovery().is_adopting();
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
    const bool may_change = known->being_written || pool.recovery().is_adopting();
    return reply_entry(request,
                       entry_of(NodeId::of_inode(pool.number(), handle->ino).value, handle->generation,
                                known->attributes, may_change ? 0 : kLongTimeoutS));
  }
  pool.inodes().looked_for_nothing(node->ino);
  reply_no_entry(request, may_appear ? 0 : kLongTimeoutS);
}

void add_lookup(fuse_lowlevel_ops& table) {
  table.lookup = on_request<lookup>;
  table.forget = on_request<forget>;
  table.forget_multi = on_request<forget_multi>;
}

}  // namespace kvcachefs::operations
