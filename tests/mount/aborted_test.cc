// The connection to the kernel is aborted: by `umount -f` of a directory that a pool is bound at, or by the
// connection's abort file. The daemon goes on with a new connection: nothing is lost, and the pools are bound
// again where they were.
#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "tests/support/aborted_test.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/pool_pressure.h"
#include "tests/support/program.h"

namespace kvcachefs::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(AbortedTest, ThePoolsGoOn) {
  start();
  const std::string a = bind("p", "a"), b = bind("q", "b"), c = bind("p", "c", ",ro,noexec");
  ASSERT_EQ(error_name(store(b + "/entry", pattern(1, kMiB))), "ok");
  ASSERT_EQ(error_name(set_xattr(entry(), "user.its", "own")), "ok");
  for (const std::string& shared : {c, mount().root()})
    ASSERT_EQ(error_of(::mount("none", shared.c_str(), nullptr, MS_SHARED, nullptr)), 0);
  const pid_t supervisor = mount().pid();
  mount().stop_squeezing();
  ASSERT_EQ(error_of(::umount2(a.c_str(), MNT_FORCE)), 0);
  for (const std::string& path : {entry(), b + "/entry", c + "/entry", mount().path("q") + "/entry"})
    expect_entry(path);
  EXPECT_EQ(xattr(entry(), "user.its"), "own");
  EXPECT_TRUE(mounts_below(a).empty()) << "it was unmounted";
  ASSERT_EQ(mounts_below(b).size(), 1u);
  ASSERT_EQ(mounts_below(c).size(), 1u);
  EXPECT_THAT(mounts_below(c).front().options, HasSubstr("ro,nosuid,nodev,noexec"));
  EXPECT_EQ(mounts_below(b).front().peer_group, "") << "it was private";
  for (const std::string& shared : {c, mount().root()})
    EXPECT_NE(mounts_below(shared).front().peer_group, "") << shared;
  EXPECT_EQ(store(c + "/refused", "bytes"), EROFS);
  EXPECT_EQ(error_name(store(b + "/new", pattern(2, kMiB))), "ok");
  EXPECT_EQ(difference(2, read_file(mount().path("q") + "/new")), "");
  EXPECT_EQ(mounts_below(mount().root()).size(), 1u);
  EXPECT_EQ(mount().pid(), supervisor);
  EXPECT_TRUE(eventually([&] { return mount().log().find("2 mounts bound again") != std::string::npos; }));
  EXPECT_THAT(mount().log(), HasSubstr("<4>the connection was aborted"));
  EXPECT_THAT(mount().log(), Not(HasSubstr("unmounted from outside")));
  EXPECT_EQ(bind("p", "a"), a);
  expect_entry(a + "/entry");
}

// The kernel does not unmount a directory that is in use, but has aborted the connection by then.
TEST_F(AbortedTest, ADirectoryThatIsInUseIsBoundAgain) {
  start();
  const std::string a = bind("p", "a");
  const File directory(a, O_RDONLY | O_DIRECTORY);
  mount().stop_squeezing();
  ASSERT_EQ(error_of(::umount2(a.c_str(), MNT_FORCE)), EBUSY);
  expect_entry(a + "/entry");
  expect_entry(entry());
  EXPECT_EQ(mounts_below(a).size(), 1u);
}

// The directory below would take the writes of clients, and the next mount would hide them.
TEST_F(AbortedTest, NobodySeesTheDirectoryBelow) {
  start();
  const std::string a = bind("p", "a");
  mount().stop_squeezing();
  std::atomic<bool> over{false}, is_bare{false};
  std::thread client([&] {
    struct statfs found {};
    while (!over)
      if (::statfs(mount().root().c_str(), &found) == 0 && found.f_type != FUSE_SUPER_MAGIC) is_bare = true;
  });
  for (int round = 0; round < 5; ++round) {
    ASSERT_NO_FATAL_FAILURE(abort());
    for (const std::string& where : {mount().path(), a}) expect_entry(where + "/entry");
  }
  over = true;
  client.join();
  EXPECT_FALSE(is_bare);
}

