// A mounted kvcachefs as its users see it: the control files and the pools' directories. The kvcachefs tool
// and the mount helper speak to the daemon through this class alone, so the modes of the control files are
// the access control. A value is written to the administrator's control files (`.kvcachefs/pools/NAME`) if
// those can be opened, else to the pool owner's (`.pool`), which take what the administrator's limits allow.
// One thread uses one tree. Fails with the errno of the file-system call and a sentence that names the file
// or the pool.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mountinfo.h"
#include "base/result.h"

namespace kvcachefs {

// A StatsReading holds `name value` lines, as a stats file has them.
class StatsReading {
 public:
  static StatsReading parse(std::string_view text);

  // The results are empty and 0 for a name that is missing, because an older daemon reports fewer.
  std::string text(std::string_view name) const;
  uint64_t number(std::string_view name) const;

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

// The settings that are given for a pool, each a pair of a key and a value: `size`, `16G`.
using GivenSettings = std::vector<std::pair<std::string, std::string>>;

class MountTree {
 public:
  explicit MountTree(std::filesystem::path root) : root_(std::move(root)) {}

  // The check fails if the root is not a kvcachefs, or if its daemon has died: is_daemon_gone() of the error
  // tells which.
  Result<void> check() const;

  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path pool_path(std::string_view pool) const { return root_ / pool; }
  bool has_pool(std::string_view pool) const;
  Result<std::vector<std::string>> pools() const;  // sorted

  // A text is without the newline at its end.
  Result<std::string> read_daemon_file(std::string_view file) const;
  Result<void> write_daemon_file(std::string_view file, std::string_view value) const;
  Result<std::string> read_control(std::string_view pool, std::string_view file) const;
  Result<void> write_control(std::string_view pool, std::string_view file, std::string_view value) const;
  // Writes a query to a control file that answers queries, and reads the answer.
  Result<std::string> ask(std::string_view pool, std::string_view file, std::string_view query) const;
  // Writes whole records (fs/control/index_records.h), in one write.
  Result<void> write_records(std::string_view pool, std::string_view records) const;
  Result<StatsReading> daemon_stats(std::string_view file = "stats") const;
  Result<StatsReading> pool_stats(std::string_view pool, std::string_view file = "stats") const;
  // The value of a setting that a control file shows, in the form that the key takes; `none` and the like
  // included.
  Result<std::string> read_setting(std::string_view pool, std::string_view key) const;
  // The settings are written in this order: the size and the root directory's own attributes, all others as
  // they are listed, the disk tier's as one order, and last what depends on the tier.
  Result<void> write_settings(std::string_view pool, const GivenSettings& settings) const;

  // The error is EEXIST if the pool exists. A pool whose settings are refused is removed again.
  Result<void> create_pool(std::string_view pool, const GivenSettings& settings) const;
  // The error is ENOTEMPTY if the pool has content and `with_content` is false.
  Result<void> delete_pool(std::string_view pool, bool with_content) const;

 private:
  Result<void> order_spill(std::string_view pool, const GivenSettings& settings) const;
  Result<void> make_setting(std::string_view pool, std::string_view key, std::string_view value) const;

  std::filesystem::path root_;
};

}  // namespace kvcachefs
