#include <fmt/format.h>
#include <linux/fs.h>

#include <cerrno>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "fs/operations.h"
#include "fs/server.h"

namespace kvcachefs::operations {
namespace {

constexpr auto kCatalogPatience = std::chrono::seconds(2);

template <bool kIsDirectory>
void remove_now(const Request& request, const Node& parent, const char* name) {
  if (is_reserved(parent, name)) return reply_error(request, {EPERM, {}});
  auto directory = parent.pool->inodes().directory(parent.ino);
  if (!directory) return reply_error(request, std::move(directory.error()));
  auto removed = parent.pool->tree().remove(directory->fd, name, kIsDirectory, request.unique);
  // A process that died has removed it already.
  if (!removed && removed.error().code == ENOENT && request.attempted) removed = {};
  reply_outcome(request, std::move(removed));
}

template <bool kIsDirectory>
void remove(const Request& request, const Node& parent, const char* name) {
  when_catalog_takes_more(
      request, parent,
      [request, parent, its_name = std::string(name)] {
        remove_now<kIsDirectory>(request, parent, its_name.c_str());
      },
      kFullForNames);
}

// True if a process that died has done the rename. A name that is gone may also have been evicted, before or
// after the rename.
bool is_renamed(const Request& request, Pool& pool, int from, const char* name, unsigned flags,
                std::optional<Requests::Rename>& attempted) {
  if (!request.resent) return false;
  Requests& requests = server_of(request).survivors.requests();
  attempted = requests.attempted_rename(request.unique);
  if (!attempted) return false;
  const auto source = sys::handle_at(from, name);
  if (source && ((flags & RENAME_EXCHANGE) == 0 || source->ino != attempted->second_ino)) {
    requests.rename_answered(*attempted);
    return false;
  }
  pool.tree().attributes_changed(attempted->first_ino);
  if ((flags & RENAME_EXCHANGE) != 0) pool.tree().attributes_changed(attempted->second_ino);
  return true;
}

// The call waits until the catalog has dropped what was removed from the pool: otherwise the next pool on
// that disk would get it back. EBUSY: the disk was too slow. The wait is short, because the kernel holds
// the mount's root meanwhile. A frozen catalog answers at once, so its pool can be removed.
Result<void> settle_catalog(Pool& pool) {
  if (pool.disk().lacks_names()) return {};  // Pools::remove() refuses
  if (pool.disk().tier() == nullptr) return {};
  const auto committed = std::make_shared<std::promise<void>>();
  auto heard = committed->get_future();
  pool.disk_requests().when_committed([committed](const Result<void>&) { committed->set_value(); });
  if (heard.wait_for(kCatalogPatience) == std::future_status::ready) return {};
  return fail(EBUSY,
              fmt::format("pool {}: its disk has not taken yet what was removed from it", pool.name()));
}

void rmdir(const Request& request, fuse_ino_t parent, const char* name) {
  if (parent != NodeId::kRoot) return on_node<remove<true>>(request, parent, name);
  takes_long(request);
  if (std::string_view(name) == kMountControlName) return reply_error(request, {EPERM, {}});
  if (auto may = need_administrator(request); !may) return reply_error(request, std::move(may.error()));
  Server& server = server_of(request);
  Result<void> removed;
  if (const auto pool = server.pools.find(std::string_view(name))) {
    removed = settle_catalog(*pool);
    if (removed) removed = server.may_change_pools();
    if (removed) server.survivors.requests().attempt(request.unique);
  }
  if (removed) removed = server.pools.remove(name);
  if (!removed && removed.error().code == ENOENT && request.attempted) removed = {};
  if (removed)
    if (auto written = server.pools_changed(); !written)
      removed = std::unexpected(in_effect(written.error()));
  reply_outcome(request, std::move(removed));
}

void rename_within(const Request& request, const Node& from, const char* name, const Node& to,
                   const char* new_name, unsigned flags) {
  Pool& pool = *from.pool;
  auto old_directory = pool.inodes().directory(from.ino);
  if (!old_directory) return reply_error(request, std::move(old_directory.error()));
  auto new_directory = pool.inodes().directory(to.ino);
  if (!new_directory) return reply_error(request, std::move(new_directory.error()));
  Requests& requests = server_of(request).survivors.requests();
  std::optional<Requests::Rename> attempted;
  const bool done = is_renamed(request, pool, old_directory->fd, name, flags, attempted);
  const bool durable = pool.disk().durability() == Durability::kSync;
  const DiskTier* const tier = pool.disk().tier();  // none: it is away, and sync_name() waits for it
  if (!done && durable && tier != nullptr && tier->store->log().frozen())
    // The change cannot become durable, and nothing has been done yet.
    return reply_error(request, {EIO, {}});
  auto renamed =
      done ? Result<void>()
           : pool.tree().rename(old_directory->fd, name, new_directory->fd, new_name, flags, request.unique);
  if (!done) attempted = requests.own_rename(request.unique);
  auto answered = [&requests, attempted] {
    if (attempted) requests.rename_answered(*attempted);
  };
  if (!renamed || !durable) return reply_outcome(request, renamed), answered();
  auto reply = [request, from, to, answered, old_name = std::string(name),
                name = std::string(new_name)](const Result<void>& outcome) {
    if (outcome) return reply_done(request), answered();
    // At EINTR the kernel drops only cached names that lead to a file; look_again() makes it drop the others.
    from.pool->tree().look_again(from.ino, old_name);
    to.pool->tree().look_again(to.ino, name);
    reply_error(request, in_effect(outcome.error()));
    answered();
  };
  pool.disk_requests().sync_name(new_directory->fd, new_name, std::move(reply));
}

void rename(const Request& request, fuse_ino_t parent, const char* name, fuse_ino_t new_parent,
            const char* new_name, unsigned flags) {
  Server& server = server_of(request);
  // A pool is not a directory that can be moved, and only pools lie beside pools.
  if (parent == NodeId::kRoot || new_parent == NodeId::kRoot)
    return reply_error(request, {parent == new_parent ? EPERM : EXDEV, {}});
  auto from = find_node(server, parent);
  if (!from) return reply_error(request, std::move(from.error()));
  auto to = find_node(server, new_parent);
  if (!to) return reply_error(request, std::move(to.error()));
  if (from->pool != to->pool) return reply_error(request, {EXDEV, {}});
  if (is_reserved(*from, name) || is_reserved(*to, new_name)) return reply_error(request, {EPERM, {}});
  when_catalog_takes_more(
      request, *from,
      [request, from = *from, to = *to, old_name = std::string(name), its_name = std::string(new_name),
       flags] { rename_within(request, from, old_name.c_str(), to, its_name.c_str(), flags); },
      kFullForNames);
}

Tried link(const Request& request, const Node& node, Patience patience, fuse_ino_t new_parent,
           const char* new_name) {
  Server& server = server_of(request);
  if (new_parent == NodeId::kRoot) return refuse(request, {EXDEV, {}});
  auto to = find_node(server, new_parent);
  if (!to) return refuse(request, std::move(to.error()));
  if (node.pool != to->pool) return refuse(request, {EXDEV, {}});
  Inodes& inodes = node.pool->inodes();
  if (is_reserved(*to, new_name)) return refuse(request, {EEXIST, {}});
  auto directory = to->pool->inodes().directory(to->ino);
  if (!directory) return refuse(request, std::move(directory.error()));
  const auto there = sys::handle_at(directory->fd, new_name);
  if (there && !request.attempted) return refuse(request, {EEXIST, {}});
  const bool done = there && there->ino == node.ino;  // done by a process that died
  server.survivors.requests().attempt(request.unique);
  if (done) {
    node.pool->tree().attributes_changed(node.ino);
  } else {
    // A file without a name, of an O_TMPFILE, becomes an entry by its first.
    const auto before = inodes.attributes(node.ino);
    const bool makes_entry = before && before->st_nlink == 0;
    NewName wanted{directory->fd, new_name, user_of(request),
                   makes_entry ? &node.pool->limits().entries : nullptr};
    auto linked = with_inode(*node.pool, patience, wanted, [&]() -> Result<Tried> {
      auto made = node.pool->tree().link(node.ino, directory->fd, new_name);
      if (!made) return pass(made);
      return Tried::kDone;
    });
    if (!linked) return refuse(request, std::move(linked.error()));
    if (*linked == Tried::kWouldWait) return Tried::kWouldWait;
  }
  auto attributes = inodes.attributes(node.ino);
  if (!attributes) {
    (void)node.pool->tree().remove(directory->fd, new_name, false);
    inodes.forget(node.ino, 1);
    return refuse(request, std::move(attributes.error()));
  }
  const uint32_t generation = inodes.generation_of(node.ino);
  if (done) (void)inodes.looked_up({node.ino, generation}, *attributes);
  reply_entry(request, entry_of(node.nodeid(), generation, *attributes));
  return Tried::kDone;
}

}  // namespace

void add_names(fuse_lowlevel_ops& table) {
  table.unlink = on_node<remove<false>>;
  table.rmdir = on_request<rmdir>;
  table.rename = on_request<rename>;
  table.link = on_node_for_a_name<link>;
}

}  // namespace kvcachefs::operations
