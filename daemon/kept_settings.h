// KeptSettings keeps the changes that were made to the pools while they served for the next start, in a file
// of the state directory, one for each mount point: values that were set, pools that were created, and
// configured pools that were deleted. The changes override the configuration. Any thread, but for read() and
// over(), which a start calls. Failure: a file that cannot be read, is wrong or was cut short, or that
// another user may write to, is EINVAL or the errno and one line that names it, and stays as it is.
// may_change() refuses an order while the file cannot be written, or another process has written it since; a
// change that took effect without being written down is logged, and stands in the `settings` of its pool. A
// key that is not known is no failure, because an older program is to start with the file of a newer one: it
// stays in the file, and tell() warns of it.
#pragma once

#include <cerrno>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "daemon/config.h"
#include "daemon/pool_list.h"
#include "tier/pool/pools.h"
#include "tier/pool/setting_origins.h"

namespace kvcachefs {

struct KeptPool {
  bool is_created = false;                                 // the configuration does not have it
  bool is_deleted = false;                                 // the configuration has it
  std::map<std::string, std::string, std::less<>> values;  // by the setting's key
  // Values of keys that only a newer version knows, each in TOML, by its key.
  std::map<std::string, std::string, std::less<>> unknown = {};

  bool operator==(const KeptPool&) const = default;
  bool is_nothing() const { return !is_created && !is_deleted && values.empty() && unknown.empty(); }
};
// The empty name, which no pool has, is for what is unknown beside the pools.
using KeptPools = std::map<std::string, KeptPool, std::less<>>;

// In daemon/config_file.cc. The text is TOML; the reader answers EINVAL and `FILE:LINE: message`.
Result<KeptPools> parse_kept_pools(const std::string& file, std::string_view text, uint64_t memory_bytes);
std::string format_kept_pools(const KeptPools& pools);

class KeptSettings final : public SettingOrigins {
 public:
  // Empty: nothing is kept.
  static std::string file_of(const Config& config);
  // Nothing if there is no file.
  static Result<KeptPools> read(const std::string& file, uint64_t memory_bytes);
  // The configuration's pools with what was kept of them. `file` is for messages.
  static Result<std::vector<PoolOptions>> over(const Config& config, const KeptPools& kept,
                                               uint64_t memory_bytes);
  // Tells the log.
  static void tell(const Config& config, const KeptPools& kept);
  // The pools that a start will serve, after check_pools has found them good.
  static Result<std::vector<PoolOptions>> served(const Config& config, const PoolOrigins& origins,
                                                 uint64_t memory_bytes);

  // If the file could not be read, its content is unknown, and orders are refused.
  KeptSettings(std::string file, const Config& config, Result<KeptPools> kept, uint64_t memory_bytes);

  // The pools that a first start creates.
  Result<std::vector<PoolOptions>> served_pools() const EXCLUDES(mutex_);
  // Notes the present settings of the pools. changed() finds the changes of clients by comparing with them.
  void began(const Pools& pools) EXCLUDES(mutex_);
  // The same for adopted pools. A difference between them and the predecessor's notes is an order that took
  // effect and was not written down; the next may_change() or changed() writes it.
  void took_over(const Pools& pools, std::optional<PoolNotes> notes) EXCLUDES(mutex_);
  // For the list of pools.
  PoolNotes notes() const EXCLUDES(mutex_);
  bool is_written() const EXCLUDES(mutex_);
  // An order asks before it takes effect. The file is written for this, so a failure, which names it, is
  // found before the order is carried out.
  Result<void> may_change() EXCLUDES(mutex_, write_mutex_);
  // Returns when what has changed is written down. Failure: it could not be, and was logged.
  Result<void> changed(const Pools& pools) EXCLUDES(mutex_, write_mutex_);

  Answer origin(const PoolOptions& present, std::string_view key) const override EXCLUDES(mutex_);
  PoolOptions configured(const PoolOptions& present) const override EXCLUDES(mutex_);
  Result<void> forget(const PoolOptions& present, std::string_view key) override
      EXCLUDES(mutex_, write_mutex_);
  Result<PoolOptions> configure(const PoolOptions& configured) override EXCLUDES(mutex_);
  void not_made(std::string_view name) override EXCLUDES(mutex_);

 private:
  static Result<void> put_values(PoolOptions& options, const KeptPool& kept, uint64_t memory_bytes);
  bool is_in_configuration(std::string_view name) const;
  void note_all(const Pools& pools) REQUIRES(mutex_);
  void note_changes(const PoolOptions& before, const PoolOptions& now) REQUIRES(mutex_);
  void take_back(const PoolOptions& present, std::string_view key) REQUIRES(mutex_);
  PoolOptions configured_now(const PoolOptions& present) const REQUIRES(mutex_);
  // One version of the file's content, with the options of the pools that it was computed from.
  struct Version {
    uint64_t number = 0;
    KeptPools kept;
    OptionsByPool present;
  };
  Version next_version() REQUIRES(mutex_) { return {++versions_, kept_, present_}; }
  // Whether the file contains this value.
  bool is_value_written(std::string_view pool, std::string_view key, const std::string& value) const
      REQUIRES(mutex_);
  Result<void> write(const Version& version) EXCLUDES(mutex_, write_mutex_);
  Result<void> write_change(const Version& version) EXCLUDES(mutex_, write_mutex_);
  Result<void> replace_file(const KeptPools& pools) REQUIRES(write_mutex_) EXCLUDES(mutex_);

  const std::string file_;
  const Config config_;
  const uint64_t memory_bytes_;
  const std::optional<Error> unreadable_;      // why the file could not be read
  Mutex write_mutex_ ACQUIRED_BEFORE(mutex_);  // held over the write of the file
  Result<UniqueFd> directory_ GUARDED_BY(write_mutex_) = fail(ENOENT);
  KeptPools in_file_ GUARDED_BY(write_mutex_);  // as this daemon has read or written it
  mutable Mutex mutex_;
  uint64_t versions_ GUARDED_BY(mutex_) = 0;
  OptionsByPool configured_ GUARDED_BY(mutex_);
  KeptPools kept_ GUARDED_BY(mutex_);
  OptionsByPool present_ GUARDED_BY(mutex_);
  Version written_ GUARDED_BY(mutex_);  // the newest version that the file contains
};

}  // namespace kvcachefs