// After a takeover the kernel looks names up anew. A lookup that the abort answers has it forget the name of
// what is bound: the mount table calls that deleted.
TEST_F(AbortedTest, WhileTheServingProcessHangs) {
  start({.pools = {"p:size=64M", "q:size=16M"}, .options = {"hang_after=0"}});
  const std::string a = bind("p", "a"), b = bind("q", "b");
  mount().stop_squeezing();
  const pid_t first = mount().serving_pid();
  ASSERT_EQ(::kill(first, SIGKILL), 0);
  ASSERT_TRUE(eventually([&] { return mount().serving_pid() > 0 && mount().serving_pid() != first; }));
  expect_entry(a + "/entry");
  ASSERT_EQ(stop_process(mount().serving_pid()), 0);
  std::thread client([&] { (void)exists(mount().path() + "/another"); });
  const auto mounts = mounts_below(mount().root());
  const std::string& device = mounts.back().device;
  const std::string connection = work_dir_ + "/connections/" + device.substr(device.find(':') + 1);
  EXPECT_TRUE(eventually([&] { return read_file(connection + "/waiting") != "0\n"; }));
  EXPECT_EQ(error_of(::umount2(b.c_str(), MNT_FORCE)), 0);
  client.join();
  expect_entry(entry());
  expect_entry(a + "/entry");
}

TEST_F(AbortedTest, TenTimesInARow) {
  start();
  const std::string a = bind("p", "a"), b = bind("p", "b");
  mount().stop_squeezing();
  size_t before = 0;
  for (int round = 0; round < 10; ++round) {
    if (round == 1) before = descriptors();
    File nameless(mount().path() + "/nameless", O_RDWR | O_CREAT);
    ASSERT_EQ(::write(nameless.fd(), "bytes", 5), 5);
    ASSERT_EQ(::unlink((mount().path() + "/nameless").c_str()), 0);
    const std::string name = "/of-" + std::to_string(round);
    ASSERT_EQ(error_name(store(mount().path() + name, pattern(2, 5000))), "ok");
    ASSERT_NO_FATAL_FAILURE(abort());
    for (const std::string& where : {mount().path(), a, b}) expect_entry(where + "/entry");
    EXPECT_EQ(difference(2, read_file(a + name)), "");
    EXPECT_EQ(mounts_below(a).size(), 1u);
    EXPECT_EQ(mounts_below(mount().root()).size(), 1u);
  }
  EXPECT_EQ(mount().stat_value("open_entries"), 0);
  EXPECT_TRUE(eventually([&] { return descriptors() <= before + 2; })) << before << " " << descriptors();
}

TEST_F(AbortedTest, AgainWhileTheNextTakesOver) {
  start();
  const std::string a = bind("p", "a"), b = bind("q", "b");
  ASSERT_EQ(error_name(store(b + "/entry", pattern(1, kMiB))), "ok");
  mount().stop_squeezing();
  for (const std::string place : {"taken over", "pools adopted", "requests are taken", "mount attached"}) {
    arm("pause " + place);
    ASSERT_NO_FATAL_FAILURE(abort());
    await_pause();
    ASSERT_NO_FATAL_FAILURE(abort()) << place;
    end_pause();
    for (const std::string& path : {entry(), a + "/entry", b + "/entry"}) expect_entry(path);
  }
}

