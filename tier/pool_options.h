// A pool's settings and their text forms: the one place that knows the keys, for --pool, the configuration
// file, the mount helper and the control files. Any thread. Fails with EINVAL and a sentence; the options are
// then unchanged.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace kvcachefs {

// Percent of the pool's size. Eviction starts when more than high is used and goes down to low.
struct Watermarks {
  unsigned low_percent = 95;
  unsigned high_percent = 98;
};

struct PoolOptions {
  std::string name;
  uint64_t size_bytes = 0;  // a multiple of 4096
  std::string policy = "lru";
  Watermarks watermarks;
  uint64_t entry_size_bytes = 0;  // 0: learned
  unsigned pinned_max_percent = 50;
  mode_t mode = 01777;  // of the pool's root directory
  uid_t uid = 0;
  gid_t gid = 0;
};

// Less holds no entry worth the name, next to the directories themselves.
inline constexpr uint64_t kMinimumPoolBytes = uint64_t{1} << 20;
// What a pool gets, in percent of the memory, when nobody says its size.
inline constexpr uint64_t kDefaultPoolPercent = 25;

Result<void> check_pool_name(std::string_view name);
Result<void> check_policy_name(std::string_view policy);

// `memory_bytes` is what a size in percent refers to.
Result<void> set_pool_option(PoolOptions& options, std::string_view key, std::string_view value,
                             uint64_t memory_bytes);
bool is_pool_option(std::string_view key);
std::span<const std::string_view> pool_option_keys();
// The text that set_pool_option turns into the same value; empty for a key that there is not.
std::string pool_option_text(const PoolOptions& options, std::string_view key);
// `key=value,key=value`: all of them or, on a mistake, none.
Result<void> set_pool_options(PoolOptions& options, std::string_view pairs, uint64_t memory_bytes);

struct PoolSpec {
  std::string_view name;
  std::string_view pairs;
};
PoolSpec split_pool_spec(std::string_view spec);  // at the first colon; checks nothing

// `NAME`, or `NAME:key=value,key=value`. A size that is not given is kDefaultPoolPercent of the memory.
Result<PoolOptions> parse_pool_spec(std::string_view spec, uint64_t memory_bytes);
PoolOptions default_pool(std::string name, uint64_t memory_bytes);

Result<Watermarks> parse_watermarks(std::string_view text);  // `95:98`
std::string format_watermarks(Watermarks watermarks);
Result<uint64_t> parse_entry_size(std::string_view text);  // `auto` is 0
std::string format_entry_size(uint64_t entry_size_bytes);
Result<unsigned> parse_percent(std::string_view text, unsigned minimum);  // `50%` or `50`, to 100

}  // namespace kvcachefs
