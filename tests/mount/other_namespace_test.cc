// A mount of which a container has a copy: when it is unmounted only on the host, it is still served. A new
// start gives it back to the host with its content, and `kvcachefs stop` names the process that holds it.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/program.h"

namespace kvcachefs::test {
namespace {

constexpr const char* kCommand = "kv-container";

enum class Namespace { kOurs, kOwn, kFollowsOurs };

// A process in one of these namespaces that lives until end(), with a file open if one is named.
class Other {
 public:
  explicit Other(Namespace where, const std::string& file = {}) {
    int ready[2], end[2];
    EXPECT_EQ(::pipe2(ready, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(end, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ready[0]);
      ::close(end[1]);
      ::prctl(PR_SET_NAME, kCommand);
      char byte = 0;
      const unsigned long propagation = where == Namespace::kOwn ? MS_PRIVATE : MS_SLAVE;
      if (where != Namespace::kOurs &&
          (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | propagation, nullptr) != 0))
        ::_exit(1);
      if (!file.empty() && ::open(file.c_str(), O_RDONLY) < 0) ::_exit(1);
      if (::write(ready[1], "1", 1) != 1) ::_exit(1);
      (void)!::read(end[0], &byte, 1);
      ::_exit(0);
    }
    ::close(ready[1]);
    ::close(end[0]);
    const File ready_end(ready[0]);
    end_ = File(end[1]);
    char byte = 0;
    EXPECT_EQ(::read(ready_end.fd(), &byte, 1), 1) << "it could not begin";
  }
  ~Other() { end(); }
  Other(const Other&) = delete;
  Other& operator=(const Other&) = delete;

  void end() {
    if (pid_ < 0) return;
    end_.close();
    EXPECT_EQ(::waitpid(pid_, nullptr, 0), pid_);
    pid_ = -1;
  }
  std::string named() const { return "process " + std::to_string(pid_) + " (" + kCommand + ")"; }
  // The place at which the host sees a path of the process's namespace.
  std::string seen_by_it(const std::string& path) const {
    return "/proc/" + std::to_string(pid_) + "/root" + path;
  }

