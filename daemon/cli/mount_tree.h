// A mounted kvcachefs as its users see it: the control files and the pools' directories. The kvcachefs tool
// and the mount helper speak to the daemon through this alone, so who may write to a file is the access
// control. What is the administrator's is written in his own files where those may be opened, else in the
// pool owner's, which take what he allows. One thread a tree. Fails with the errno of the file-system call
// and a sentence that names the file or the pool.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "daemon/mount_point.h"

namespace kvcachefs {

// `name value` lines, as a stats file has them.
class StatsReading {
 public:
  static StatsReading parse(std::string_view text);

  // Empty, and 0, for what is missing: an older daemon has fewer.
  std::string text(std::string_view name) const;
  uint64_t number(std::string_view name) const;

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

// Settings of a pool in the order they are to be made: `size`, `16G`.
using PoolSettings = std::vector<std::pair<std::string, std::string>>;

class MountTree {
 public:
  explicit MountTree(std::filesystem::path root) : root_(std::move(root)) {}

  // is_daemon_gone() tells a mount whose daemon has died from a directory that is no kvcachefs.
  Result<void> check() const;

  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path pool_path(std::string_view pool) const { return root_ / pool; }
  bool has_pool(std::string_view pool) const;
  Result<std::vector<std::string>> pools() const;  // sorted

  Result<std::string> read_daemon_file(std::string_view file) const;
  Result<std::string> read_control(std::string_view pool, std::string_view file) const;
  Result<void> write_control(std::string_view pool, std::string_view file, std::string_view value) const;
  Result<StatsReading> daemon_stats() const;
  Result<StatsReading> pool_stats(std::string_view pool) const;
  // The value of a setting that a control file shows, as the key takes it; `none` and the like included.
  Result<std::string> read_setting(std::string_view pool, std::string_view key) const;
  // In their order, but those that make the disk tier as one, and what depends on the tier last.
  Result<void> write_settings(std::string_view pool, const PoolSettings& settings) const;

  // EEXIST if there is one. A pool whose settings are refused is taken away again.
  Result<void> create_pool(std::string_view pool, const PoolSettings& settings) const;
  // ENOTEMPTY if it has content and that is not to go too.
  Result<void> delete_pool(std::string_view pool, bool with_content) const;

 private:
  Result<void> order_spill(std::string_view pool, const PoolSettings& settings) const;
  Result<void> make_setting(std::string_view pool, std::string_view key, std::string_view value) const;

  std::filesystem::path root_;
};

// What errno means, without its name.
std::string error_text(int code);
// True for the settings that a control file changes while the pool serves, by itself or with others.
bool is_live_setting(std::string_view key);

}  // namespace kvcachefs
