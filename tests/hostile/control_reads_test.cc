// Reads of files for which the daemon looks at every entry. However long that takes, it does not count as a
// hang, and only clients that asked for it wait.
#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "fs/control_reads.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::test {
namespace {

constexpr uid_t kNobody = 65534;
constexpr int kServerThreads = 8;
constexpr int kReaders = 2 * kServerThreads;
constexpr int kLookups = 10'000;
constexpr auto kPatience = std::chrono::seconds(60);

class ControlReadsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    KVCACHEFS_NEED_DAEMON();
    if (mode() == Mode::kIoUring) GTEST_SKIP() << "over io_uring nobody supervises, and nobody else answers";
  }
  void TearDown() override {
    (void)::unlink(fault_file_.c_str());
    (void)::unlink(paused_.c_str());
    for (const pid_t reader : readers_) {
      (void)::kill(reader, SIGKILL);
      (void)::waitpid(reader, nullptr, 0);
    }
    if (mount_ && HasFailure()) report_daemon_log(*mount_);
  }
  void start(std::vector<std::string> pools, const std::string& option) {
    ::setenv("KVCACHEFS_FAULT_FILE", fault_file_.c_str(), 1);
    mount_ = std::make_unique<Mount>(MountOptions{.pools = std::move(pools), .options = {option}});
    ::unsetenv("KVCACHEFS_FAULT_FILE");
    for (int i = 0; i < 10; ++i)
      ASSERT_EQ(error_name(store(mount_->path() + "/entry" + std::to_string(i), "content")), "ok");
  }
  // start_reader() starts a process that reads the file and exits with 0 if it could. The process has no
  // capability, even as root.
  void start_reader(const std::string& file, uid_t uid = kNobody) {
    const pid_t reader = ::fork();
    if (reader == 0) {
      if (::setgid(uid) != 0 || ::setuid(uid) != 0) ::_exit(1);
      const __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
      const std::array<__user_cap_data_struct, 2> none{};
      if (::syscall(SYS_capset, &header, none.data()) != 0) ::_exit(1);
      std::string content;
      ::_exit(load(file, &content));
    }
    readers_.push_back(reader);
  }
  bool can_be_read(const std::string& file) {
    std::string content;
    return in_child([&] { return load(file, &content); }, kPatience) == 0;
  }

  const std::string fault_file_ = "/tmp/kv-fault-" + std::to_string(::getpid());
  const std::string paused_ = fault_file_ + ".paused";
  std::unique_ptr<Mount> mount_;
  std::vector<pid_t> readers_;
};

TEST_F(ControlReadsTest, WhatGetsOnIsNoHang) {
  start({"p:size=64M", "q:size=64M", "r:size=64M"}, "hang_after=1");
  // The survey waits 25 ms for each of the 64 parts of a pool's entries: a result that is not known yet takes
  // 1.6 s.
  ASSERT_EQ(store(fault_file_, "slow survey\n"), 0);
  const pid_t serving = mount_->serving_pid();
  for (const std::string& file : {mount_->control("numa"), mount_->control("stats", "q"),
                                  mount_->root() + "/.kvcachefs/metrics", mount_->control("entries")}) {
    EXPECT_TRUE(can_be_read(file)) << file;
    EXPECT_EQ(mount_->serving_pid(), serving) << file;
  }
  // A serving process that does not get on is replaced.
  ASSERT_EQ(store(fault_file_, "hang survey\n"), 0);
  EXPECT_TRUE(can_be_read(mount_->control("entries")));
  EXPECT_NE(mount_->serving_pid(), serving);
}

