// The fixture of the mount tests of the disk tier: one pool `p` that spills to a real file. A test can stop
// the daemon and start it again on the same file. One thread; failures are recorded with GoogleTest, and
// MountError is thrown if a daemon does not serve.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/disks.h"
#include "tests/support/mount.h"
#include "tests/support/pool_pressure.h"

namespace kvcachefs::test {

struct TierOptions {
  std::string size = "32M";
  std::string spill_size = "256M";
  std::string more = {};  // more keys, `key=value,…`
  bool waits_for_names = true;
};

// The text of the MountError of a daemon that has to refuse to serve; empty if the daemon serves.
std::string refusal(const std::vector<std::string>& pools);

class DiskTierTest : public ::testing::Test {
 protected:
  // SetUp() skips each test over io_uring, where the daemon refuses a disk tier; it first asserts that
  // refusal.
  void SetUp() override;
  void TearDown() override;

  void start(const TierOptions& options = {});
  void start_pool(const std::string& pool, bool waits_for_names = true);  // a whole --pool value of a pool p
  void stop();
  void kill();  // kills the daemon and removes the stale mount
  // stop_and_check() expects that `kvcachefs check` finds nothing wrong with what the stopped daemon left.
  void stop_and_check();

  Mount& mount() { return *mount_; }
  std::string path(std::string_view name) { return mount_->path() + "/" + std::string(name); }
  std::string spill_file() const { return disk_ / "spill"; }
  const DiskDirectory& disk() const { return disk_; }
  std::vector<std::string> fill_pool(const std::string& name, int count, size_t bytes = kMiB);

  int64_t stat(std::string_view name) { return mount_->stat_value(name); }
  // becomes() waits until the value `name` of .pool/stats equals `value`; rises_to() until it is at least
  // `least`.
  ::testing::AssertionResult becomes(std::string_view name, int64_t value);
  ::testing::AssertionResult rises_to(std::string_view name, int64_t least);
  void set(std::string_view file, std::string_view value);
  // fsync(2) of a directory of the pool, by default its root; returns 0 or the errno.
  int sync_directory(const std::string& name = "");
  // make_all_cold() orders evictions until every entry is only on the disk; each entry has to be closed.
  void make_all_cold();
  std::string tier_of(const std::string& name);
  // damage() flips one bit in the spill file within the first place that holds `content`; false if the file
  // does not hold it.
  bool damage(std::string_view content);

 private:
  DiskDirectory disk_;
  std::unique_ptr<Mount> mount_;
};

}  // namespace kvcachefs::test
