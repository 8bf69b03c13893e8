// A process that takes over and hangs before it serves is replaced, at whatever place and in whatever way it
// hangs. A process that is slow, or waits for a disk that does not answer, is not replaced.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <map>
#include <string>

#include "daemon/child.h"
#include "tests/support/faults.h"
#include "tests/support/files.h"
#include "tests/support/freezable_disk.h"
#include "tests/support/program.h"

namespace kvcachefs::test {
namespace {

constexpr int kSlowEntries = 30;  // 25 ms for each, each time that a thread passes
constexpr const char* kHung = "the process that takes over has not got on for 1 s";
constexpr const char* kWaits = "the process that takes over has waited in the kernel";

class TakeoverHangTest : public FaultedTierTest {
 protected:
  TakeoverHangTest() { ::setenv("KVCACHEFS_DAEMON_ARGS", "-o hang_after=1", 1); }
  ~TakeoverHangTest() override { ::unsetenv("KVCACHEFS_DAEMON_ARGS"); }

  // The process that takes over hangs at this place and is replaced; the next one has all entries.
  void expect_replaced_at(const std::string& fault, const std::string& place) {
    SCOPED_TRACE(fault + place);
    const int64_t before = generation();
    die_at(fault + place, [&] {
      kill_server();
      expect_whole();
    });
    EXPECT_EQ(generation(), before + 2);
    EXPECT_EQ(lines_about(kHung), ++hung_);
    EXPECT_EQ(lines_about("the process that was to take over hung: another takes over"), hung_);
  }
  // The generation of the serving process, once its statistics are there.
  int64_t generation() {
    std::map<std::string, std::string> stats;
    EXPECT_TRUE(eventually([&] {
      stats = parse_stats(read_file(mount().root() + "/.kvcachefs/stats"));
      return stats["pid"] == std::to_string(mount().serving_pid());
    }));
    return std::stoll(stats["generation"]);
  }
  size_t lines_about(std::string_view what) {
    const std::string log = mount().log();
    size_t count = 0;
    for (size_t at = log.find(what); at != std::string::npos; at = log.find(what, at + 1)) ++count;
    return count;
  }
  std::string paused() const { return fault_file() + ".paused"; }
  void go_on() { ASSERT_EQ(::unlink(paused().c_str()), 0); }

