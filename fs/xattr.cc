// Extended attributes: user.* lies in the tmpfs; user.kvcachefs.* is what the daemon knows; user.kv.priority
// is both.
#include <sys/xattr.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "fs/operations.h"
#include "fs/server.h"

namespace kvcachefs::operations {
namespace {

constexpr std::string_view kOwnPrefix = "user.kvcachefs.";
constexpr std::string_view kPinned = "user.kvcachefs.pinned";
constexpr std::string_view kPriority = "user.kv.priority";
constexpr std::array<std::string_view, 5> kFacts = {"tier", "node", "hits", "version", "pinned"};
constexpr int kMostPriority = 1000;

// trusted.* is for root alone, which the kernel has checked; what rights would hang on is refused.
bool is_storable(std::string_view name) {
  return name.starts_with("user.") || (name.starts_with("trusted.") && !name.starts_with(kOwnXattrs));
}

std::optional<std::string> fact(const Pool::Facts& facts, std::string_view name) {
  if (!facts.is_file) return std::nullopt;
  if (name == "tier") return facts.tier;
  if (name == "checksum" && !facts.checksum.empty()) return facts.checksum;
  if (name == "node") return std::to_string(facts.node);
  if (name == "hits") return std::to_string(facts.hits);
  if (name == "version") return std::to_string(facts.version);
  if (name == "pinned") return facts.pinned ? "1" : "0";
  return std::nullopt;
}

void reply_sized(fuse_req_t request, std::string_view value, size_t size) {
  if (size == 0) {
    (void)fuse_reply_xattr(request, value.size());
  } else if (value.size() > size) {
    reply_error(request, {ERANGE, {}});
  } else {
    (void)fuse_reply_buf(request, value.data(), value.size());
  }
}

Result<int> parse_priority(std::string_view text) {
  int priority = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), priority);
  if (code != std::errc() || end != text.data() + text.size() || std::abs(priority) > kMostPriority)
    return fail(EINVAL);
  return priority;
}

Result<void> set(Survivors& survivors, const Node& node, const char* name, std::string_view value,
                 int flags) {
  if (name == kPinned) {
    if (value != "0" && value != "1") return fail(EINVAL);
    return node.pool->set_pinned(node.ino, value == "1");
  }
  if (std::string_view(name).starts_with(kOwnPrefix)) return fail(EPERM);
  if (!is_storable(name)) return fail(EOPNOTSUPP);
  std::optional<int> priority;
  if (name == kPriority) {
    auto parsed = parse_priority(value);
    if (!parsed) return pass(parsed);
    priority = *parsed;
  }
  auto fd = node.pool->open_inode(node.ino, O_PATH | O_NOFOLLOW);
  if (!fd) return pass(fd);
  if ((flags & XATTR_CREATE) != 0) {
    if (request_identity().attempted)
      flags = 0;
    else if (sys::get_xattr(fd->get(), name, {}))
      return fail(EEXIST);
    survivors.attempt();
  }
  if (auto done = sys::set_xattr(fd->get(), name, value, flags); !done) return done;
  if (priority) node.pool->set_priority(node.ino, *priority);
  node.pool->attributes_changed(node.ino);
  return {};
}

Result<void> drop(Survivors& survivors, const Node& node, const char* name) {
  if (std::string_view(name).starts_with(kOwnPrefix)) return fail(EPERM);
  if (!is_storable(name)) return fail(EOPNOTSUPP);
  auto fd = node.pool->open_inode(node.ino, O_PATH | O_NOFOLLOW);
  if (!fd) return pass(fd);
  if (sys::get_xattr(fd->get(), name, {})) survivors.attempt();
  auto done = sys::remove_xattr(fd->get(), name);
  if (!done && !(done.error().code == ENODATA && request_identity().attempted)) return done;
  if (name == kPriority) node.pool->set_priority(node.ino, 0);
  node.pool->attributes_changed(node.ino);
  return {};
}

}  // namespace

void setxattr(fuse_req_t request, fuse_ino_t ino, const char* name, const char* value, size_t size,
              int flags) {
  auto node = find_node(server_of(request), ino);
  if (!node) return reply_error(request, std::move(node.error()));
  reply_outcome(request, set(server_of(request).survivors, *node, name, {value, size}, flags));
}

void getxattr(fuse_req_t request, fuse_ino_t ino, const char* name, size_t size) {
  const std::string_view key(name);
  auto node = find_node(server_of(request), ino);
  if (!node) return reply_error(request, {key.starts_with("user.") ? ENODATA : EOPNOTSUPP, {}});
  if (key.starts_with(kOwnPrefix)) {
    auto facts = node->pool->facts(node->ino);
    if (!facts) return reply_error(request, std::move(facts.error()));
    const auto value = fact(*facts, key.substr(kOwnPrefix.size()));
    if (!value) return reply_error(request, {ENODATA, {}});
    return reply_sized(request, *value, size);
  }
  if (!is_storable(key)) return reply_error(request, {EOPNOTSUPP, {}});
  auto fd = node->pool->open_inode(node->ino, O_PATH | O_NOFOLLOW);
  if (!fd) return reply_error(request, std::move(fd.error()));
  std::vector<char> value(size);
  auto length = sys::get_xattr(fd->get(), name, value);
  if (!length) return reply_error(request, std::move(length.error()));
  if (size == 0)
    (void)fuse_reply_xattr(request, *length);
  else
    (void)fuse_reply_buf(request, value.data(), *length);
}

void listxattr(fuse_req_t request, fuse_ino_t ino, size_t size) {
  auto node = find_node(server_of(request), ino);
  if (!node) return reply_sized(request, "", size);
  auto fd = node->pool->open_inode(node->ino, O_PATH | O_NOFOLLOW);
  if (!fd) return reply_error(request, std::move(fd.error()));
  std::vector<char> stored(XATTR_LIST_MAX);
  auto length = sys::list_xattr(fd->get(), stored);
  if (!length) return reply_error(request, std::move(length.error()));
  std::string names;
  for (size_t at = 0; at < *length; at += std::strlen(&stored[at]) + 1)
    if (!std::string_view(&stored[at]).starts_with(kOwnXattrs)) names.append(&stored[at]).push_back('\0');
  auto facts = node->pool->facts(node->ino);
  if (facts && facts->is_file) {
    for (const std::string_view name : kFacts) {
      names.append(kOwnPrefix).append(name);
      names.push_back('\0');
    }
    if (!facts->checksum.empty()) names.append(kOwnPrefix).append("checksum").push_back('\0');
  }
  reply_sized(request, names, size);
}

void removexattr(fuse_req_t request, fuse_ino_t ino, const char* name) {
  auto node = find_node(server_of(request), ino);
  if (!node) return reply_error(request, std::move(node.error()));
  reply_outcome(request, drop(server_of(request).survivors, *node, name));
}

}  // namespace kvcachefs::operations
