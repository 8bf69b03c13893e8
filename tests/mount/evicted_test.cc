// Calls that an eviction overtakes.
#include <fcntl.h>
#include <unistd.h>

#include <future>
#include <string>

#include "tests/support/faults.h"
#include "tests/support/files.h"
#include "tests/support/pool_pressure.h"

namespace kvcachefs::test {
namespace {

class EvictedTest : public FaultedTierTest {};

// Its thread got no signal.
TEST_F(EvictedTest, AnEntryThatLeavesAsItIsTruncatedIsAMiss) {
  start_pool("p:size=32M");
  ASSERT_EQ(store(path("e"), pattern(1, kMiB)), 0);
  arm("pause attributes changed");
  auto truncated =
      std::async(std::launch::async, [&] { return error_of(::truncate(path("e").c_str(), 100)); });
  ASSERT_TRUE(eventually([&] { return exists(fault_file() + ".paused"); }));
  order(mount(), "100%");
  EXPECT_TRUE(becomes("discards", 1));
  ASSERT_EQ(::unlink((fault_file() + ".paused").c_str()), 0);
  EXPECT_EQ(error_name(truncated.get()), "ENOENT");
}

}  // namespace
}  // namespace kvcachefs::test
