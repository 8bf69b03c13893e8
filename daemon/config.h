// What the daemon is to serve, from the command line and the configuration file. Any thread.
// Fails with EINVAL and one line: `FILE:LINE: message`, or the option's name and the message.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "tier/pool_options.h"

namespace kvcachefs {

struct Config {
  std::filesystem::path mountpoint;
  std::filesystem::path runtime_dir = "/run/kvcachefs";
  bool io_uring = false;
  bool no_passthrough = false;
  bool no_supervisor = false;
  unsigned hang_after_s = 30;       // 0: whoever serves may take as long as he likes
  unsigned give_up_after_s = 300;   // when no successor could take over for so long
  std::optional<unsigned> poll_us;  // none: default_poll_us()
  unsigned threads = 0;             // 0: by cores
  bool daemonize = false;
  std::vector<PoolOptions> pools;
};

// Longer than any sensible wait between two requests; more threads than any machine's queue can feed.
inline constexpr unsigned kMaximumPollUs = 1'000'000;
inline constexpr unsigned kMaximumThreads = 1024;
inline constexpr unsigned kMaximumHangAfterS = 86'400;

// A thread that polls takes a processor from the clients: nothing where there are few.
unsigned default_poll_us(unsigned processors);

// Where each pool's settings were last changed: `FILE:LINE` or `--pool`.
using PoolOrigins = std::map<std::string, std::string, std::less<>>;

// What no single setting shows: all pools together fit in the memory, an entry fits in its pool, no two have
// the same disk tier.
Result<void> check_pools(const std::vector<PoolOptions>& pools, const PoolOrigins& origins,
                         uint64_t memory_bytes);

// Over io_uring no open may wait, as that of an entry that is only on disk has to.
Result<void> check_transport(const Config& config, const PoolOrigins& origins);

// daemon/config_file.cc. Changes `config` and `origins` only on success.
Result<void> read_config_file(const std::filesystem::path& file, uint64_t memory_bytes, Config& config,
                              PoolOrigins& origins);
// TOML that read_config_file reads back as it is; daemonize is of the command line only.
std::string format_config(const Config& config);

}  // namespace kvcachefs
