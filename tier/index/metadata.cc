#include "tier/index/metadata.h"

#include <fmt/format.h>
#include <sys/xattr.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "base/escape.h"
#include "base/key_value.h"
#include "base/sys.h"

namespace kvcachefs {
namespace {

static_assert(std::endian::native == std::endian::little, "token ids are little-endian");

constexpr size_t kMostTextBytes = 255;
constexpr uint64_t kMostDate = uint64_t{1} << 40;  // the daemon counts milliseconds
constexpr size_t kMostTokenBytes = 64 << 10;       // XATTR_SIZE_MAX

bool is_text(std::string_view value) {
  return !value.empty() && value.size() <= kMostTextBytes && std::ranges::none_of(value, is_control);
}
bool is_number(std::string_view value) {
  return number_in<uint32_t>(value).has_value();
}
bool is_time(std::string_view value) {
  return seconds_in(value).has_value();
}
bool is_date(std::string_view value) {
  const auto date = number_in<uint64_t>(value);
  return date && *date > 0 && *date <= kMostDate;
}
bool is_flag(std::string_view value) {
  return value == "0" || value == "1";
}
bool is_tokens(std::string_view value) {
  return !value.empty() && value.size() % sizeof(uint32_t) == 0;
}
bool is_vector(std::string_view value) {
  if (value.empty() || value.size() % sizeof(float) != 0) return false;
  for (size_t at = 0; at < value.size(); at += sizeof(float)) {
    float number = 0;
    std::memcpy(&number, value.data() + at, sizeof(number));
    if (!std::isfinite(number)) return false;
  }
  return true;
}

struct Known {
  std::string_view name;
  bool (*is_right)(std::string_view value);
  std::string_view form;
  std::optional<Attribute> attribute = std::nullopt;
};
constexpr std::string_view kText = "text of 1 to 255 bytes without control characters";
constexpr std::string_view kNumber = "a decimal number below 2^32";
constexpr std::array<Known, 15> kKnown = {{
    {"tokens", is_tokens, "token ids as little-endian 32-bit integers"},
    {"parent", is_text, kText},
    {"token_length", is_number, kNumber},
    {"sequence_length", is_number, kNumber},
    {"layer", is_number, kNumber, Attribute::kLayer},
    {"agent", is_text, kText, Attribute::kAgent},
    {"anchor", is_text, kText, Attribute::kAnchor},
    {"offset_hint", is_vector, "finite 32-bit floating-point numbers"},
    {"pre_rope", is_flag, "0 or 1"},
    {"cla_group", is_number, kNumber},
    {"workflow_step", is_number, kNumber, Attribute::kWorkflowStep},
    {"model", is_text, kText, Attribute::kModel},
    {"group", is_text, kText, Attribute::kGroup},
    {"ttl", is_time, "a time such as 90s, 30m, 2h or 7d"},
    {"expires", is_date, "seconds since 1970"},
}};

const Known* known_of(std::string_view xattr) {
  if (!is_metadata(xattr)) return nullptr;
  const auto found = std::ranges::find(kKnown, xattr.substr(kMetadataPrefix.size()), &Known::name);
  return found == kKnown.end() ? nullptr : found;
}

std::vector<std::string> xattrs_of(int fd) {
  std::vector<char> names(XATTR_LIST_MAX);
  const size_t length = sys::list_xattr(fd, names).value_or(0);
  std::vector<std::string> result;
  for (size_t at = 0; at < length; at += result.back().size() + 1) result.emplace_back(&names[at]);
  return result;
}

}  // namespace

std::optional<Attribute> attribute_named(std::string_view name) {
  const auto found = std::ranges::find(kKnown, name, &Known::name);
  return found == kKnown.end() ? std::nullopt : found->attribute;
}

std::string_view name_of(Attribute attribute) {
  return std::ranges::find(kKnown, std::optional(attribute), &Known::attribute)->name;
}

Result<void> check_metadata(std::string_view xattr, std::string_view value) {
  const Known* const known = known_of(xattr);
  if (known == nullptr || known->is_right(value)) return {};
  return fail(EINVAL, fmt::format("{} is {}; {} bytes that are not were to be set", xattr, known->form,
                                  value.size()));
}

Result<std::vector<uint32_t>> tokens_in(std::string_view bytes) {
  if (!is_tokens(bytes)) return fail(EINVAL, "token ids are little-endian 32-bit integers");
  std::vector<uint32_t> tokens(bytes.size() / sizeof(uint32_t));
  std::memcpy(tokens.data(), bytes.data(), bytes.size());
  return tokens;
}

bool has_metadata(int fd) {
  return std::ranges::any_of(xattrs_of(fd), [](const std::string& name) { return is_metadata(name); });
}

uint64_t expires_of(int fd) {
  char value[32];
  const auto bytes = sys::get_xattr(fd, "user.kv.expires", value);
  return bytes ? number_in<uint64_t>({value, *bytes}).value_or(0) : 0;
}

Metadata read_metadata(int fd) {
  Metadata result;
  std::vector<char> value(kMostTokenBytes);
  for (const std::string& name : xattrs_of(fd)) {
    const Known* const known = known_of(name);
    if (known == nullptr) continue;
    const auto bytes = sys::get_xattr(fd, name.c_str(), value);
    if (!bytes) continue;
    const std::string_view text(value.data(), *bytes);
    if (!known->is_right(text)) continue;
    if (known->attribute) result.attributes[static_cast<size_t>(*known->attribute)] = text;
    if (known->name == "tokens") result.tokens = *tokens_in(text);
    if (known->name == "parent") result.parent = text;
    if (known->name == "ttl") result.ttl_s = *seconds_in(text);
    if (known->name == "expires") result.expires_s = *number_in<uint64_t>(text);
    if (known->name == "pre_rope") result.pre_rope = text == "1";
  }
  return result;
}

}  // namespace kvcachefs