 private:
  pid_t pid_ = -1;
  File end_{-1};
};

class OtherNamespaceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    KVCACHEFS_NEED_DAEMON();
    mount_ = std::make_unique<Mount>();
    ASSERT_EQ(error_name(store(entry(), pattern(1, 100'000))), "ok");
  }
  void TearDown() override {
    if (mount_ && HasFailure()) report_daemon_log(*mount_);
  }
  Mount& mount() { return *mount_; }
  std::string entry() { return mount().path() + "/entry"; }
  void unmount_here() {
    mount().stop_squeezing();
    ASSERT_EQ(error_of(::umount(mount().root().c_str())), 0);
    ASSERT_TRUE(mounts_below(mount().root()).empty());
  }
  Outcome start_again(const std::string& pool = "p") {
    std::vector<std::string> command = {"kvcachefsd", "--daemonize", "-o",
                                        "runtime_dir=" + mount().runtime_dir()};
    if (mode() == Mode::kDaemonIo) command.insert(command.end(), {"-o", "no_passthrough"});
    if (mode() == Mode::kIoUring) command.insert(command.end(), {"-o", "io_uring"});
    command.insert(command.end(), {"--pool", pool + ":size=64M", mount().root()});
    return run(command);
  }
  Outcome stop(const std::vector<std::string>& more = {}) {
    std::vector<std::string> command = {"kvcachefs", "--mount",       mount().root(),
                                        "stop",      "--runtime-dir", mount().runtime_dir()};
    command.insert(command.end(), more.begin(), more.end());
    return run(command);
  }
  static void expect_told(const Outcome& outcome, const std::string& what, const Other& whom) {
    EXPECT_NE(outcome.error.find(what), std::string::npos) << outcome.error;
    EXPECT_NE(outcome.error.find(whom.named()), std::string::npos) << outcome.error;
  }
  void expect_stopped(const Outcome& outcome) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
    EXPECT_EQ(outcome.out, mount().root() + ": stopped\n");
    EXPECT_EQ(mount().wait_for_exit(std::chrono::seconds(60)), 0);
    EXPECT_TRUE(mounts_below(mount().root()).empty());
    EXPECT_TRUE(mounts_below(mount().runtime_dir()).empty());
  }

  std::unique_ptr<Mount> mount_;
};

TEST_F(OtherNamespaceTest, ANewStartGoesOnWithThePools) {
  const Other container(Namespace::kOwn);
  const std::string daemon = std::to_string(mount().pid());
  unmount_here();
  EXPECT_FALSE(exists(entry()));
  EXPECT_EQ(difference(1, read_file(container.seen_by_it(entry()))), "");
  const Outcome again = start_again();
  EXPECT_EQ(again.exit_code, 0) << again.error;
  expect_told(again, "process " + daemon + ", serves on for ", container);
  EXPECT_EQ(difference(1, read_file(entry())), "");
  EXPECT_EQ(error_name(store(mount().path() + "/new", pattern(2, 100'000))), "ok");
  EXPECT_EQ(difference(2, read_file(container.seen_by_it(mount().path() + "/new"))), "");
  EXPECT_EQ(mounts_below(mount().root()).size(), 1u);
  mount().stop();
  EXPECT_FALSE(exists(entry()));
}

TEST_F(OtherNamespaceTest, SoItDoesForAnotherPoolAndAfterATakeover) {
  const Other container(Namespace::kOwn);
  unmount_here();
  if (mode() != Mode::kIoUring) {
    const pid_t serving = mount().serving_pid();
    ASSERT_EQ(::kill(serving, SIGKILL), 0);
    EXPECT_EQ(difference(1, read_file(container.seen_by_it(entry()))), "");
  }
  const Outcome again = start_again("q");
  EXPECT_EQ(again.exit_code, 0) << again.error;
  EXPECT_NE(again.error.find("pool q is not there"), std::string::npos) << again.error;
  EXPECT_EQ(difference(1, read_file(entry())), "");
  mount().stop();
  EXPECT_TRUE(mounts_below(mount().root()).empty());
}

TEST_F(OtherNamespaceTest, WhoStillHasItOpenHereHoldsIt) {
  Other reader(Namespace::kOurs, entry());
  mount().stop_squeezing();
  ASSERT_EQ(error_of(::umount(mount().root().c_str())), EBUSY);
  ASSERT_EQ(error_of(::umount2(mount().root().c_str(), MNT_DETACH)), 0);
  const Outcome again = start_again();
  EXPECT_EQ(again.exit_code, 0) << again.error;
  expect_told(again, "serves on for ", reader);
  EXPECT_EQ(difference(1, read_file(entry())), "");
  reader.end();
  EXPECT_EQ(difference(1, read_file(entry())), "");
  mount().stop();
}

TEST_F(OtherNamespaceTest, OneThatIsServedHereIsNotStartedTwice) {
  const Outcome again = start_again();
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_NE(
      again.error.find("another kvcachefsd, process " + std::to_string(mount().pid()) + ", serves there"),
      std::string::npos)
      << again.error;
  EXPECT_EQ(mounts_below(mount().root()).size(), 1u);
  mount().stop();
}

TEST_F(OtherNamespaceTest, StopSaysWhoHoldsIt) {
  Other container(Namespace::kOwn);
  mount().stop_squeezing();
  for (const bool mounted : {true, false}) {
    if (!mounted) unmount_here();
    const Outcome refused = stop();
    EXPECT_EQ(refused.exit_code, 1);
    expect_told(refused, "is in use by ", container);
    EXPECT_EQ(difference(1, read_file(container.seen_by_it(entry()))), "");
  }
  expect_stopped(stop({"--force"}));
  std::string content;
  EXPECT_NE(load(container.seen_by_it(entry()), &content), 0);
  EXPECT_EQ(stop().exit_code, 3) << "there is none";
}

TEST_F(OtherNamespaceTest, StopLooksForOpenFilesToo) {
  mount().stop_squeezing();
  Other reader(Namespace::kOurs, entry());
  const Outcome refused = stop();
  EXPECT_EQ(refused.exit_code, 1);
  expect_told(refused, "is in use by ", reader);
  reader.end();
  // An unrelated container may have started meanwhile and hold the mount for a while.
  Outcome stopped;
  EXPECT_TRUE(eventually([&] { return (stopped = stop()).exit_code == 0; })) << stopped.error;
  expect_stopped(stopped);
}

// Most services of systemd have such a namespace: a mount that the host unmounts goes there too.
TEST_F(OtherNamespaceTest, ANamespaceThatFollowsOursHoldsNothing) {
  mount().stop_squeezing();
  ASSERT_EQ(error_of(::mount("none", mount().root().c_str(), nullptr, MS_SHARED, nullptr)), 0);
  const Other service(Namespace::kFollowsOurs);
  EXPECT_EQ(difference(1, read_file(service.seen_by_it(entry()))), "");
  Outcome stopped;
  EXPECT_TRUE(eventually([&] { return (stopped = stop()).exit_code == 0; })) << stopped.error;
  expect_stopped(stopped);
  EXPECT_FALSE(exists(service.seen_by_it(entry())));
}

// The daemon may not unmount a mount that took its place meanwhile.
TEST_F(OtherNamespaceTest, WhatTookItsPlaceStays) {
  if (mode() == Mode::kIoUring) GTEST_SKIP() << "over io_uring nobody takes over";
  const Other container(Namespace::kOwn);
  unmount_here();
  ASSERT_EQ(::mount("none", mount().root().c_str(), "tmpfs", 0, "size=1M"), 0);
  write_file(mount().root() + "/precious", "bytes");
  ASSERT_EQ(::kill(mount().serving_pid(), SIGKILL), 0);
  EXPECT_EQ(difference(1, read_file(container.seen_by_it(entry()))), "");
  ASSERT_EQ(::kill(mount().pid(), SIGTERM), 0);
  EXPECT_EQ(mount().wait_for_exit(std::chrono::seconds(60)), 0);
  EXPECT_EQ(read_file(mount().root() + "/precious"), "bytes");
  EXPECT_EQ(::umount(mount().root().c_str()), 0);
}

}  // namespace
}  // namespace kvcachefs::test
