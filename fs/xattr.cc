// Extended attributes: user.* are stored in the tmpfs; user.kvcachefs.* are what the daemon knows
// (fs/virtual_xattrs.h); user.kv.priority is both.
#include <sys/xattr.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/key_value.h"
#include "fs/control/readable_tree.h"
#include "fs/operations.h"
#include "fs/server.h"
#include "fs/stored_xattrs.h"
#include "fs/virtual_xattrs.h"

namespace kvcachefs::operations {
namespace {

constexpr std::string_view kPinned = "user.kvcachefs.pinned";

// A trusted.* attribute is for root alone, which the kernel has checked. Attributes that grant rights are
// refused.
bool is_storable(std::string_view name) {
  return name.starts_with("user.") || (name.starts_with("trusted.") && !name.starts_with(kOwnXattrs));
}

std::optional<std::string> fact(const EntryFacts& facts, std::string_view name) {
  if (!facts.is_file) return std::nullopt;
  if (name == "tier") return facts.tier;
  if (name == "checksum" && !facts.checksum.empty()) return facts.checksum;
  if (name == "node") return std::to_string(facts.node);
  if (name == "hits") return std::to_string(facts.hits);
  if (name == "version") return std::to_string(facts.version);
  if (name == "pinned") return facts.pinned ? "1" : "0";
  return std::nullopt;
}

void reply_sized(const Request& request, std::string_view value, size_t size) {
  if (size == 0) {
    (void)fuse_reply_xattr(request, value.size());
  } else if (value.size() > size) {
    reply_error(request, {ERANGE, {}});
  } else {
    (void)fuse_reply_buf(request, value.data(), value.size());
  }
}

// A virtual attribute cannot be changed, but a program that sets it to its present value must not fail.
Result<void> set_virtual(const Node& node, std::string_view name, std::string_view value) {
  const auto facts = node.pool->insight().facts(node.ino);
  if (!facts) return fail(facts.error().code);
  return fact(*facts, name.substr(kVirtualPrefix.size())) == value ? Result<void>() : fail(EPERM);
}

// These move or remove entries, which the mode of one file is no leave for: its owner sets them.
Result<void> check_owner(const Request& request, int fd, std::string_view name) {
  if (!belongs_to_owner(name)) return {};
  auto file = sys::stat_of(fd);
  if (!file) return pass(file);
  const fuse_ctx& caller = *fuse_req_ctx(request);
  return Rights(caller.uid, caller.gid, caller.pid).owns(*file) ? Result<void>() : fail(EPERM);
}

// False: the pool has too little room for it now.
Result<bool> set_stored(const Request& request, const Node& node, const char* name, std::string_view value,
                        int flags) {
  if (!is_storable(name)) return fail(EOPNOTSUPP);
  if (auto right = check_xattr(name, value); !right) return pass(right);
  auto fd = node.pool->inodes().open_inode(node.ino, O_PATH | O_NOFOLLOW);
  if (!fd) return pass(fd);
  if (auto may = check_owner(request, fd->get(), name); !may) return pass(may);
  if ((flags & XATTR_REPLACE) != 0)
    if (const auto there = sys::get_xattr(fd->get(), name, {}); !there) return fail(there.error().code);
  const XattrChange change{name, value};
  if (auto room = check_room(node.pool->limits(), fd->get(), {&change, 1}); !room) return pass(room);
  if ((flags & XATTR_CREATE) != 0) {
    if (request.attempted)
      flags = 0;
    else if (sys::get_xattr(fd->get(), name, {}))
      return fail(EEXIST);
    server_of(request).survivors.requests().attempt(request.unique);
  }
  if (auto done = node.pool->tree().set_xattr(node.ino, name, value, flags); !done) {
    if (done.error().code == ENOSPC) return false;
    return pass(done);
  }
  if (name == kPriorityXattr) node.pool->tree().set_priority(node.ino, *number_in<int>(value));
  return true;
}

Tried set(const Request& request, const Node& node, Patience patience, const char* name,
          std::string_view value, int flags) {
  const XattrChange change{name, value};
  for (;;) {
    auto done = set_stored(request, node, name, value, flags);
    if (!done) return refuse(request, std::move(done.error()));
    if (*done) break;
    const Waited waited = wait_for_attributes(*node.pool, node.ino, {&change, 1}, patience);
    if (waited == Waited::kWouldWait) return Tried::kWouldWait;
    if (waited == Waited::kNoRoom) return refuse(request, {ENOSPC, {}});
  }
  reply_outcome(request, Result<void>());
  return Tried::kDone;
}

Result<void> drop(const Request& request, const Node& node, const char* name) {
  if (std::string_view(name).starts_with(kVirtualPrefix)) return fail(EPERM);
  if (!is_storable(name)) return fail(EOPNOTSUPP);
  auto fd = node.pool->inodes().open_inode(node.ino, O_PATH | O_NOFOLLOW);
  if (!fd) return pass(fd);
  if (auto may = check_owner(request, fd->get(), name); !may) return may;
  if (sys::get_xattr(fd->get(), name, {})) server_of(request).survivors.requests().attempt(request.unique);
  auto done = node.pool->tree().remove_xattr(node.ino, name);
  if (!done && !(done.error().code == ENODATA && request.attempted)) return done;
  if (name == kPriorityXattr) node.pool->tree().set_priority(node.ino, 0);
  return {};
}

Result<void> set_pinned(const Node& node, std::string_view value) {
  if (value != "0" && value != "1") return fail(EINVAL);
  return node.pool->tree().set_pinned(node.ino, value == "1");
}

void setxattr(const Request& request, const Node& node, const char* name, const char* value, size_t size,
              int flags) {
  when_catalog_takes_more(
      request, node, [request, node, its_name = std::string(name), text = std::string(value, size), flags] {
        if (its_name == kPinned) return reply_outcome(request, set_pinned(node, text));
        if (its_name.starts_with(kVirtualPrefix))
          return reply_outcome(request, set_virtual(node, its_name, text));
        with_patience<set>(request, node, its_name.c_str(), std::string_view(text), flags);
      });
}

// The kernel asks for security.capability, which no file has, before the first write to a file after the file
// was created or looked up. It is the one sign of a write that bypasses the daemon.
Tried begin_writing(const Request& request, const Node& node, Patience patience) {
  if (node.pool->open_files().begin_writing(node.ino, patience) == Tried::kWouldWait)
    return Tried::kWouldWait;
  return refuse(request, {EOPNOTSUPP, {}});
}

void getxattr(const Request& request, fuse_ino_t ino, const char* name, size_t size) {
  const std::string_view key(name);
  auto node = find_node(server_of(request), ino);
  if (!node) return reply_error(request, {key.starts_with("user.") ? ENODATA : EOPNOTSUPP, {}});
  if (key.starts_with(kVirtualPrefix)) {
    auto facts = node->pool->insight().facts(node->ino);
    if (!facts) return reply_error(request, std::move(facts.error()));
    const auto value = fact(*facts, key.substr(kVirtualPrefix.size()));
    if (!value) return reply_error(request, {ENODATA, {}});
    return reply_sized(request, *value, size);
  }
  if (key == "security.capability") return with_patience<begin_writing>(request, *node);
  if (!is_storable(key)) return reply_error(request, {EOPNOTSUPP, {}});
  auto fd = node->pool->inodes().open_inode(node->ino, O_PATH | O_NOFOLLOW);
  if (!fd) return reply_error(request, std::move(fd.error()));
  std::vector<char> value(size);
  auto length = sys::get_xattr(fd->get(), name, value);
  if (!length) return reply_error(request, std::move(length.error()));
  if (size == 0)
    (void)fuse_reply_xattr(request, *length);
  else
    (void)fuse_reply_buf(request, value.data(), *length);
}

void listxattr(const Request& request, fuse_ino_t ino, size_t size) {
  auto node = find_node(server_of(request), ino);
  if (!node) return reply_sized(request, "", size);
  auto fd = node->pool->inodes().open_inode(node->ino, O_PATH | O_NOFOLLOW);
  if (!fd) return reply_error(request, std::move(fd.error()));
  std::vector<char> stored(XATTR_LIST_MAX);
  auto length = sys::list_xattr(fd->get(), stored);
  if (!length) return reply_error(request, std::move(length.error()));
  std::string names;
  for (size_t at = 0; at < *length; at += std::strlen(&stored[at]) + 1)
    if (!std::string_view(&stored[at]).starts_with(kOwnXattrs)) names.append(&stored[at]).push_back('\0');
  reply_sized(request, names, size);
}

void removexattr(const Request& request, const Node& node, const char* name) {
  when_catalog_takes_more(request, node, [request, node, its_name = std::string(name)] {
    reply_outcome(request, drop(request, node, its_name.c_str()));
  });
}

}  // namespace

void add_xattr(fuse_lowlevel_ops& table) {
  table.setxattr = on_node<setxattr>;
  table.getxattr = on_request<getxattr>;
  table.listxattr = on_request<listxattr>;
  table.removexattr = on_node<removexattr>;
}

}  // namespace kvcachefs::operations
