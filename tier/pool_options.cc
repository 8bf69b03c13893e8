#include "tier/pool_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <ranges>

#include "base/escape.h"
#include "base/key_value.h"
#include "base/size.h"
#include "tier/blocks.h"
#include "tier/policies/policy.h"

namespace kvcachefs {
namespace {

constexpr size_t kMaximumNameLength = 64;
constexpr std::string_view kNameCharacters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";

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
  bytes -= bytes % kBlockBytes;  // rounded down: a pool never uses more than its size
  if (bytes < kMinimumPoolBytes)
    return fail(EINVAL, fmt::format("a pool of {} is too small, the least is {}", format_size(bytes),
                                    format_size(kMinimumPoolBytes)));
  return bytes;
}

Result<mode_t> parse_mode(std::string_view text) {
  const auto mode = number_in<mode_t>(text, 8);
  if (!mode || *mode > 07777)
    return fail(EINVAL, fmt::format("'{}' is not a mode (octal, such as 1777)", text));
  return *mode;
}

Result<uint32_t> parse_id(std::string_view text) {
  Result<uint64_t> id = parse_number(text);
  // The highest id is the kernel's "no id".
  if (!id || *id >= std::numeric_limits<uint32_t>::max())
    return fail(EINVAL, fmt::format("'{}' is not a numeric id", text));
  return static_cast<uint32_t>(*id);
}

Result<std::string> parse_policy(std::string_view text) {
  if (Result<void> known = check_policy_name(text); !known) return pass(known);
  return std::string(text);
}

constexpr std::array<std::pair<std::string_view, Durability>, 3> kDurabilities{
    {{"none", Durability::kNone}, {"writeback", Durability::kWriteback}, {"sync", Durability::kSync}}};
constexpr std::array<std::pair<std::string_view, Admission>, 3> kAdmissions{
    {{"all", Admission::kAll},
     {"second_access", Admission::kSecondAccess},
     {"tinylfu", Admission::kTinyLfu}}};
constexpr std::array<std::pair<std::string_view, bool>, 2> kSwitches{{{"on", true}, {"off", false}}};

template <const auto& kWords>
auto parse_word(std::string_view text) -> Result<std::remove_cvref_t<decltype(kWords[0].second)>> {
  const auto found = std::ranges::find(kWords, text, [](const auto& word) { return word.first; });
  if (found != kWords.end()) return found->second;
  return fail(EINVAL, fmt::format("'{}' is none of {}", text, fmt::join(kWords | std::views::keys, ", ")));
}

template <const auto& kWords>
std::string_view word_of(decltype(kWords[0].second) value) {
  return std::ranges::find(kWords, value, [](const auto& word) { return word.second; })->first;
}

Result<std::string> parse_path(std::string_view text) {
  if (std::ranges::any_of(text, is_control)) return fail(EINVAL, "a path with control characters");
  // A relative path would depend on the daemon's working directory, which no setting may depend on.
  if (!text.starts_with('/')) return fail(EINVAL, fmt::format("'{}' is not an absolute path", text));
  std::string path = std::filesystem::path(text).lexically_normal().native();
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

Result<uint64_t> parse_spill_unit(std::string_view text) {
  Result<uint64_t> unit = parse_size(text);
  if (!unit) return unit;
  if (!std::has_single_bit(*unit) || *unit < kMinimumSpillUnitBytes || *unit > kMaximumSpillUnitBytes)
    return fail(EINVAL,
                fmt::format("'{}' is not a power of two from {} to {}", text,
                            format_size(kMinimumSpillUnitBytes), format_size(kMaximumSpillUnitBytes)));
  return unit;
}

Result<uint64_t> parse_spill_size(std::string_view text) {
  Result<uint64_t> size = parse_size(text);
  if (size && *size == 0) return fail(EINVAL, "a disk tier of 0 bytes is none (spill=none)");
  return size;
}

Result<unsigned> parse_share(std::string_view text) {
  return parse_percent(text, 0);
}

Result<uint64_t> at_most(Result<uint64_t> value, uint64_t most, std::string_view text) {
  if (value && *value > most) return fail(EINVAL, fmt::format("'{}' is more than {}", text, most));
  return value;
}

Result<uint64_t> parse_xattr_bytes(std::string_view text) {
  return at_most(parse_size(text), kMostXattrBytes, text);
}

Result<uint64_t> parse_xattrs(std::string_view text) {
  return at_most(parse_number(text), kMostXattrs, text);
}

Result<Watermarks> parse_watermarks(std::string_view text) {
  std::string_view rest = text;
  const auto low = number_in<unsigned>(take_part(rest, ':'));
  const auto high = number_in<unsigned>(rest);
  if (low && high && *low > 0 && *low <= *high && *high <= 100) return Watermarks{*low, *high};
  return fail(EINVAL,
              fmt::format("'{}' are not watermarks (LOW:HIGH in percent, 0 < LOW <= HIGH <= 100)", text));
}

std::string format_watermarks(Watermarks watermarks) {
  return fmt::format("{}:{}", watermarks.low_percent, watermarks.high_percent);
}

Result<uint64_t> parse_entry_size(std::string_view text) {
  if (text == "auto") return 0;
  Result<uint64_t> size = parse_size(text);
  if (size && *size == 0) return fail(EINVAL, "an entry size is 'auto' or more than 0");
  return size;
}

std::string format_entry_size(uint64_t entry_size_bytes) {
  return entry_size_bytes == 0 ? "auto" : format_size_exact(entry_size_bytes);
}

// A size of 0 is not set.
std::string format_given_size(uint64_t bytes) {
  return bytes == 0 ? std::string() : format_size_exact(bytes);
}

std::string format_durability(const std::optional<Durability>& durability) {
  return durability ? std::string(durability_name(*durability)) : std::string();
}

template <auto kField, auto kParse>
Result<void> set(PoolOptions& options, std::string_view text, uint64_t memory_bytes) {
  auto value = [&] {
    if constexpr (requires { kParse(text, memory_bytes); })
      return kParse(text, memory_bytes);
    else
      return kParse(text);
  }();
  if (!value) return pass(value);
  options.*kField = std::move(*value);
  return {};
}

template <auto kField, auto kFormat>
std::string get(const PoolOptions& options) {
  return std::string(kFormat(options.*kField));
}

// `none` also takes back every other disk tier option, so that the command line can undo a file's disk tier.
Result<void> set_spill(PoolOptions& options, std::string_view value, uint64_t memory_bytes) {
  if (value != "none") return set<&PoolOptions::spill_path, parse_path>(options, value, memory_bytes);
  options.spill_path.clear();
  options.spill_size_bytes = 0;
  options.spill_unit_bytes = kDefaultSpillUnitBytes;
  options.catalog_path.clear();
  options.durability.reset();
  options.admission = Admission::kAll;
  options.prefetch = true;
  options.spill_force = false;
  return {};
}

using O = PoolOptions;
using Kind = PoolSetting::Kind;

constexpr PoolSetting kSettings[] = {
    {"size", set<&O::size_bytes, parse_pool_size>, get<&O::size_bytes, format_size_exact>, "size",
     "512K, 16G, 1.5T, or 25% of the memory"},
    {"size_max", set<&O::size_max_bytes, parse_pool_size>, get<&O::size_max_bytes, format_given_size>,
     "size_max", "What the pool's owner may make of it; default: the size"},
    {"policy", set<&O::policy, parse_policy>, [](const O& o) { return o.policy; }, "policy",
     "What leaves first (see: kvcachefs policies)"},
    {"watermarks", set<&O::watermarks, parse_watermarks>, get<&O::watermarks, format_watermarks>,
     "watermarks", "LOW:HIGH in percent: evict above HIGH, down to LOW"},
    {"entry_size", set<&O::entry_size_bytes, parse_entry_size>, get<&O::entry_size_bytes, format_entry_size>,
     "entry_size", "Expected size of an entry, or auto"},
    {"pinned_max", set<&O::pinned_max_percent, parse_share>,
     [](const O& o) { return fmt::format("{}%", o.pinned_max_percent); }, "pinned_max",
     "Most that may be pinned, in percent of the size"},
    {"max_entries", set<&O::max_entries, parse_number>,
     [](const O& o) { return std::to_string(o.max_entries); }, "max_entries",
     "Most entries that the pool may have; 0: no limit"},
    {"max_directories", set<&O::max_directories, parse_number>,
     [](const O& o) { return std::to_string(o.max_directories); }, "max_directories",
     "Most directories that the pool may have; 0: no limit"},
    {"user_share", set<&O::user_share_percent, parse_share>,
     [](const O& o) { return fmt::format("{}%", o.user_share_percent); }, "user_share",
     "Whose entries leave first: users' with more than so many percent; 0: none"},
    {"max_xattr_bytes", set<&O::max_xattr_bytes, parse_xattr_bytes>,
     get<&O::max_xattr_bytes, format_size_exact>, "max_xattr_bytes",
     "Most bytes of xattrs, names and values, of a file or directory; up to 256K"},
    {"max_xattrs", set<&O::max_xattrs, parse_xattrs>, [](const O& o) { return std::to_string(o.max_xattrs); },
     "max_xattrs", "Most xattrs of a file or directory; up to 256"},
    {"leaf_first", set<&O::leaf_first, parse_word<kSwitches>>, get<&O::leaf_first, word_of<kSwitches>>,
     "leaf_first", "on: an entry that others continue leaves after them; off"},
    {"mode", set<&O::mode, parse_mode>, [](const O& o) { return fmt::format("{:04o}", o.mode); }},
    {"uid", set<&O::uid, parse_id>, [](const O& o) { return std::to_string(o.uid); }},
    {"gid", set<&O::gid, parse_id>, [](const O& o) { return std::to_string(o.gid); }},
    {"spill", set_spill, [](const O& o) { return o.spill_path.empty() ? "none" : o.spill_path; }, kSpillFile,
     "Disk tier: a block device or a file"},
    {"spill_size", set<&O::spill_size_bytes, parse_spill_size>, get<&O::spill_size_bytes, format_given_size>,
     kSpillFile, "How much of it; a device's default is all", Kind::kDisk},
    {"spill_unit", set<&O::spill_unit_bytes, parse_spill_unit>, get<&O::spill_unit_bytes, format_size_exact>,
     kSpillFile, "Grain of its space, 4K to 4M (64K)", Kind::kDiskOrder},
    {"catalog", set<&O::catalog_path, parse_path>, [](const O& o) { return o.catalog_path; }, kSpillFile,
     "Where to keep what is where on it", Kind::kDiskOrder},
    {"durability", set<&O::durability, parse_word<kDurabilities>>, get<&O::durability, format_durability>,
     "durability", "none, writeback or sync", Kind::kDisk},
    {"admission", set<&O::admission, parse_word<kAdmissions>>, get<&O::admission, word_of<kAdmissions>>,
     "admission", "What may go to disk: all, second_access or tinylfu", Kind::kDisk},
    {"prefetch", set<&O::prefetch, parse_word<kSwitches>>, get<&O::prefetch, word_of<kSwitches>>,
     "auto_prefetch", "", Kind::kDisk},
    {"spill_force", set<&O::spill_force, parse_word<kSwitches>>, get<&O::spill_force, word_of<kSwitches>>,
     kSpillFile, "", Kind::kDiskOrder},
};
}  // namespace

Result<void> check_pool_name(std::string_view name) {
  if (name.empty() || name.size() > kMaximumNameLength || name.front() == '.' ||
      name.find_first_not_of(kNameCharacters) != std::string_view::npos) {
    return fail(EINVAL, fmt::format("'{}' is not a pool name (1 to {} of A-Z a-z 0-9 _ . -, no dot first)",
                                    name, kMaximumNameLength));
  }
  return {};
}

Result<void> check_policy_name(std::string_view policy) {
  const auto known = policies();
  if (std::ranges::find(known, policy, &PolicyInfo::name) != known.end()) return {};
  const auto names = known | std::views::transform(&PolicyInfo::name);
  return fail(EINVAL, fmt::format("'{}' is not a policy (there are {})", policy, fmt::join(names, ", ")));
}

std::span<const PoolSetting> pool_settings() {
  return kSettings;
}

const PoolSetting* find_pool_setting(std::string_view key) {
  const auto* const found = std::ranges::find(kSettings, key, &PoolSetting::key);
  return found == std::end(kSettings) ? nullptr : found;
}

Result<void> set_pool_option(PoolOptions& options, std::string_view key, std::string_view value,
                             uint64_t memory_bytes) {
  const PoolSetting* const setting = find_pool_setting(key);
  if (setting == nullptr) return fail(EINVAL, fmt::format("unknown pool option '{}'", key));
  Result<void> done = setting->set(options, value, memory_bytes);
  if (!done) return fail(EINVAL, fmt::format("{}: {}", key, done.error().message));
  return {};
}

Result<void> check_spill_options(const PoolOptions& options) {
  if (options.spill_path.empty()) {
    const PoolOptions defaults;
    for (const PoolSetting& setting : kSettings) {
      if (!setting.needs_disk() || setting.get(options) == setting.get(defaults)) continue;
      return fail(EINVAL,
                  fmt::format("{}={} needs a disk tier: spill=PATH", setting.key, setting.get(options)));
    }
    return {};
  }
  if (options.catalog_path == options.spill_path)
    return fail(EINVAL, fmt::format("catalog={} is the spill path itself", options.catalog_path));
  // The first unit holds the superblock, so entries need at least one more.
  if (options.spill_size_bytes != 0 && options.spill_size_bytes < 2 * options.spill_unit_bytes)
    return fail(EINVAL, fmt::format("spill_size={} is less than two units of {}",
                                    format_size_exact(options.spill_size_bytes),
                                    format_size_exact(options.spill_unit_bytes)));
  return {};
}

Result<void> check_size_max(const PoolOptions& options) {
  if (options.size_max_bytes == 0 || options.size_max_bytes >= options.size_bytes) return {};
  return fail(EINVAL,
              fmt::format("size_max {} is less than the size {}", format_size_exact(options.size_max_bytes),
                          format_size_exact(options.size_bytes)));
}

Durability durability_of(const PoolOptions& options) {
  return options.durability.value_or(options.spill_path.empty() ? Durability::kNone : Durability::kWriteback);
}

std::string default_catalog_path(const PoolOptions& options, bool spill_is_device) {
  return spill_is_device ? "/var/lib/kvcachefs/" + options.name : options.spill_path + ".catalog";
}

std::string_view durability_name(Durability durability) {
  return word_of<kDurabilities>(durability);
}

bool is_pool_switch(std::string_view key) {
  PoolOptions scratch;
  return set_pool_option(scratch, key, "on", 0).has_value();
}

std::string pool_option_text(const PoolOptions& options, std::string_view key) {
  const PoolSetting* const setting = find_pool_setting(key);
  return setting == nullptr ? std::string() : setting->get(options);
}

PoolOptions default_pool(std::string name, uint64_t memory_bytes) {
  PoolOptions options;
  options.name = std::move(name);
  const uint64_t bytes = percent_of(memory_bytes, kDefaultPoolPercent);
  options.size_bytes = std::max(bytes - bytes % kBlockBytes, kMinimumPoolBytes);
  return options;
}

Result<void> set_pool_options(PoolOptions& options, std::string_view pairs, uint64_t memory_bytes) {
  PoolOptions changed = options;
  bool after_path = false;
  while (!pairs.empty()) {
    const std::string_view pair = take_part(pairs, ',');
    const auto [key, value] = split_key_value(pair);
    if (!value)
      return fail(
          EINVAL,
          fmt::format("'{}' is not key=value{}", pair,
                      after_path ? " (a path with a comma in it can be given in the configuration file"
                                   " only)"
                                 : ""));
    Result<void> set = set_pool_option(changed, key, *value, memory_bytes);
    if (!set) return set;
    after_path = key == "spill" || key == "catalog";
  }
  options = std::move(changed);
  return {};
}

Result<PoolOptions> parse_pool_spec(std::string_view spec, uint64_t memory_bytes) {
  std::string_view pairs = spec;
  const std::string_view name = take_part(pairs, ':');
  if (Result<void> good = check_pool_name(name); !good) return pass(good);
  PoolOptions options = default_pool(std::string(name), memory_bytes);
  if (Result<void> set = set_pool_options(options, pairs, memory_bytes); !set)
    return fail(EINVAL, fmt::format("pool {}: {}", name, set.error().message));
  return options;
}

Result<unsigned> parse_percent(std::string_view text, unsigned minimum) {
  const std::string_view digits = text.ends_with('%') ? text.substr(0, text.size() - 1) : text;
  Result<uint64_t> percent = parse_number(digits);
  if (!percent || *percent < minimum || *percent > 100)
    return fail(EINVAL, fmt::format("'{}' is not a percentage from {} to 100", text, minimum));
  return static_cast<unsigned>(*percent);
}

}  // namespace kvcachefs
