// The fixture of the unit tests of all pools together: a place for their tmpfs, and no kernel to tell. It
// needs root. One thread; failures are recorded with GoogleTest.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/disks.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/no_kernel.h"
#include "tier/pool/pools.h"

namespace kvcachefs::test {

class PoolsTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kMiB = uint64_t{1} << 20;
  static constexpr uint64_t kMemoryBytes = 64 * kMiB;

  void SetUp() override {
    KVCACHEFS_SKIP_IF(::geteuid() == 0 ? std::string() : std::string("root"));
    std::filesystem::create_directory(pools_directory_);
    auto survivors = Survivors::create();
    ASSERT_TRUE(survivors) << survivors.error().message;
    survivors_ = std::move(*survivors);
    (void)survivors_->begin_generation();
    pools_ = std::make_unique<Pools>(surroundings());
  }
  // A disk tier is closed, as workers do it, before its pool goes.
  void TearDown() override {
    if (!pools_) return;
    for (const auto& pool : pools_->all())
      if (pool->disk().tier() != nullptr) pool->disk().tier()->close();
  }
  Pools::Surroundings surroundings() {
    return {.directory = pools_directory_,
            .memory_bytes = kMemoryBytes,
            .pool = {.topology = &topology_,
                     .backing_store = &backing_,
                     .listener = &listener_,
                     .evictor = &evictor_,
                     .survivors = survivors_.get(),
                     .options_changed = [this] {
                       ++options_written_;
                       return Result<void>();
                     }}};
  }
  static PoolOptions options(const std::string& name, uint64_t size_bytes = 4 * kMiB) {
    PoolOptions options;
    options.name = name;
    options.size_bytes = size_bytes;
    options.size_max_bytes = size_bytes;
    return options;
  }
  PoolOptions spilling(const std::string& name) const {
    PoolOptions with_disk = options(name);
    with_disk.spill_path = disk_ / "spill";
    with_disk.spill_size_bytes = 4 * kMiB;
    return with_disk;
  }
  std::shared_ptr<Pool> make(const PoolOptions& options) {
    auto made = pools_->create(options);
    EXPECT_TRUE(made) << (made ? "" : made.error().message);
    return made ? *made : nullptr;
  }
  // The place where the tmpfs of a pool is mounted.
  std::vector<std::string> mounted() const { return list(pools_directory_); }

  DiskDirectory disk_;
  const std::string pools_directory_ = disk_ / "pools";
  NumaTopology topology_{{{.id = 0}}, [](int) { return uint64_t{1} << 40; }};
  NoBacking backing_;
  NoListener listener_;
  Wakeup evictor_;
  int options_written_ = 0;
  std::unique_ptr<Survivors> survivors_;
  std::unique_ptr<Pools> pools_;
};

}  // namespace kvcachefs::test