 private:
  size_t hung_ = 0;
};

TEST_F(TakeoverHangTest, WhereverItHangsItIsReplaced) {
  start();
  add("cold", 8);
  make_all_cold();
  add("e", 4);
  File open(path("e-0"), O_RDWR);
  File gone(path("gone"), O_RDWR | O_CREAT);
  ASSERT_EQ(::write(gone.fd(), "gone", 4), 4);
  ASSERT_EQ(::unlink(path("gone").c_str()), 0);
  for (const char* place : {"taken over", "name read", "record read", "resumed"})
    expect_replaced_at("hang ", place);
  expect_replaced_at("spin ", "adopted the tree");
  EXPECT_EQ(read_at(gone.fd(), 0, 10), "gone");
  EXPECT_EQ(difference(0, read_at(open.fd(), 0, kMiB)), "");
  open.close();
  gone.close();
  check_all();
}

// LMDB may loop like this in damaged pages.
TEST_F(TakeoverHangTest, WhereTwoHangInACatalogTheThirdGoesWithout) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP()
      << "ThreadSanitizer has a signal wait for the next system call, and a thread that spins makes none";
#endif
  start();
  fill_pool("cold", 4);
  make_all_cold();
  ASSERT_EQ(error_name(store(path("clean"), pattern(5, kMiB))), "ok");
  // The commit reads records too, and is not to meet the fault.
  const File root(path("."), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(error_name(error_of(::fsync(root.fd()))), "ok");
  arm("spin record read\nspin record read");
  kill_server();
  EXPECT_EQ(difference(5, read_file(path("clean"))), "");
  EXPECT_EQ(stat("disk_away"), 1);
  EXPECT_EQ(lines_about(kHung), 2u);
  EXPECT_GE(lines_about(".catalog: to read it"), 1u);
  stop();
}

TEST_F(TakeoverHangTest, SoIsOneThatIsStopped) {
  start();
  add("e", 4);
  arm("pause adopted the tree");
  kill_server();
  ASSERT_TRUE(eventually([&] { return exists(paused()); }));
  ASSERT_EQ(stop_process(mount().serving_pid()), 0);
  expect_whole();
  go_on();
  EXPECT_EQ(lines_about(kHung), 1u);
  check_all();
}

// The slow takeover lasts longer than the time after which a hanging one is replaced.
TEST_F(TakeoverHangTest, ASlowOneIsNot) {
  start({.size = "64M"});
  fill_pool("cold", kSlowEntries, 4096);
  make_all_cold();
  for (const char* place : {"name read", "record read"}) {
    SCOPED_TRACE(place);
    const int64_t before = generation();
    arm(std::string("slow ") + place);
    const auto begun = std::chrono::steady_clock::now();
    replace_server();
    EXPECT_EQ(generation(), before + 1);
    EXPECT_GT(std::chrono::steady_clock::now() - begun, std::chrono::milliseconds(1500));
    ASSERT_EQ(::unlink(fault_file().c_str()), 0);
  }
  EXPECT_EQ(lines_about("has not got on"), 0u);
  for (int i = 0; i < kSlowEntries; ++i)
    EXPECT_EQ(difference(i, read_file(path("cold-" + std::to_string(i)))), "");
  stop();
}

TEST_F(TakeoverHangTest, NeitherIsOneThatWaitsForADisk) {
  KVCACHEFS_SKIP_IF(LoopDevice::available() ? std::string() : std::string("loop devices"));
  // Longer than it takes to freeze the disk while the successor is held up, on a busy machine too.
  ::setenv("KVCACHEFS_DAEMON_ARGS", "-o hang_after=10", 1);
  FreezableDisk slow(disk(), 128 * kMiB);
  start({.more = "catalog=" + slow.path() + "/catalog"});
  add("cold", 4);
  make_all_cold();
  // The successor has to write what this process has not written.
  arm("disk flushed\npause claimed what the disk has");
  // It may be answered only after the takeover: an earlier commit is flushed at any moment.
  auto made = std::async(std::launch::async, [&] { make_directory(path("directory")); });
  EXPECT_TRUE(eventually([&] { return exists(paused()); }));
  auto stored = std::async(std::launch::async, [&] { add("e", 4); });
  slow.freeze();
  go_on();
  EXPECT_TRUE(eventually([&] { return lines_about(kWaits) > 0; }, std::chrono::seconds(60))) << mount().log();
  // The successor may wait as long again.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(12);
  const pid_t waiting = mount().serving_pid();
  while (std::chrono::steady_clock::now() < end && mount().serving_pid() == waiting) continue;
  EXPECT_EQ(mount().serving_pid(), waiting);
  slow.thaw();
  made.get();
  stored.get();
  expect_whole();
  EXPECT_EQ(generation(), 1);
  EXPECT_EQ(lines_about(kWaits), 1u);
  EXPECT_EQ(lines_about("has not got on"), 0u) << mount().log();
  stop();
}

// The process that serves could not end before the disk answers, and all pools would wait for that.
TEST_F(TakeoverHangTest, NoUpgradeWhileADiskHangs) {
  KVCACHEFS_SKIP_IF(LoopDevice::available() ? std::string() : std::string("loop devices"));
  ::setenv("KVCACHEFS_DAEMON_ARGS", "-o hang_after=60", 1);
  FreezableDisk slow(disk(), 128 * kMiB);
  start({.more = "catalog=" + slow.path() + "/catalog"});
  add("e", 4);
  const pid_t serving = mount().serving_pid();
  slow.freeze();
  auto made = std::async(std::launch::async, [&] { make_directory(path("directory")); });
  EXPECT_TRUE(eventually([&] { return waits_in_kernel(serving); }));
  const Outcome refused = run({"kvcachefs", "--mount", mount().root(), "upgrade"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(
      refused.error.find("the thread (committer) of the serving process has waited in the kernel for 5 s"),
      std::string::npos)
      << refused.error;
  EXPECT_EQ(mount().serving_pid(), serving);
  EXPECT_EQ(difference(0, read_file(path("e-0"))), "");
  slow.thaw();
  made.get();
  const Outcome upgraded = run({"kvcachefs", "--mount", mount().root(), "upgrade"});
  EXPECT_EQ(upgraded.exit_code, 0) << upgraded.error;
  EXPECT_NE(read_file(mount().root() + "/.kvcachefs/upgrades").find("refused 1\n"), std::string::npos);
  EXPECT_NE(mount().serving_pid(), serving);
  expect_whole();
  stop();
}

}  // namespace
}  // namespace kvcachefs::test