TEST_F(AbortedTest, WhileNoProcessServes) {
  start();
  const std::string a = bind("p", "a");
  const std::string b = bind("q", "b");
  ASSERT_EQ(error_name(store(b + "/entry", pattern(1, kMiB))), "ok");
  mount().stop_squeezing();
  const pid_t serving = mount().serving_pid();
  ASSERT_EQ(stop_process(mount().pid()), 0);
  ASSERT_EQ(::kill(serving, SIGKILL), 0);
  ASSERT_EQ(error_of(::umount2(a.c_str(), MNT_FORCE)), 0);
  ASSERT_EQ(::kill(mount().pid(), SIGCONT), 0);
  expect_entry(entry());
  expect_entry(b + "/entry");
  // And a death right after the new connection, of a process that has taken the kernel's first request.
  for (const std::string place : {"first request received", "taken over", "pools adopted"}) {
    arm(place);
    ASSERT_NO_FATAL_FAILURE(abort());
    expect_entry(b + "/entry");
    EXPECT_FALSE(exists(fault_file_)) << place;
  }
}

TEST_F(AbortedTest, TheBaseEndsTheDaemonAsEver) {
  start();
  const File open(entry(), O_RDONLY);
  mount().stop_squeezing();
  ASSERT_EQ(error_of(::umount2(mount().root().c_str(), MNT_FORCE | MNT_DETACH)), 0);
  EXPECT_EQ(mount().wait_for_exit(std::chrono::seconds(60)), 0) << mount().log();
  EXPECT_TRUE(mounts_below(mount().runtime_dir()).empty());
  EXPECT_FALSE(exists(mount().runtime_dir() + "/stale_mounts"));
  EXPECT_THAT(mount().log(), HasSubstr("unmounted from outside"));
}

TEST_F(AbortedTest, WhatIsOpenGoesOnPastTheDaemon) {
  // In a small pool one writer at a time writes past the daemon.
  start({.pools = {"p:size=64M", "q:size=16M", "r:size=16M"}});
  if (mode() != Mode::kPassthrough) GTEST_SKIP() << "in daemon I/O each use needs the connection";
  const std::string a = bind("p", "a");
  const std::string written = mount().path() + "/written", hidden = mount().path("r") + "/hidden";
  const std::string map = mount().path("q") + "/map";
  ASSERT_EQ(error_name(store(map, std::string(kMiB, 'm'))), "ok");
  File writer(written, O_RDWR | O_CREAT);
  const File reader(entry(), O_RDONLY);
  File nameless(hidden, O_RDWR | O_CREAT);
  File mapped(map, O_RDWR);
  const std::string content = pattern(3, 4 * kMiB);
  ASSERT_EQ(::pwrite(writer.fd(), content.data(), kMiB, 0), static_cast<ssize_t>(kMiB));
  ASSERT_EQ(::pwrite(nameless.fd(), content.data(), 8 * 4096, 0), 8 * 4096);
  ASSERT_EQ(::unlink(hidden.c_str()), 0);
  auto mapping = std::make_unique<Mapping>(mapped.fd(), kMiB, PROT_READ | PROT_WRITE, MAP_SHARED);
  ASSERT_TRUE(mapping->valid());
  mount().stop_squeezing();
  ASSERT_EQ(error_of(::umount2(a.c_str(), MNT_FORCE)), 0);
  expect_entry(entry());
  // The clients notice nothing as long as they read and write.
  EXPECT_EQ(difference(1, read_at(reader.fd(), 0, kMiB)), "");
  struct stat attributes {};
  EXPECT_EQ(error_of(::fstat(reader.fd(), &attributes)), ENOTCONN);
  for (size_t at = kMiB; at < content.size(); at += kMiB)
    ASSERT_EQ(::pwrite(writer.fd(), content.data() + at, kMiB, static_cast<off_t>(at)),
              static_cast<ssize_t>(kMiB));
  EXPECT_EQ(difference(3, read_at(nameless.fd(), 0, 8 * 4096)), "");
  mapping->data()[5] = 'w';
  EXPECT_EQ(read_file(map).substr(0, 8), "mmmmmwmm");
  EXPECT_EQ(difference(3, read_file(written)), "") << "it is there while it is written";
  // An entry in use does not leave, whether it is written, read or mapped. The kernel reports the close of a
  // file after close(2) has returned.
  const auto are_open = [&](int64_t number) {
    return mount().stat_value("open_entries", "p") == number &&
           mount().stat_value("open_entries", "q") == number;
  };
  EXPECT_TRUE(eventually([&] { return are_open(1); }));
  mapped.close();
  const auto evict = [&] {
    for (const char* pool : {"p", "q"}) (void)write_once(mount().place_to_write("evict", pool), "100%");
  };
  evict();
  EXPECT_EQ(difference(1, read_at(reader.fd(), 0, kMiB)), "");
  expect_entry(entry());
  EXPECT_EQ(difference(3, read_at(writer.fd(), 0, 4 * kMiB)), "");
  EXPECT_EQ(difference(3, read_file(written)), "");
  EXPECT_EQ(mapping->data()[5], 'w');
  EXPECT_EQ(read_file(map).substr(0, 8), "mmmmmwmm");
  // A takeover in between: the next process knows of the writer too.
  ASSERT_EQ(::kill(mount().serving_pid(), SIGKILL), 0);
  expect_entry(entry());
  EXPECT_TRUE(eventually([&] { return are_open(1); }));
  ASSERT_EQ(::pwrite(writer.fd(), "still", 5, 0), 5);
  // Once closed, each is an entry like any other. No request reports the close, and the daemon finds it out.
  writer.close();
  nameless.close();
  mapping.reset();
  EXPECT_TRUE(eventually([&] { return are_open(0); }));
  EXPECT_EQ(read_file(written).substr(0, 5), "still");
  EXPECT_EQ(difference(3, read_file(written)).empty(), false);
  EXPECT_TRUE(eventually([&] {
    evict();
    return !exists(written) && !exists(map);
  }));
  EXPECT_TRUE(exists(entry())) << "the reader still has it open";
}

