// Promotions that begin for one purpose and are joined for another: a prefetch may do without memory, and a
// truncation may not.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "tests/support/disk_tier.h"
#include "tests/support/files.h"
#include "tests/support/pool_pressure.h"

namespace kvcachefs::test {
namespace {

class JoinedPromotionTest : public DiskTierTest {};

// The pool is full of entries that may leave; one that is prefetched is truncated meanwhile.
TEST_F(JoinedPromotionTest, ATruncationOfWhatIsPrefetchedFindsRoom) {
  start({.size = "32M", .spill_size = "512M", .more = "durability=writeback"});
  for (int round = 0; round < 40; ++round) {
    const std::string name = "x" + std::to_string(round) + "\n";
    const std::string cold = path("x" + std::to_string(round));
    ASSERT_EQ(store(cold, pattern(round, 8 * kMiB)), 0);
    ASSERT_TRUE(eventually([&] {
      order(mount(), "100%");
      return tier_of(cold) == "cold";
    }));
    for (int i = 0; i < 6; ++i)
      ASSERT_EQ(store(path("f" + std::to_string(round) + "-" + std::to_string(i)), pattern(i, 5 * kMiB)), 0);
    const File prefetch(mount().control("prefetch"), O_WRONLY);
    ASSERT_EQ(::write(prefetch.fd(), name.data(), name.size()), static_cast<ssize_t>(name.size()));
    // The truncation meets the prefetch queued, waiting for room, or moving.
    std::this_thread::sleep_for(std::chrono::microseconds(round % 3 * 1000));
    EXPECT_EQ(error_name(error_of(::truncate(cold.c_str(), 100))), "ok") << "round " << round;
    ::unlink(cold.c_str());
  }
}

}  // namespace
}  // namespace kvcachefs::test
