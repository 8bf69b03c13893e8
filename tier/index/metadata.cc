#include "tier/index/metadata.h"

#include <fmt/format.h>
#include <sys/xattr.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
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

bool is_text(std::string_view value) {
  return !value.empty() && value.size() <= kMostTextBytes && std::ranges::none_of(value, is_control);
}
// In one form alone, because filters compare the text.
bool is_number(std::string_view value) {
  return number_in<uint32_t>(value) && (value.size() == 1 || value.front() != '0');
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
constexpr std::string_view kNumber = "a decimal number below 2^32 without zeros in front";
constexpr std::array<Known, 15> kKnownKeys = {{
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

const Known* known_as(std::string_view key) {
  const auto found = std::ranges::find(kKnownKeys, key, &Known::name);
  return found == kKnownKeys.end() ? nullptr : found;
}

const Known* known_of(std::string_view xattr) {
  if (!is_metadata(xattr)) return nullptr;
  return known_as(is_tokens_xattr(xattr) ? "tokens" : xattr.substr(kMetadataPrefix.size()));
}

// Empty: it is no list of such numbers.
template <class Number>
std::string bytes_of_numbers(std::string_view text) {
  std::string bytes;
  for (bool more = true; more;) {
    more = text.contains(',');
    const std::string_view word = take_part(text, ',');
    Number number{};
    const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (code != std::errc() || end != word.data() + word.size()) return {};
    bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  return bytes;
}

std::vector<uint32_t> read_tokens(int fd, std::span<char> part) {
  std::string bytes;
  for (size_t i = 0; bytes.size() == i * kMostTokenBytes; ++i) {
    const auto length = sys::get_xattr(fd, tokens_xattr(i).c_str(), part);
    if (!length || !is_tokens({part.data(), *length})) break;
    bytes.append(part.data(), *length);
  }
  return tokens_in(bytes).value_or(std::vector<uint32_t>());
}

}  // namespace

std::optional<Attribute> attribute_named(std::string_view name) {
  const Known* const known = known_as(name);
  return known == nullptr ? std::nullopt : known->attribute;
}

std::string_view name_of(Attribute attribute) {
  return std::ranges::find(kKnownKeys, std::optional(attribute), &Known::attribute)->name;
}

Result<void> check_metadata(std::string_view xattr, std::string_view value) {
  const Known* const known = known_of(xattr);
  if (known == nullptr || known->is_right(value)) return {};
  return fail(EINVAL, fmt::format("{} is {}; the {} bytes given are not", xattr, known->form, value.size()));
}

std::string tokens_xattr(size_t part) {
  return part == 0 ? "user.kv.tokens" : fmt::format("user.kv.tokens.{}", part);
}

bool is_tokens_xattr(std::string_view xattr) {
  constexpr std::string_view kTokens = "user.kv.tokens";
  if (!xattr.starts_with(kTokens)) return false;
  xattr.remove_prefix(kTokens.size());
  if (xattr.empty()) return true;
  return xattr.starts_with('.') && !xattr.starts_with(".0") && number_in<uint16_t>(xattr.substr(1));
}

Result<std::string> metadata_value(std::string_view key, std::string_view text) {
  const Known* const known = known_as(key);
  if (known == nullptr) return fail(EINVAL, fmt::format("'{}' is no key of metadata", key.substr(0, 64)));
  std::string value = known->is_right == is_tokens   ? bytes_of_numbers<uint32_t>(text)
                      : known->is_right == is_vector ? bytes_of_numbers<float>(text)
                                                     : std::string(text);
  if (known->is_right(value)) return value;
  return fail(EINVAL, fmt::format("{} is {}, not '{}'", key, known->form, text.substr(0, 64)));
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

std::vector<std::string> xattrs_of(int fd) {
  std::vector<char> names(XATTR_LIST_MAX);
  const size_t length = sys::list_xattr(fd, names).value_or(0);
  std::vector<std::string> result;
  for (size_t at = 0; at < length; at += result.back().size() + 1) result.emplace_back(&names[at]);
  return result;
}

std::string group_of(int fd) {
  char value[256];
  const auto bytes = sys::get_xattr(fd, "user.kv.group", value);
  return bytes ? std::string(value, *bytes) : std::string();
}

uint64_t expires_of(int fd) {
  char value[32];
  const auto bytes = sys::get_xattr(fd, "user.kv.expires", value);
  return bytes ? number_in<uint64_t>({value, *bytes}).value_or(0) : 0;
}

Metadata read_metadata(int fd, bool attributes_alone) {
  Metadata result;
  std::vector<char> value(attributes_alone ? kMostTextBytes : kMostTokenBytes);
  for (const std::string& name : xattrs_of(fd)) {
    const Known* const known = known_of(name);
    if (known == nullptr || (attributes_alone && !known->attribute)) continue;
    const auto bytes = sys::get_xattr(fd, name.c_str(), value);
    if (!bytes) continue;
    const std::string_view text(value.data(), *bytes);
    if (!known->is_right(text)) continue;
    if (known->attribute) result.attributes[static_cast<size_t>(*known->attribute)] = text;
    if (name == tokens_xattr(0)) result.tokens = read_tokens(fd, value);
    if (known->name == "parent") result.parent = text;
    if (known->name == "ttl") result.ttl_s = *seconds_in(text);
    if (known->name == "expires") result.expires_s = *number_in<uint64_t>(text);
    if (known->name == "pre_rope") result.pre_rope = text == "1";
  }
  return result;
}

}  // namespace kvcachefs