TEST_F(AbortedTest, ADiskTierKeepsItsPromises) {
  const DiskDirectory disk;
  start({.pools = {"p:size=32M,spill=" + (disk / "spill") + ",spill_size=256M", "q:size=16M"}});
  const std::string a = bind("q", "a");
  // While half of the memory is free, a writer writes past the daemon.
  File writer(mount().path() + "/written", O_RDWR | O_CREAT);
  ASSERT_EQ(::pwrite(writer.fd(), pattern(99, kMiB).data(), kMiB, 0), static_cast<ssize_t>(kMiB));
  constexpr uint64_t kEntries = 60;  // more than the memory holds
  const auto name = [&](uint64_t i) { return mount().path() + "/e-" + std::to_string(i); };
  for (uint64_t i = 0; i < kEntries; ++i) ASSERT_EQ(error_name(store(name(i), pattern(i, kMiB))), "ok");
  mount().stop_squeezing();
  ASSERT_EQ(error_of(::umount2(a.c_str(), MNT_FORCE)), 0);
  expect_entry(entry());
  for (uint64_t i = 0; i < kEntries; ++i) EXPECT_EQ(difference(i, read_file(name(i))), "") << i;
  if (mode() == Mode::kPassthrough) {
    EXPECT_EQ(::pwrite(writer.fd(), pattern(98, kMiB).data(), kMiB, 0), static_cast<ssize_t>(kMiB));
  }
  writer.close();
  EXPECT_TRUE(eventually([&] { return mount().stat_value("open_entries") == 0; }));
  ASSERT_EQ(write_once(mount().place_to_write("evict"), "100%"), 0);
  // It is stored: it goes to the disk, and comes back.
  EXPECT_TRUE(eventually([&] {
    (void)write_once(mount().place_to_write("evict"), "100%");
    return xattr(mount().path() + "/written", "user.kvcachefs.tier") == "cold";
  }));
  EXPECT_EQ(difference(mode() == Mode::kPassthrough ? 98 : 99, read_file(mount().path() + "/written")), "");
}

