// A Config says what the daemon serves, from the command line and the configuration file. Any thread. Fails
// with EINVAL and one line: `FILE:LINE: message`, or the option's name and the message.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "tier/pool_options.h"

namespace kvcachefs {

inline constexpr std::string_view kNoStateDir = "none";

struct Percent {
  unsigned value = 0;
};

struct Config {
  std::filesystem::path mountpoint;
  std::filesystem::path runtime_dir = "/run/kvcachefs";
  std::filesystem::path state_dir = "/var/lib/kvcachefs";  // empty: what is set is lost at the next start
  bool io_uring = false;
  bool no_passthrough = false;
  bool no_page_cache = false;
  bool no_supervisor = false;
  unsigned hang_after_s = 30;       // 0: a serving process is never taken for hung
  unsigned give_up_after_s = 300;   // how long successors may fail to come to serve
  std::optional<unsigned> poll_us;  // empty: default_poll_us()
  unsigned threads = 0;             // 0: by the number of processors
  // What is left of the memory for all but the pools (empty: default_memory_reserve()), and what a pool keeps
  // of its size while that is short. 0 and 100: the pools keep all of their sizes.
  std::optional<uint64_t> memory_reserve_bytes;
  Percent shrink_floor{10};
  std::optional<int> oom_score_adj;  // empty: as it was inherited
  // Its members may do with a pool's control files what the pool's owner may; empty: no group may.
  std::optional<gid_t> control_group;
  std::optional<bool> seal;  // the directory below the mount; empty: on only under a service manager
  bool daemonize = false;
  std::vector<PoolOptions> pools;
};

// A new setting of the daemon is a member of Config and a row of kDaemonSettings, which serves -o, the
// configuration file and the mount helper.
struct DaemonSetting {
  std::string_view key;
  using Amount = std::optional<uint64_t> Config::*;
  using Adjustment = std::optional<int> Config::*;  // from -maximum to maximum
  using Switch = std::optional<bool> Config::*;     // on or off
  struct GroupSetting {
    std::optional<gid_t> Config::*member;
  };

  std::variant<bool Config::*, unsigned Config::*, std::optional<unsigned> Config::*, Percent Config::*,
               Amount, Adjustment, Switch, GroupSetting>
      member;
  unsigned maximum = 1;
  std::string_view value = {};  // as the help shows it

  bool is_flag() const { return value.empty(); }
  bool is_number() const { return !is_flag() && maximum > 0; }  // of which the file has a number alone
  // A setting that is a group has its number as a number, or its name as text.
  // A flag is `true` or `false`. `memory_bytes` is the amount to which an amount in percent refers. The error
  // begins with `is not`.
  Result<void> set(Config& config, std::string_view text, uint64_t memory_bytes) const;
  std::string text(const Config& config) const;  // as TOML has it; empty for a value that is not set
};

// The limits are beyond any sensible value: a poll that is longer than any wait between two requests, and
// more threads than the queue of any machine can feed.
inline constexpr DaemonSetting kDaemonSettings[] = {
    {"io_uring", &Config::io_uring},
    {"no_passthrough", &Config::no_passthrough},
    {"no_page_cache", &Config::no_page_cache},
    {"no_supervisor", &Config::no_supervisor},
    {"poll_us", &Config::poll_us, 1'000'000, "=N"},
    {"threads", &Config::threads, 1024, "=N"},
    {"hang_after", &Config::hang_after_s, 86'400, "=S"},
    {"give_up_after", &Config::give_up_after_s, 86'400, "=S"},
    {"memory_reserve", &Config::memory_reserve_bytes, 0, "=SIZE"},
    {"shrink_floor", &Config::shrink_floor, 0, "=P%"},
    {"control_group", DaemonSetting::GroupSetting{&Config::control_group}, 0, "=GROUP"},
    {"oom_score_adj", &Config::oom_score_adj, 1000, "=N"},
    {"seal", &Config::seal, 0, "=on|off"},
};
const DaemonSetting* find_daemon_setting(std::string_view key);  // nullptr: there is no such setting

// A thread that polls takes a processor from the clients, so the default is 0 where there are few processors.
unsigned default_poll_us(unsigned processors);

// A twentieth of the memory, at least 512M and at most half: for the kernel, whose inodes and tables grow
// with the entries, and for the processes that use them.
uint64_t default_memory_reserve(uint64_t memory_bytes);
uint64_t memory_reserve_of(const Config& config, uint64_t memory_bytes);

// The place where each pool's settings were last changed: `FILE:LINE` or `--pool`.
using PoolOrigins = std::map<std::string, std::string, std::less<>>;

// The rules that no single setting can show to be broken: all pools together fit in the memory without the
// reserve, an entry fits in its pool, no two pools have the same disk tier.
Result<void> check_pools(const Config& config, const PoolOrigins& origins, uint64_t memory_bytes);

// Over io_uring no open may wait, and an open of an entry that is only on the disk has to.
Result<void> check_transport(const Config& config, const PoolOrigins& origins);

// These three functions are in daemon/config_file.cc. Beside FILE.toml, the files FILE.d/*.toml are read,
// which have pools alone; no two files define the same pool. The reader changes `config` and `origins` only
// on success.
Result<void> read_config_file(const std::filesystem::path& file, uint64_t memory_bytes, Config& config,
                              PoolOrigins& origins);
// FILE.d of FILE.toml.
std::filesystem::path further_config_directory(std::filesystem::path file);
// The directory's *.toml, in the order of their names; none if there is no directory.
Result<std::vector<std::filesystem::path>> further_config_files(const std::filesystem::path& directory);
// The text is TOML that read_config_file() reads back as it is, unless a path is no UTF-8. It leaves out
// `daemonize`, which only the command line has.
std::string format_config(const Config& config);

}  // namespace kvcachefs
