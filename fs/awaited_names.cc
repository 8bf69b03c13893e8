#include "fs/awaited_names.h"

#include <linux/fuse.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "fs/nodeid.h"
#include "fs/request.h"
#include "fs/server.h"

namespace kvcachefs {
namespace {

// The names of a request: in the directory of its nodeid, and in that of `to`.
struct Names {
  std::string_view name;
  uint64_t to = 0;
  std::string_view new_name = {};
};

template <class Arguments>
Names names_of_rename(std::span<const std::byte> request) {
  return {name_in(request, sizeof(Arguments)), arguments_of<Arguments>(request).newdir,
          name_in(request, sizeof(Arguments), true)};
}

Names names_in(uint32_t opcode, std::span<const std::byte> request) {
  switch (opcode) {
    case FUSE_LOOKUP:
    case FUSE_UNLINK:
    case FUSE_RMDIR:
    case FUSE_SYMLINK:
      return {name_in(request, 0)};
    case FUSE_MKNOD:
      return {name_in(request, sizeof(fuse_mknod_in))};
    case FUSE_MKDIR:
      return {name_in(request, sizeof(fuse_mkdir_in))};
    case FUSE_CREATE:
      return {name_in(request, sizeof(fuse_create_in))};
    case FUSE_LINK:
      return {name_in(request, sizeof(fuse_link_in))};
    case FUSE_RENAME:
      return names_of_rename<fuse_rename_in>(request);
    case FUSE_RENAME2:
      return names_of_rename<fuse_rename2_in>(request);
    default:
      return {};
  }
}

}  // namespace

std::optional<AwaitedNames> awaited_by(const Pools& pools, std::span<const std::byte> request) {
  const auto header = header_of(request);
  const Names names = names_in(header.opcode, request);
  const NodeId id{header.nodeid}, to{names.to};
  if (names.name.empty() || !id.is_inode()) return std::nullopt;
  auto pool = pools.find(id.pool_number());
  if (pool == nullptr) return std::nullopt;
  if (!pool->disk().lacks_names()) return std::nullopt;
  const auto for_the_disk = [&](NodeId directory, std::string_view name) {
    const Node node{.pool = pool, .ino = directory.ino()};
    const std::string its(name);
    return !is_reserved(node, its.c_str()) && pool->recovery().may_be_to_come(node.ino, its);
  };
  const NamesToCome& to_come = pool->names_to_come();
  const bool has_two = !names.new_name.empty() && to.is_inode() && to.pool_number() == id.pool_number();
  AwaitedNames result{
      .pool = nullptr,
      .for_the_disk = for_the_disk(id, names.name) || (has_two && for_the_disk(to, names.new_name)),
      .ids = {to_come.to_come(id.ino(), names.name),
              has_two ? to_come.to_come(to.ino(), names.new_name) : 0}};
  if (!result.for_the_disk && result.ids[0] == 0 && result.ids[1] == 0) return std::nullopt;
  result.pool = std::move(pool);
  return result;
}

Result<void> AwaitedNames::await() const {
  for (const uint64_t id : ids)
    if (id != 0)
      if (auto back = pool->names_to_come().await(id); !back) return back;
  return {};
}

}  // namespace kvcachefs