// Meanwhile nothing answers at the base, and another daemon could not be started there.
TEST_F(AbortedTest, AMountInTheMeantimeWaits) {
  start();
  const std::string a = bind("p", "a");
  mount().stop_squeezing();
  ASSERT_EQ(stop_process(mount().pid()), 0);
  ASSERT_NO_FATAL_FAILURE(abort());
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    ::kill(mount().pid(), SIGCONT);
  });
  const std::string b = bind("p", "b");
  later.join();
  for (const std::string& where : {a, b}) expect_entry(where + "/entry");
  EXPECT_EQ(mounts_below(b).size(), 1u);
}

// The process that finds the abort does not hear of the order any more; the next one ends in order.
TEST_F(AbortedTest, WithAnOrderToEndInTheSameMoment) {
  const DiskDirectory disk;
  const MountOptions options{.pools = {"p:size=64M,spill=" + (disk / "spill") + ",spill_size=256M"}};
  start(options);
  mount().stop_squeezing();
  ASSERT_EQ(store(fault_file_, "pause aborted\n"), 0);
  ASSERT_NO_FATAL_FAILURE(abort());
  await_pause();
  ASSERT_EQ(::kill(mount().pid(), SIGTERM), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the supervisor has passed it on
  end_pause();
  EXPECT_EQ(mount().wait_for_exit(std::chrono::seconds(60)), 0) << mount().log();
  EXPECT_THAT(mount().log(), HasSubstr("Terminated: unmounting"));
  mount_ = std::make_unique<Mount>(options);
  expect_entry(entry());
}

// A connection that cannot send requests again, as before Linux 6.9, is replaced like any other.
TEST_F(AbortedTest, ItNeedsNothingOfANewKernel) {
  fault_file_ = work_dir_ + "/faults";
  write_file(fault_file_, "failing keep requests 95\n");
  start();
  EXPECT_EQ(run({"kvcachefs", "--mount", mount().root(), "upgrade"}).exit_code, 1);
  const std::string a = bind("p", "a"), b = bind("q", "b");
  ASSERT_EQ(error_name(store(b + "/entry", pattern(1, kMiB))), "ok");
  mount().stop_squeezing();
  ASSERT_EQ(error_of(::umount2(a.c_str(), MNT_FORCE)), 0);
  expect_entry(entry());
  expect_entry(b + "/entry");
  // There not even the death of the serving process costs an entry.
  ASSERT_EQ(::kill(mount().serving_pid(), SIGKILL), 0);
  expect_entry(entry());
  expect_entry(b + "/entry");
  EXPECT_EQ(mount().log().find("unmounting"), std::string::npos) << mount().log();
}

// A bind mount in another namespace is not the daemon's to replace.
TEST_F(AbortedTest, AContainersMountStaysDeadAndTheLogSaysSo) {
  start();
  const std::string a = bind("p", "a");
  int ready[2], end[2];
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(end, O_CLOEXEC), 0);
  const pid_t container = ::fork();
  if (container == 0) {
    ::close(end[1]);
    ::prctl(PR_SET_NAME, "kv-container");
    char byte = 0;
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
      ::_exit(1);
    if (::write(ready[1], "1", 1) != 1) ::_exit(1);
    (void)!::read(end[0], &byte, 1);
    ::_exit(0);
  }
  ::close(ready[1]);
  ::close(end[0]);
  char byte = 0;
  EXPECT_EQ(::read(ready[0], &byte, 1), 1);
  mount().stop_squeezing();
  ASSERT_EQ(error_of(::umount2(a.c_str(), MNT_FORCE)), 0);
  expect_entry(entry());
  const std::string named = "process " + std::to_string(container) + " (kv-container)";
  EXPECT_TRUE(eventually([&] { return mount().log().find(named) != std::string::npos; })) << mount().log();
  EXPECT_EQ(load("/proc/" + std::to_string(container) + "/root" + entry()), ENOTCONN);
  ::close(end[1]);
  ::close(ready[0]);
  EXPECT_EQ(::waitpid(container, nullptr, 0), container);
}

}  // namespace
}  // namespace kvcachefs::test
