#include "tier/pool_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <limits>

#include "base/size.h"
#include "tier/policies/policy.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr size_t kMaximumNameLength = 64;

uint64_t percent_of(uint64_t bytes, uint64_t percent) {
  return bytes / 100 * percent + bytes % 100 * percent / 100;
}

Result<uint64_t> parse_pool_size(std::string_view text, uint64_t memory_bytes) {
  uint64_t bytes = 0;
  if (text.ends_with('%')) {
    Result<unsigned> percent = parse_percent(text, 1);
    if (!percent) return pass(percent);
    bytes = percent_of(memory_bytes, *percent);
  } else {
    Result<uint64_t> size = parse_size(text);
    if (!size) return pass(size);
    bytes = *size;
  }
  bytes -= bytes % kPageBytes;  // down: a pool never uses more than its size
  if (bytes < kMinimumPoolBytes) {
    return fail(EINVAL, fmt::format("a pool of {} is too small, the least is {}", format_size(bytes),
                                    format_size(kMinimumPoolBytes)));
  }
  return bytes;
}

Result<mode_t> parse_mode(std::string_view text) {
  unsigned mode = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, mode, 8);
  if (text.empty() || stop != end || error != std::errc{} || mode > 07777) {
    return fail(EINVAL, fmt::format("'{}' is not a mode (octal, such as 1777)", text));
  }
  return mode;
}

Result<uint32_t> parse_id(std::string_view text) {
  Result<uint64_t> id = parse_number(text);
  // The last one is the kernel's "no id".
  if (!id || *id >= std::numeric_limits<uint32_t>::max()) {
    return fail(EINVAL, fmt::format("'{}' is not a numeric id", text));
  }
  return static_cast<uint32_t>(*id);
}

Result<std::string> parse_policy(std::string_view text) {
  if (Result<void> known = check_policy_name(text); !known) return pass(known);
  return std::string(text);
}

template <class T, class Field>
Result<void> assign(Field& field, Result<T> value) {
  if (!value) return pass(value);
  field = std::move(*value);
  return {};
}

struct OptionKey {
  std::string_view name;
  Result<void> (*set)(PoolOptions& options, std::string_view value, uint64_t memory_bytes);
  std::string (*get)(const PoolOptions& options);
};

constexpr std::array<OptionKey, 8> kKeys{{
    {"size",
     [](PoolOptions& o, std::string_view v, uint64_t memory_bytes) {
       return assign(o.size_bytes, parse_pool_size(v, memory_bytes));
     },
     [](const PoolOptions& o) { return format_size_exact(o.size_bytes); }},
    {"policy", [](PoolOptions& o, std::string_view v, uint64_t) { return assign(o.policy, parse_policy(v)); },
     [](const PoolOptions& o) { return o.policy; }},
    {"watermarks",
     [](PoolOptions& o, std::string_view v, uint64_t) { return assign(o.watermarks, parse_watermarks(v)); },
     [](const PoolOptions& o) { return format_watermarks(o.watermarks); }},
    {"entry_size",
     [](PoolOptions& o, std::string_view v, uint64_t) {
       return assign(o.entry_size_bytes, parse_entry_size(v));
     },
     [](const PoolOptions& o) { return format_entry_size(o.entry_size_bytes); }},
    {"pinned_max",
     [](PoolOptions& o, std::string_view v, uint64_t) {
       return assign(o.pinned_max_percent, parse_percent(v, 0));
     },
     [](const PoolOptions& o) { return fmt::format("{}%", o.pinned_max_percent); }},
    {"mode", [](PoolOptions& o, std::string_view v, uint64_t) { return assign(o.mode, parse_mode(v)); },
     [](const PoolOptions& o) { return fmt::format("{:04o}", o.mode); }},
    {"uid", [](PoolOptions& o, std::string_view v, uint64_t) { return assign(o.uid, parse_id(v)); },
     [](const PoolOptions& o) { return std::to_string(o.uid); }},
    {"gid", [](PoolOptions& o, std::string_view v, uint64_t) { return assign(o.gid, parse_id(v)); },
     [](const PoolOptions& o) { return std::to_string(o.gid); }},
}};

constexpr auto kKeyNames = [] {
  std::array<std::string_view, kKeys.size()> names;
  for (size_t i = 0; i < kKeys.size(); ++i) names[i] = kKeys[i].name;
  return names;
}();

}  // namespace

Result<void> check_pool_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
  };
  if (name.empty() || name.size() > kMaximumNameLength || name.front() == '.' ||
      !std::ranges::all_of(name, allowed)) {
    return fail(EINVAL, fmt::format("'{}' is not a pool name (1 to {} of A-Z a-z 0-9 _ . -, no dot first)",
                                    name, kMaximumNameLength));
  }
  return {};
}

