// The fixture of the mount tests of the disk tier: one pool `p` that spills to a real file, started and
// started again on the same file. One thread, except where a function says otherwise; failures are recorded
// with GoogleTest, a daemon that does not serve throws MountError.
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
  std::string more = {};  // further keys, `key=value,…`
};

// What MountError says of a daemon that has to refuse to serve; empty if it serves.
std::string refusal(const std::vector<std::string>& pools);

class DiskTierTest : public ::testing::Test {
 protected:
  // Over io_uring, where a disk tier is refused, the refusal is asserted and the test skipped.
  void SetUp() override;
  void TearDown() override;

  void start(const TierOptions& options = {});
  void start_pool(const std::string& pool);  // a whole --pool value, of a pool p
  void stop();
  void kill();  // and takes the stale mount away

  Mount& mount() { return *mount_; }
  std::string path(std::string_view name) { return mount_->path() + "/" + std::string(name); }
  std::string spill_file() const { return disk_ / "spill"; }
  const DiskDirectory& disk() const { return disk_; }
  std::vector<std::string> fill_pool(const std::string& name, int count, size_t bytes = kMiB);

  int64_t stat(std::string_view name) { return mount_->stat_value(name); }
  // Waits until a value of .pool/stats is that.
  ::testing::AssertionResult becomes(std::string_view name, int64_t value);
  ::testing::AssertionResult rises_to(std::string_view name, int64_t least);
  void set(std::string_view file, std::string_view value);
  // All that is closed is on the disk, and its memory given back.
  void make_all_cold();
  std::string tier_of(const std::string& name);
  // Turns bits over in the spill file where these bytes lie; false if they are not there.
  bool damage(std::string_view content);

 private:
  DiskDirectory disk_;
  std::unique_ptr<Mount> mount_;
};

}  // namespace kvcachefs::test
