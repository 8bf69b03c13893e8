// Promotions that begin for one purpose and are joined for another: a prefetch may do without memory, and a
// truncation may not. Also the choice of the ordered entries that get memory.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/faults.h"
#include "tests/support/files.h"
#include "tests/support/pool_pressure.h"

namespace kvcachefs::test {
namespace {

class JoinedPromotionTest : public FaultedTierTest {
 protected:
  // The entry is cold, and the pool is full of others that may leave.
  void make_cold_in_full_pool(const std::string& name) {
    ASSERT_EQ(store(path(name), pattern(1, 8 * kMiB)), 0);
    ASSERT_TRUE(eventually([&] {
      order(mount(), "100%");
      return tier_of(path(name)) == "cold";
    }));
    for (int i = 0; i < 6; ++i)
      ASSERT_EQ(store(path("f-" + name + std::to_string(i)), pattern(i, 5 * kMiB)), 0);
  }
  void prefetch(const std::string& name) {
    const File order(mount().control("prefetch"), O_WRONLY);
    ASSERT_EQ(::write(order.fd(), (name + "\n").data(), name.size() + 1),
              static_cast<ssize_t>(name.size() + 1));
  }
  // Returns a value of .pool/prefetch.
  int64_t progress(const std::string& what) {
    return std::stoll(parse_stats(read_file(mount().control("prefetch"))).at(what));
  }
};

// The order names three times as many entries as fit in memory. The entries of the highest priorities, half
// of those that fit, are in memory already.
TEST_F(JoinedPromotionTest, AnOrderBringsTheHighestPrioritiesThatFit) {
  start({.more = "prefetch=off"});
  const int count = 96, found = 16;
  const auto names = fill_pool("e", count);
  make_all_cold();
  for (int i = 0; i < found; ++i) ASSERT_EQ(difference(i, read_file(names[i])), "");
  ASSERT_TRUE(settled(mount()));
  const int64_t evictions = stat("evictions");
  std::string orders;  // the lowest first
  for (int i = count - 1; i >= 0; --i)
    orders += "e-" + std::to_string(i) + " " + std::to_string(count - i) + "\n";
  set("prefetch", orders);
  EXPECT_TRUE(eventually([&] { return progress("queued") == 0; }));
  ASSERT_TRUE(settled(mount()));
  const std::vector<int> here = in_memory(names);
  EXPECT_GE(here.size(), 24u);
  std::vector<int> highest(here.size());
  std::iota(highest.begin(), highest.end(), 0);
  EXPECT_EQ(here, highest);
  EXPECT_EQ(progress("done"), static_cast<int64_t>(here.size()));
  EXPECT_EQ(progress("dropped"), static_cast<int64_t>(count - here.size()));
  EXPECT_EQ(stat("evictions"), evictions) << "what was found stays";
}

// The truncation meets the prefetch queued, waiting for room, or moving.
TEST_F(JoinedPromotionTest, ATruncationOfWhatIsPrefetchedFindsRoom) {
  start({.size = "32M", .spill_size = "512M", .more = "durability=writeback"});
  for (int round = 0; round < 40; ++round) {
    const std::string name = "x" + std::to_string(round);
    make_cold_in_full_pool(name);
    prefetch(name);
    std::this_thread::sleep_for(std::chrono::microseconds(round % 3 * 1000));
    EXPECT_EQ(error_name(error_of(::truncate(path(name).c_str(), 100))), "ok") << "round " << round;
    ::unlink(path(name).c_str());
  }
}

// The prefetch has found no memory, and its outcome is not the truncation's.
TEST_F(JoinedPromotionTest, ATruncationThatJoinsAPrefetchWithoutMemoryFindsRoom) {
  start({.size = "32M", .spill_size = "512M", .more = "durability=writeback"});
  make_cold_in_full_pool("x");
  const int64_t waits = stat("promote_waits");
  std::vector<File> readers;
  for (int i = 0; i < 6; ++i) readers.emplace_back(path("f-x" + std::to_string(i)), O_RDONLY);
  arm("pause copied from the disk");
  prefetch("x");
  ASSERT_TRUE(eventually([&] { return exists(fault_file() + ".paused"); }));
  readers.clear();
  auto truncated =
      std::async(std::launch::async, [&] { return error_of(::truncate(path("x").c_str(), 100)); });
  EXPECT_TRUE(eventually([&] { return stat("promote_waits") == waits + 1; }));
  ASSERT_EQ(::unlink((fault_file() + ".paused").c_str()), 0);
  EXPECT_EQ(error_name(truncated.get()), "ok");
}

}  // namespace
}  // namespace kvcachefs::test