// Each open file keeps its text.
TEST_F(ControlReadsTest, AUserKeepsOnlySoManyOpen) {
  start({"p:size=16M"}, "hang_after=30");
  const std::string metrics = mount_->root() + "/.kvcachefs/metrics";
  const int refused_at = in_child(
      [&] {
        if (::seteuid(kNobody) != 0) return 1;
        int opens = 0;
        while (opens < 300 && ::open(metrics.c_str(), O_RDONLY | O_CLOEXEC) >= 0) ++opens;
        if (opens == 300 || errno != EMFILE) return 2;
        if (opens != 256) return 3;
        // Another user has not less for it.
        if (::seteuid(0) != 0 || ::seteuid(kNobody - 1) != 0) return 4;
        return ::open(metrics.c_str(), O_RDONLY | O_CLOEXEC) >= 0 ? 0 : 5;
      },
      kPatience);
  EXPECT_EQ(refused_at, 0);
  EXPECT_TRUE(can_be_read(metrics));
  std::vector<UniqueFd> of_administrator;
  for (int i = 0; i < 300; ++i) {
    of_administrator.emplace_back(::open(metrics.c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_TRUE(of_administrator.back()) << i << ": the host's administrator has no such limit";
  }
}

TEST_F(ControlReadsTest, OthersDoNotWaitForThem) {
  start({"p:size=64M", "q:size=64M"}, "threads=" + std::to_string(kServerThreads));
  std::string orders;
  for (int i = 0; i < kServerThreads; ++i) orders += "pause survey\n";
  ASSERT_EQ(store(fault_file_, orders), 0);
  for (int i = 0; i < kReaders; ++i) start_reader(mount_->control("numa"));
  ASSERT_TRUE(eventually([&] { return exists(paused_); }));
  const auto look_up = [&] {
    struct stat status {};
    for (int i = 0; i < kLookups; ++i)
      if (::stat((mount_->path("q") + "/" + std::to_string(i)).c_str(), &status) == 0) return 1;
    return 0;
  };
  EXPECT_EQ(in_child(look_up, kPatience), 0);
  EXPECT_TRUE(can_be_read(mount_->control("size")));
  ASSERT_EQ(::unlink(fault_file_.c_str()), 0);
  ASSERT_EQ(::unlink(paused_.c_str()), 0);
  EXPECT_TRUE(can_be_read(mount_->control("stats", "q")));
  for (const pid_t reader : readers_) {
    int status = -1;
    EXPECT_EQ(::waitpid(reader, &status, 0), reader);
    EXPECT_EQ(status, 0);
  }
  readers_.clear();
}

TEST_F(ControlReadsTest, OneUsersLongReadIsNotInAnothersWay) {
  start({"p:size=64M", "q:size=64M"}, "hang_after=30");
  ASSERT_EQ(store(fault_file_, "pause survey\n"), 0);
  start_reader(mount_->control("numa"));
  ASSERT_TRUE(eventually([&] { return exists(paused_); }));
  EXPECT_TRUE(can_be_read(mount_->control("entries", "q")));
  EXPECT_TRUE(can_be_read(mount_->control("stats", "q")));
  EXPECT_TRUE(exists(paused_)) << "it is still under way";
}

// Root of a container has the administrator's uid, and more users may read than there are worker threads.
TEST_F(ControlReadsTest, NobodysLongReadsAreInTheAdministratorsWay) {
  start({"p:size=64M", "q:size=64M"}, "hang_after=30");
  std::string orders;
  for (int i = 0; i < ControlReads::kWorkers - 1; ++i) orders += "pause survey\n";
  ASSERT_EQ(store(fault_file_, orders), 0);
  for (int i = 0; i < 2; ++i) start_reader(mount_->control("numa"), 0);
  ASSERT_TRUE(eventually([&] { return exists(paused_); }));
  for (uid_t user = 1; user <= ControlReads::kWorkers; ++user) start_reader(mount_->control("numa"), user);
  // Otherwise the administrator's own read might meet the last `pause survey`.
  const std::string taken = fault_file_ + ".taken";
  ASSERT_TRUE(eventually([&] { return !exists(fault_file_) && !exists(taken) && !exists(fault_file_); }));
  const auto read = [&] { return load(mount_->control("size", "q")) + load(mount_->control("stats", "q")); };
  EXPECT_EQ(in_child(read, std::chrono::seconds(10)), 0);
  EXPECT_TRUE(exists(paused_)) << "they are still under way";
}

TEST_F(ControlReadsTest, NoReadWaitsForALookAtManyEntries) {
  start({"p:size=64M"}, "hang_after=30");
  for (int i = 10; i < 20; ++i) ASSERT_EQ(store(mount_->path() + "/entry" + std::to_string(i), "content"), 0);
  ASSERT_EQ(store(fault_file_, "pause numa look\n"), 0);
  EXPECT_TRUE(can_be_read(mount_->control("numa")));
  ASSERT_TRUE(eventually([&] { return exists(paused_); }));
  for (const char* file : {"numa", "stats", "entries"}) {
    std::string content;
    EXPECT_EQ(load(mount_->control(file), &content), 0);
    EXPECT_NE(content, "") << file;
  }
}

}  // namespace
}  // namespace kvcachefs::test