Result<void> check_policy_name(std::string_view policy) {
  const auto known = policies();
  if (std::ranges::find(known, policy, &PolicyInfo::name) != known.end()) return {};
  std::string names;
  for (const PolicyInfo& info : known) names += fmt::format("{}{}", names.empty() ? "" : ", ", info.name);
  return fail(EINVAL, fmt::format("'{}' is not a policy (there are {})", policy, names));
}

Result<void> set_pool_option(PoolOptions& options, std::string_view key, std::string_view value,
                             uint64_t memory_bytes) {
  const auto found = std::ranges::find(kKeys, key, &OptionKey::name);
  if (found == kKeys.end()) return fail(EINVAL, fmt::format("unknown pool option '{}'", key));
  Result<void> done = found->set(options, value, memory_bytes);
  if (!done) return fail(EINVAL, fmt::format("{}: {}", key, done.error().message));
  return {};
}

std::span<const std::string_view> pool_option_keys() {
  return kKeyNames;
}

bool is_pool_option(std::string_view key) {
  return std::ranges::find(kKeyNames, key) != kKeyNames.end();
}

std::string pool_option_text(const PoolOptions& options, std::string_view key) {
  const auto found = std::ranges::find(kKeys, key, &OptionKey::name);
  return found == kKeys.end() ? std::string() : found->get(options);
}

PoolOptions default_pool(std::string name, uint64_t memory_bytes) {
  PoolOptions options;
  options.name = std::move(name);
  const uint64_t bytes = percent_of(memory_bytes, kDefaultPoolPercent);
  options.size_bytes = std::max(bytes - bytes % kPageBytes, kMinimumPoolBytes);
  return options;
}

Result<void> set_pool_options(PoolOptions& options, std::string_view pairs, uint64_t memory_bytes) {
  PoolOptions changed = options;
  while (!pairs.empty()) {
    const size_t comma = pairs.find(',');
    const std::string_view pair = pairs.substr(0, comma);
    pairs = comma == std::string_view::npos ? std::string_view{} : pairs.substr(comma + 1);
    const size_t equals = pair.find('=');
    if (equals == std::string_view::npos) return fail(EINVAL, fmt::format("'{}' is not key=value", pair));
    Result<void> set =
        set_pool_option(changed, pair.substr(0, equals), pair.substr(equals + 1), memory_bytes);
    if (!set) return set;
  }
  options = std::move(changed);
  return {};
}

PoolSpec split_pool_spec(std::string_view spec) {
  const size_t colon = spec.find(':');
  if (colon == std::string_view::npos) return {spec, {}};
  return {spec.substr(0, colon), spec.substr(colon + 1)};
}

Result<PoolOptions> parse_pool_spec(std::string_view spec, uint64_t memory_bytes) {
  const auto [name, pairs] = split_pool_spec(spec);
  if (Result<void> good = check_pool_name(name); !good) return pass(good);
  PoolOptions options = default_pool(std::string(name), memory_bytes);
  if (Result<void> set = set_pool_options(options, pairs, memory_bytes); !set) {
    return fail(EINVAL, fmt::format("pool {}: {}", name, set.error().message));
  }
  return options;
}

Result<Watermarks> parse_watermarks(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon != std::string_view::npos) {
    Result<uint64_t> low = parse_number(text.substr(0, colon));
    Result<uint64_t> high = parse_number(text.substr(colon + 1));
    if (low && high && *low > 0 && *low <= *high && *high <= 100) {
      return Watermarks{static_cast<unsigned>(*low), static_cast<unsigned>(*high)};
    }
  }
  return fail(EINVAL,
              fmt::format("'{}' are not watermarks (LOW:HIGH in percent, 0 < LOW <= HIGH <= 100)", text));
}

std::string format_watermarks(Watermarks watermarks) {
  return fmt::format("{}:{}", watermarks.low_percent, watermarks.high_percent);
}

Result<uint64_t> parse_entry_size(std::string_view text) {
  if (text == "auto") return 0;
  Result<uint64_t> size = parse_size(text);
  if (!size) return pass(size);
  if (*size == 0) return fail(EINVAL, "an entry size is 'auto' or more than 0");
  return size;
}

std::string format_entry_size(uint64_t entry_size_bytes) {
  return entry_size_bytes == 0 ? "auto" : format_size_exact(entry_size_bytes);
}

Result<unsigned> parse_percent(std::string_view text, unsigned minimum) {
  const std::string_view digits = text.ends_with('%') ? text.substr(0, text.size() - 1) : text;
  Result<uint64_t> percent = parse_number(digits);
  if (!percent || *percent < minimum || *percent > 100) {
    return fail(EINVAL, fmt::format("'{}' is not a percentage from {} to 100", text, minimum));
  }
  return static_cast<unsigned>(*percent);
}

}  // namespace kvcachefs
