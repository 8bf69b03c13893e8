// Metadata: what the writer of an entry says of it in xattrs `user.kv.*`, typed. The names and forms are in
// metadata.cc and in kvcachefs(7). Any thread. Failure: EINVAL with a sentence that has the expected form. A
// value that is wrong all the same, because it was stored before it was checked, counts as not there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace kvcachefs {

inline constexpr std::string_view kMetadataPrefix = "user.kv.";
// user.kv.priority belongs to the policy, and says nothing of the content.
constexpr bool is_metadata(std::string_view xattr) {
  return xattr.starts_with(kMetadataPrefix) && xattr != "user.kv.priority";
}

// The attributes by which entries can be listed without a look at each.
enum class Attribute : uint8_t { kAgent, kAnchor, kGroup, kModel, kWorkflowStep, kLayer };
inline constexpr size_t kAttributes = 6;
std::optional<Attribute> attribute_named(std::string_view name);  // "agent", "workflow_step"
std::string_view name_of(Attribute attribute);

struct Metadata {
  std::vector<uint32_t> tokens;  // that the entry holds, after those of its parent
  std::string parent;            // the name, or the block hash, of the entry that precedes it; empty: none
  std::string attributes[kAttributes];
  // Its content holds at any position. Unless the writer says so it does not.
  bool pre_rope = false;
  uint64_t ttl_s = 0;      // after its content was written it is kept for so long
  uint64_t expires_s = 0;  // when it is removed, since 1970; 0: never

  const std::string& operator[](Attribute attribute) const {
    return attributes[static_cast<size_t>(attribute)];
  }
  bool operator==(const Metadata&) const = default;
  bool empty() const { return *this == Metadata{}; }
};

// Tokens that do not fit into one xattr: user.kv.tokens has as many as it takes, user.kv.tokens.1 the next,
// and so on. Each counts only if all before it are full, so that a shorter list is not continued by an old
// one.
inline constexpr size_t kMostTokenBytes = 64 << 10;  // XATTR_SIZE_MAX
std::string tokens_xattr(size_t part);
bool is_tokens_xattr(std::string_view xattr);

// Whether a client may set the xattr to this value. Names that are not known take any value.
Result<void> check_metadata(std::string_view xattr, std::string_view value);
// The value of user.kv.KEY whose text this is: numbers with commas for a list of them, else the text itself.
Result<std::string> metadata_value(std::string_view key, std::string_view text);
// Whether only the owner of a file may set it or take it back.
constexpr bool belongs_to_owner(std::string_view xattr) {
  return xattr == "user.kv.expires" || xattr == "user.kv.group" || xattr == "user.kv.ttl";
}
// `attributes_alone`: of many entries the tokens would take gigabytes.
Metadata read_metadata(int fd, bool attributes_alone = false);
uint64_t expires_of(int fd);  // Metadata::expires_s alone
std::string group_of(int fd);
std::vector<std::string> xattrs_of(int fd);  // the names of all; empty also where they cannot be had
bool has_metadata(int fd);
// The same of pairs of a name and a value.
bool has_metadata(const auto& xattrs) {
  return std::ranges::any_of(xattrs, [](const auto& xattr) { return is_metadata(xattr.first); });
}

// Token ids as in user.kv.tokens: little-endian u32.
Result<std::vector<uint32_t>> tokens_in(std::string_view bytes);

}  // namespace kvcachefs
