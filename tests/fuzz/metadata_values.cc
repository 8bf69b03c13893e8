// The value of an xattr user.kv.*: what is let in is read back as it is, and nothing else counts.
#include <sys/mman.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "tier/index/metadata.h"

using namespace kvcachefs;

namespace {

constexpr std::array<std::string_view, 16> kKeys = {
    "tokens",   "tokens.1",    "parent",    "token_length",  "sequence_length", "layer", "agent", "anchor",
    "pre_rope", "offset_hint", "cla_group", "workflow_step", "model",           "group", "ttl",   "expires"};

void expect(bool is_so) {
  if (!is_so) std::abort();
}

void check_read_back(const std::string& xattr, std::string_view value, bool is_right) {
  const int file = ::memfd_create("value", 0);
  expect(file >= 0);
  // Also one that is wrong: it may have been stored before it was checked.
  expect(::fsetxattr(file, xattr.c_str(), value.data(), value.size(), 0) == 0);
  const Metadata read = read_metadata(file);
  ::close(file);
  if (!is_right) expect(read.empty());
  if (is_right && xattr == "user.kv.tokens")
    expect(read.tokens == tokens_in(value).value() && read.tokens.size() * sizeof(uint32_t) == value.size());
  if (is_right && xattr == "user.kv.parent") expect(read.parent == value);
  if (is_right && xattr == "user.kv.pre_rope") expect(read.pre_rope == (value == "1"));
  const auto attribute = attribute_named(xattr.substr(kMetadataPrefix.size()));
  if (is_right && attribute) expect(read[*attribute] == value);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view value(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string_view key = kKeys[data[0] % kKeys.size()];
  const std::string xattr = std::string(kMetadataPrefix) + std::string(key);
  check_read_back(xattr, value, check_metadata(xattr, value).has_value());
  // What its text form stands for may be stored.
  if (const auto stored = metadata_value(key, value)) expect(check_metadata(xattr, *stored).has_value());
  return 0;
}
