// A pool's settings and their text forms. The table of settings serves --pool, the configuration file, the
// mount helper, the kvcachefs tool and the control files. Any thread. Failure: EINVAL and a sentence; the
// options are then unchanged.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace kvcachefs {

// Percent of the pool's size. Eviction starts when more than high_percent is used and goes down to
// low_percent.
struct Watermarks {
  unsigned low_percent = 95;
  unsigned high_percent = 98;
};

// When a closed entry is written to the disk tier.
enum class Durability : uint8_t {
  kNone,       // when memory is short
  kWriteback,  // within seconds, in order
  kSync,       // before the rename or close of a written entry returns
};

// The condition that an entry must meet before the pool spends a disk write on it.
enum class Admission : uint8_t { kAll, kSecondAccess, kTinyLfu };

inline constexpr uint64_t kDefaultSpillUnitBytes = uint64_t{64} << 10;
inline constexpr uint64_t kMinimumSpillUnitBytes = 4096;
inline constexpr uint64_t kMaximumSpillUnitBytes = uint64_t{4} << 20;

// The person on whose behalf a pool is changed. The owner, who may be root of a container too, may change it
// within the limits that the host's administrator has set; the administrator may change anything.
enum class Authority : uint8_t { kOwner, kAdministrator };

// What max_xattr_bytes and max_xattrs may be at most. The catalog describes a node in one piece; other file
// systems allow less (ext4 4 KiB). And each xattr costs a call whenever all are read: 3 us.
inline constexpr uint64_t kMostXattrBytes = 256 << 10;
inline constexpr uint64_t kMostXattrs = 256;

struct PoolOptions {
  std::string name;
  uint64_t size_bytes = 0;      // a multiple of 4096
  uint64_t size_max_bytes = 0;  // up to which the owner may grow the pool; 0, until there is a pool: the size
  std::string policy = "lru";
  Watermarks watermarks;
  uint64_t entry_size_bytes = 0;  // 0: learned
  unsigned pinned_max_percent = 50;
  uint64_t max_entries = 0;  // 0: no limit but the pool's inodes
  uint64_t max_directories = 0;
  unsigned user_share_percent = 0;             // 0: no user's entries leave before others
  uint64_t max_xattr_bytes = kMostXattrBytes;  // of names and values of one inode
  uint64_t max_xattrs = kMostXattrs;           // of one inode
  bool leaf_first = false;  // what is of use only with another entry leaves before that one
  mode_t mode = 01777;      // of the pool's root directory
  uid_t uid = 0;
  gid_t gid = 0;

  // Options of the disk tier. A pool without a path has none, and the other options below keep these
  // defaults.
  std::string spill_path;         // of a block device or a file; absolute
  uint64_t spill_size_bytes = 0;  // 0: all of the device, or of the existing file
  uint64_t spill_unit_bytes = kDefaultSpillUnitBytes;
  std::string catalog_path;              // a directory; empty: default_catalog_path()
  std::optional<Durability> durability;  // see durability_of()
  Admission admission = Admission::kAll;
  bool prefetch = true;      // read an entry's learned successors ahead
  bool spill_force = false;  // take a device that carries content of others
};

inline constexpr std::string_view kSpillFile = "spill";  // one order to it sets the place of the disk tier

// A new setting is a member of PoolOptions, a row of this table, its file in fs/control/pool_files.cc and its
// effect in fs/control/controlled_pool.cc.
struct PoolSetting {
  std::string_view key;
  Result<void> (*set)(PoolOptions& options, std::string_view text, uint64_t memory_bytes);
  std::string (*get)(const PoolOptions& options);  // empty for a value that is not set
  // The control file that changes it while the pool serves. A setting that has none is an attribute of the
  // pool's root directory.
  std::string_view file = {};
  std::string_view help = {};  // of the option of `kvcachefs create`, which a setting without help lacks
  // kDisk: only a pool with a disk tier has it. kDiskOrder: so it is, and its control file does not show it.
  enum class Kind : uint8_t { kPool, kDisk, kDiskOrder } kind = Kind::kPool;

  bool is_live() const { return !file.empty(); }
  bool needs_disk() const { return kind != Kind::kPool; }
  bool is_shown() const { return is_live() && kind != Kind::kDiskOrder; }  // its control file has the value
};

std::span<const PoolSetting> pool_settings();
const PoolSetting* find_pool_setting(std::string_view key);  // nullptr: there is no such setting

// A smaller pool holds no useful entry beside its directories.
inline constexpr uint64_t kMinimumPoolBytes = uint64_t{1} << 20;
// The size of a pool for which none is given, in percent of the memory.
inline constexpr uint64_t kDefaultPoolPercent = 25;

Durability durability_of(const PoolOptions& options);  // default: writeback with a disk tier, else none
// The default is beside the spill file; for a device it is under /var/lib/kvcachefs.
std::string default_catalog_path(const PoolOptions& options, bool spill_is_device);

Result<void> check_pool_name(std::string_view name);
Result<void> check_policy_name(std::string_view policy);

// `memory_bytes` is the amount to which a size in percent refers.
Result<void> set_pool_option(PoolOptions& options, std::string_view key, std::string_view value,
                             uint64_t memory_bytes);
// check_spill_options() checks rules over several keys: a pool without a disk tier sets no option of one, a
// catalog is not the spill path, and the disk holds at least two units.
Result<void> check_spill_options(const PoolOptions& options);
Result<void> check_size_max(const PoolOptions& options);  // not less than the size
bool is_pool_switch(std::string_view key);                // `on` or `off`
// The text that set_pool_option() turns into the same value; empty for a value that is not set and for an
// unknown key.
std::string pool_option_text(const PoolOptions& options, std::string_view key);
// Pairs `key=value,key=value`: on a mistake none of them is applied. Because a comma separates pairs, no
// value can have one.
Result<void> set_pool_options(PoolOptions& options, std::string_view pairs, uint64_t memory_bytes);

// `NAME`, or `NAME:key=value,key=value`. A size that is not given is kDefaultPoolPercent of the memory.
Result<PoolOptions> parse_pool_spec(std::string_view spec, uint64_t memory_bytes);
PoolOptions default_pool(std::string name, uint64_t memory_bytes);

std::string_view durability_name(Durability durability);
Result<unsigned> parse_percent(std::string_view text, unsigned minimum);  // `50%` or `50`, to 100

}  // namespace kvcachefs
