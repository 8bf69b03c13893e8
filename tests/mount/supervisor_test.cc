// The supervisor and its child: hangs, children that cannot serve, and what a service manager is
// told and keeps. The test plays the service manager (sd_notify(3), sd_listen_fds(3)).
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/pool_pressure.h"
#include "tests/support/program.h"
#include "tests/support/programs.h"
#include "tests/support/service_manager.h"
#include "tests/support/supervised_test.h"

namespace kvcachefs::test {
namespace {

class SupervisorTest : public SupervisedTest {};

TEST_F(SupervisorTest, ReplacesAChildThatHangs) {
  start({.options = {"hang_after=1"}});
  const pid_t serving = mount().serving_pid();
  ASSERT_EQ(stop_process(serving), 0);
  expect_entry();
  // A thread of the child may have answered that before the child was stopped.
  EXPECT_TRUE(eventually([&] { return mount().serving_pid() > 0 && mount().serving_pid() != serving; }));
  const std::string log = mount().log();
  EXPECT_NE(log.find("has not got on for 1 s"), std::string::npos);
  EXPECT_NE(log.find("the serving process hung: another takes over"), std::string::npos);
}

// The child serves as before, but without its evictor no room would be made.
TEST_F(SupervisorTest, ReplacesAChildWhoseEvictorHangs) {
  const std::string file = start_with_faults({.options = {"hang_after=1"}});
  const pid_t serving = mount().serving_pid();
  ASSERT_EQ(store(file, "hang evictor turn\n"), 0);
  EXPECT_TRUE(eventually([&] { return mount().serving_pid() != serving; }));
  expect_entry();
  const std::string log = mount().log();
  EXPECT_NE(log.find("has not got on for 1 s"), std::string::npos);
  EXPECT_NE(log.find("evictor"), std::string::npos) << "its stack is not there";
}

TEST_F(SupervisorTest, ATreeIsTakenOverThatHasMoreDirectoriesThanDescriptors) {
  start();
  constexpr int kDirectories = 500;
  for (int i = 0; i < kDirectories; ++i) {
    const std::string directory = mount().path() + "/" + std::to_string(i);
    make_directory(directory);
    write_file(directory + "/file", "content");
  }
  const rlimit few{.rlim_cur = 128, .rlim_max = 128};
  ASSERT_EQ(::prlimit(mount().pid(), RLIMIT_NOFILE, &few, nullptr), 0);
  ASSERT_EQ(::kill(mount().serving_pid(), SIGKILL), 0);
  EXPECT_EQ(mount().stat_value("entries"), kDirectories + 1);
  expect_entry();
}

TEST_F(SupervisorTest, AChildGoesOnAlone) {
  start();
  const pid_t serving = mount().serving_pid();
  const File open(mount().path() + "/entry", O_RDWR);
  ASSERT_EQ(::kill(mount().pid(), SIGKILL), 0);
  siginfo_t ended{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(mount().pid()), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(daemon_stat("supervisor_pid"), "0");
  expect_refusal("the supervisor has died");
  EXPECT_EQ(mount().wait_for_exit(std::chrono::seconds(60)), 128 + SIGKILL);
  expect_entry();
  EXPECT_EQ(::pwrite(open.fd(), "still open", 10, 0), 10);
  EXPECT_EQ(store(mount().path() + "/another", pattern(2, kMiB)), 0);
  EXPECT_EQ(difference(2, read_file(mount().path() + "/another")), "");
  expect_refusal("the supervisor has died");
  ASSERT_EQ(::kill(serving, SIGTERM), 0);
  EXPECT_TRUE(eventually([&] { return mounts_below(mount().root()).empty(); }));
  EXPECT_TRUE(eventually([&] { return mounts_below(mount().runtime_dir()).empty(); }));
}

TEST_F(SupervisorTest, GivesUpWhatCannotBe) {
  const std::string file = start_with_faults({.options = {"give_up_after=1"}});
  std::string lines;
  for (int i = 0; i < 20; ++i) lines += "taken over\n";
  ASSERT_EQ(store(file, lines), 0);
  ASSERT_EQ(::kill(mount().serving_pid(), SIGKILL), 0);
  EXPECT_EQ(mount().wait_for_exit(std::chrono::seconds(60)), 1);
  EXPECT_TRUE(mounts_below(mount().root()).empty());
  EXPECT_TRUE(mounts_below(mount().runtime_dir()).empty());
  EXPECT_NE(mount().log().find("times in a row: unmounting"), std::string::npos) << mount().log();
  ::unlink(file.c_str());
}

// A successor finds the connection ended before it comes to serve.
TEST_F(SupervisorTest, EndsWhenItIsUnmountedDuringATakeover) {
  const std::string file = start_with_faults();
  mount().stop_squeezing();
  ASSERT_EQ(store(file, "pause requests are taken\n"), 0);
  ASSERT_EQ(::kill(mount().serving_pid(), SIGKILL), 0);
  EXPECT_TRUE(eventually([&] { return exists(file + ".paused"); }));
  ASSERT_EQ(::umount2(mount().root().c_str(), 0), 0);
  ASSERT_EQ(::unlink((file + ".paused").c_str()), 0);
  EXPECT_EQ(mount().wait_for_exit(std::chrono::seconds(60)), 0) << mount().log();
  EXPECT_TRUE(mounts_below(mount().runtime_dir()).empty());
  EXPECT_NE(mount().log().find("unmounted from outside"), std::string::npos) << mount().log();
}

// An Obstacle covers a pool's memory with another mount, so that no successor can adopt the pool.
class Obstacle {
 public:
  explicit Obstacle(const Mount& mount) : path_(mounts_below(mount.runtime_dir()).at(0).directory) {
    EXPECT_EQ(::mount("none", path_.c_str(), "tmpfs", 0, nullptr), 0);
    write_file(path_ + "/tree", "no directory");
  }
  ~Obstacle() { (void)::umount(path_.c_str()); }
  Obstacle(const Obstacle&) = delete;
  Obstacle& operator=(const Obstacle&) = delete;
  void remove() {
    EXPECT_TRUE(eventually([&] { return ::umount(path_.c_str()) == 0; }));
  }

 private:
  const std::string path_;
};

TEST_F(SupervisorTest, SuccessorsThatFailCostTimeAlone) {
  start();
  const File open(mount().path() + "/entry", O_RDWR);
  File nameless(mount().path() + "/nameless", O_RDWR | O_CREAT);
  ASSERT_EQ(::write(nameless.fd(), "nameless", 8), 8);
  ASSERT_EQ(::unlink((mount().path() + "/nameless").c_str()), 0);
  Obstacle obstacle(mount());
  ASSERT_EQ(::kill(mount().serving_pid(), SIGKILL), 0);
  EXPECT_TRUE(eventually([&] { return mount().log().find("11 could not take over") != std::string::npos; },
                         std::chrono::seconds(60)))
      << mount().log();
  obstacle.remove();
  expect_entry();
  EXPECT_EQ(read_at(nameless.fd(), 0, 10), "nameless");
  EXPECT_EQ(::pwrite(open.fd(), "still open", 10, 0), 10);
  EXPECT_EQ(store(mount().path() + "/another", pattern(2, kMiB)), 0);
  EXPECT_EQ(difference(2, read_file(mount().path() + "/another")), "");
  ASSERT_EQ(::kill(mount().serving_pid(), SIGKILL), 0);
  EXPECT_EQ(difference(2, read_file(mount().path() + "/another")), "");
}

TEST_F(SupervisorTest, EndsWhenItIsAskedToWhileNobodyCanTakeOver) {
  start();
  {
    Obstacle obstacle(mount());
    ASSERT_EQ(::kill(mount().serving_pid(), SIGKILL), 0);
    EXPECT_TRUE(eventually([&] { return mount().log().find("11 could not take over") != std::string::npos; },
                           std::chrono::seconds(60)));
    ASSERT_EQ(::kill(mount().pid(), SIGTERM), 0);
    EXPECT_EQ(mount().wait_for_exit(std::chrono::seconds(60)), 1);
    EXPECT_TRUE(mounts_below(mount().root()).empty());
    EXPECT_TRUE(mounts_below(mount().runtime_dir()).empty());
  }
}

TEST_F(SupervisorTest, TellsAServiceManager) {
  Manager manager;
  ::setenv("WATCHDOG_USEC", "400000", 1);
  start({.options = {"hang_after=1"}});
  EXPECT_TRUE(manager.hears("READY=1"));
  EXPECT_TRUE(manager.hears("STATUS=serves " + mount().root()));
  EXPECT_TRUE(manager.keeps_all());
  for (int i = 0; i < 3; ++i) {
    manager.forget();
    EXPECT_TRUE(manager.hears("WATCHDOG=1"));
  }
  // The messages go on with the next child and end with the mount.
  ASSERT_EQ(::kill(mount().serving_pid(), SIGKILL), 0);
  expect_entry();
  manager.forget();
  EXPECT_TRUE(manager.hears("WATCHDOG=1"));
  mount().stop();
  EXPECT_TRUE(manager.hears("STOPPING=1"));
  EXPECT_TRUE(manager.kept().empty());
}

TEST_F(SupervisorTest, WithoutASupervisorItTellsToo) {
  Manager manager;
  ::setenv("WATCHDOG_USEC", "400000", 1);
  start({.options = {"no_supervisor"}});
  EXPECT_TRUE(manager.hears("READY=1"));
  EXPECT_TRUE(manager.hears("WATCHDOG=1"));
  EXPECT_TRUE(manager.kept().empty());
}

// systemd starts the program again like this, with the kept descriptors from number 3 on.
std::vector<File> hand_on(const Manager& manager, Programs& programs) {
  std::string names, redirections;
  int number = 3;
  std::vector<File> handed_on;  // above the numbers that they get
  for (const auto& [name, file] : manager.kept()) {
    handed_on.emplace_back(::fcntl(file.fd(), F_DUPFD, 100));
    names += (names.empty() ? "" : ":") + name;
    redirections += " " + std::to_string(number++) + "<&" + std::to_string(handed_on.back().fd());
  }
  programs.install("#!/bin/bash\nexport LISTEN_PID=$$ LISTEN_FDS=3 LISTEN_FDNAMES=" + names + "\nexec " +
                   programs.real() + " \"$@\"" + redirections + "\n");
  return handed_on;
}

TEST_F(SupervisorTest, AnotherGoesOnAfterItsOwnDeath) {
  Programs programs;
  Manager manager;
  start();
  EXPECT_TRUE(manager.keeps_all());
  const File open(mount().path() + "/entry", O_RDONLY);
  mount().kill();
  if (mode() == Mode::kPassthrough) {
    EXPECT_EQ(difference(1, read_at(open.fd(), 0, kMiB)), "") << "it needs no daemon";
  }
  const std::vector<File> handed_on = hand_on(manager, programs);
  const std::string root = mount().root();
  const std::string runtime_dir = mount().runtime_dir();
  {
    Mount next({.mount_point = root, .runtime_dir = runtime_dir});
    EXPECT_EQ(difference(1, read_file(next.path() + "/entry")), "") << "it was in memory alone";
    EXPECT_EQ(difference(1, read_at(open.fd(), 0, kMiB)), "");
    EXPECT_EQ(store(next.path() + "/another", pattern(2, kMiB)), 0);
    EXPECT_EQ(difference(2, read_file(next.path() + "/another")), "");
    if (HasFailure()) report_daemon_log(next);
  }
}

// The connection that is kept is the one that took the place of an aborted one.
TEST_F(SupervisorTest, AnotherGoesOnWithAConnectionThatReplacedOne) {
  Programs programs;
  Manager manager;
  start();
  EXPECT_TRUE(manager.keeps_all());
  mount().stop_squeezing();
  manager.forget();
  const std::string bound = mount().runtime_dir() + "/bound";
  make_directory(bound);
  ASSERT_EQ(::mount(mount().path().c_str(), bound.c_str(), "", MS_BIND, nullptr), 0);
  ASSERT_EQ(::umount2(bound.c_str(), MNT_FORCE), 0);
  EXPECT_TRUE(manager.hears("FDSTOREREMOVE=1"));
  EXPECT_TRUE(manager.keeps_all());
  EXPECT_TRUE(eventually([&] { return load(mount().path() + "/entry") == 0; }));
  mount().kill();
  const std::vector<File> handed_on = hand_on(manager, programs);
  Mount next({.mount_point = mount().root(), .runtime_dir = mount().runtime_dir()});
  EXPECT_EQ(difference(1, read_file(next.path() + "/entry")), "") << "it was in memory alone";
  EXPECT_EQ(daemon_stat("generation"), "2");
  if (HasFailure()) report_daemon_log(next);
}

}  // namespace
}  // namespace kvcachefs::test
