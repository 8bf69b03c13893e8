// The supervisor and its child: hangs, children that cannot serve, and what a service manager is
// told and keeps. The test plays the service manager (sd_notify(3), sd_listen_fds(3)).
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/pool_pressure.h"
#include "tests/support/program.h"
#include "tests/support/programs.h"
#include "tests/support/supervised_test.h"

namespace kvcachefs::test {
namespace {

class SupervisorTest : public SupervisedTest {};

TEST_F(SupervisorTest, ReplacesAChildThatHangs) {
  start({.options = {"hang_after=1"}});
  const pid_t serving = mount().serving_pid();
  ASSERT_EQ(::kill(serving, SIGSTOP), 0);
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
  EXPECT_EQ(mount().wait_for_exit(std::chrono::seconds(60)), 128 + SIGKILL);
  expect_entry();
  EXPECT_EQ(::pwrite(open.fd(), "still open", 10, 0), 10);
  EXPECT_EQ(store(mount().path() + "/another", pattern(2, kMiB)), 0);
  EXPECT_EQ(difference(2, read_file(mount().path() + "/another")), "");
  expect_refusal("is not the daemon's supervisor");
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

// A service manager: the messages that it got, and the descriptors that it keeps.
class Manager {
 public:
  Manager()
      : path_("/tmp/kv-manager-" + std::to_string(::getpid())),
        socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof address.sun_path - 1);
    ::unlink(path_.c_str());
    EXPECT_EQ(::bind(socket_.fd(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ::setenv("NOTIFY_SOCKET", path_.c_str(), 1);
  }
  ~Manager() {
    ::unsetenv("NOTIFY_SOCKET");
    ::unsetenv("WATCHDOG_USEC");
    ::unlink(path_.c_str());
  }
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;

  // listen() takes the messages that have come since the last call.
  void listen() {
    char text[4096];
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    for (;;) {
      iovec data{text, sizeof text};
      msghdr message{};
      message.msg_iov = &data;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      const ssize_t size = ::recvmsg(socket_.fd(), &message, MSG_CMSG_CLOEXEC);
      if (size < 0) return;
      note(std::string(text, static_cast<size_t>(size)), CMSG_FIRSTHDR(&message));
    }
  }
  bool hears(const std::string& line) {
    return eventually([&] {
      listen();
      return lines_.contains(line);
    });
  }
  void forget() { lines_.clear(); }
  const std::map<std::string, File>& kept() const { return kept_; }

 private:
  void note(const std::string& text, const cmsghdr* control) {
    std::string name;
    bool remove = false;
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      const std::string line = text.substr(at, end - at);
      lines_.insert(line);
      if (line.starts_with("FDNAME=")) name = line.substr(7);
      remove = remove || line == "FDSTOREREMOVE=1";
      at = end + 1;
    }
    if (remove) kept_.erase(name);
    if (control == nullptr || control->cmsg_type != SCM_RIGHTS) return;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(control), sizeof fd);
    kept_.insert_or_assign(name, File(fd));
  }

  const std::string path_;
  const File socket_;
  std::set<std::string> lines_;
  std::map<std::string, File> kept_;
};

TEST_F(SupervisorTest, TellsAServiceManager) {
  Manager manager;
  ::setenv("WATCHDOG_USEC", "400000", 1);
  start({.options = {"hang_after=1"}});
  EXPECT_TRUE(manager.hears("READY=1"));
  EXPECT_TRUE(manager.hears("STATUS=serves " + mount().root()));
  EXPECT_TRUE(eventually([&] {
    manager.listen();
    return manager.kept().size() == 3;
  })) << "the memory, the lock and the connection";
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

TEST_F(SupervisorTest, AnotherGoesOnAfterItsOwnDeath) {
  Programs programs;
  Manager manager;
  start();
  EXPECT_TRUE(eventually([&] {
    manager.listen();
    return manager.kept().size() == 3;
  }));
  const File open(mount().path() + "/entry", O_RDONLY);
  mount().kill();
  if (mode() == Mode::kPassthrough) {
    EXPECT_EQ(difference(1, read_at(open.fd(), 0, kMiB)), "") << "it needs no daemon";
  }
  // systemd starts the program again like this, with the kept descriptors from number 3 on.
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

}  // namespace
}  // namespace kvcachefs::test
