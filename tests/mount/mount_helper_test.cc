// mount.kvcachefs makes daemon, pool and bind mount with one command.
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "tests/support/disks.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/mount_helper_test.h"
#include "tests/support/program.h"

namespace kvcachefs::test {
namespace {

using ::testing::HasSubstr;

TEST_F(MountHelperTest, ADiskTierFromTheOptions) {
  const DiskDirectory disk;
  const std::string spill = disk / "spill";
  const Outcome outcome =
      mount_pool("one", directory("a"), "size=16M,spill=" + spill + ",spill_size=64M,durability=sync");
  if (mode() == Mode::kIoUring) {
    EXPECT_NE(outcome.exit_code, 0);
    EXPECT_THAT(outcome.error, HasSubstr("io_uring"));
    return;
  }
  ASSERT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_EQ(read_file(control("one", "spill")), spill + " 64M\n");
  EXPECT_EQ(read_file(control("one", "durability")), "sync\n");
  ASSERT_EQ(store(directory("a") + "/entry", pattern(1, 10'000)), 0);
  EXPECT_EQ(xattr(directory("a") + "/entry", "user.kvcachefs.tier"), "clean");
  ASSERT_EQ(::umount2(directory("a").c_str(), 0), 0);
  end_daemon();
}

TEST_F(MountHelperTest, StartsADaemonAndBindsThePool) {
  const Outcome outcome = mount_pool("llama", directory("a"), "size=64M,policy=lfu,mode=0750,nofail,_netdev");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.error;
  ASSERT_EQ(mounts_at(directory("a")).size(), 1u);
  EXPECT_EQ(mounts_at(directory("a")).front().type, "fuse.kvcachefs");
  EXPECT_EQ(list(base()), std::vector<std::string>{"llama"});
  EXPECT_EQ(read_file(control("llama", "policy")), "lfu\n");
  struct statvfs usage {};
  ASSERT_EQ(::statvfs(directory("a").c_str(), &usage), 0);
  EXPECT_EQ(usage.f_blocks * usage.f_frsize, uint64_t{60} << 20);
  struct stat status {};
  ASSERT_EQ(::stat(directory("a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0750u);

  ASSERT_EQ(store(directory("a") + "/entry", pattern(1, 100000)), 0);
  EXPECT_EQ(difference(1, read_file(base() + "/llama/entry")), "");
  EXPECT_EQ(read_file(directory("a") + "/.pool/size"), "64M\n");

  ASSERT_EQ(::umount(directory("a").c_str()), 0);
  EXPECT_FALSE(exists(directory("a") + "/entry"));
  EXPECT_EQ(difference(1, read_file(base() + "/llama/entry")), "");
  ASSERT_EQ(mount_pool("llama", directory("a"), "").exit_code, 0);
  EXPECT_EQ(difference(1, read_file(directory("a") + "/entry")), "");
}

TEST_F(MountHelperTest, SaysHowReadilyTheKernelKillsTheDaemon) {
  ASSERT_EQ(mount_pool("llama", directory("a"), "size=64M,oom_score_adj=100").exit_code, 0);
  EXPECT_EQ(read_file("/proc/" + std::to_string(daemon_pid()) + "/oom_score_adj"), "100\n");
}

TEST_F(MountHelperTest, DoesNothingTwice) {
  ASSERT_EQ(mount_pool("llama", directory("a"), "size=64M").exit_code, 0);
  const pid_t pid = daemon_pid();
  const Outcome again = mount_pool("llama", directory("a"), "size=64M");
  EXPECT_EQ(again.exit_code, 0);
  EXPECT_EQ(again.error, "");
  EXPECT_EQ(mounts_at(directory("a")).size(), 1u);
  EXPECT_EQ(mounts_at(base()).size(), 1u);
  EXPECT_EQ(daemon_pid(), pid);
}

TEST_F(MountHelperTest, AddsPoolsToARunningDaemon) {
  ASSERT_EQ(mount_pool("one", directory("a"), "size=64M").exit_code, 0);
  const pid_t pid = daemon_pid();
  const Outcome outcome =
      mount_pool("two", directory("b"), "size=32M,policy=fifo,watermarks=50:60,mode=0700,uid=1000,gid=1001");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_EQ(daemon_pid(), pid);
  EXPECT_EQ(read_file(control("two", "size")), "32M\n");
  EXPECT_EQ(read_file(control("two", "policy")), "fifo\n");
  EXPECT_EQ(read_file(control("two", "watermarks")), "50:60\n");
  struct stat status {};
  ASSERT_EQ(::stat(directory("b").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0700u);
  EXPECT_EQ(status.st_uid, 1000u);
  EXPECT_EQ(status.st_gid, 1001u);
  // Two directories may show the same pool.
  make_directory(directory("c"));
  EXPECT_EQ(mount_pool("one", directory("c"), "").exit_code, 0);
  ASSERT_EQ(store(directory("c") + "/entry", "bytes"), 0);
  EXPECT_EQ(read_file(directory("a") + "/entry"), "bytes");
}

// What is set of a pool lasts; that it was added while another was served is no setting.
TEST_F(MountHelperTest, APoolThatWasAddedIsConfigured) {
  ASSERT_EQ(mount_pool("one", directory("a"), "size=16M").exit_code, 0);
  ASSERT_EQ(mount_pool("two", directory("b"), "size=16M,policy=lfu").exit_code, 0);
  ASSERT_EQ(write_once(control("two", "watermarks"), "50:60"), 0);
  ASSERT_EQ(::umount2(directory("a").c_str(), 0), 0);
  ASSERT_EQ(::umount2(directory("b").c_str(), 0), 0);
  end_daemon();
  ASSERT_EQ(mount_pool("one", directory("a"), "size=16M").exit_code, 0);
  EXPECT_EQ(list(base()), std::vector<std::string>{"one"});
  ASSERT_EQ(mount_pool("two", directory("b"), "size=16M,policy=lfu").exit_code, 0);
  EXPECT_EQ(read_file(control("two", "watermarks")), "50:60\n");
  EXPECT_THAT(read_file(control("two", "settings")), HasSubstr("policy configured lfu\n"));
}

TEST_F(MountHelperTest, LeavesAPoolThatExistsAsItIs) {
  ASSERT_EQ(mount_pool("llama", directory("a"), "size=64M,policy=lfu").exit_code, 0);
  const Outcome outcome = mount_pool("llama", directory("b"), "size=32M,policy=lfu,mode=0700");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.error,
            "mount.kvcachefs: warning: pool llama is left as it is: size is 64M, not 32M\n"
            "mount.kvcachefs: warning: pool llama is left as it is: mode is 1777, not 0700\n");
  EXPECT_EQ(read_file(control("llama", "size")), "64M\n");
  EXPECT_EQ(mounts_at(directory("b")).size(), 1u);
}

TEST_F(MountHelperTest, TakesTurnsWithOthers) {
  constexpr int kHelpers = 6;
  std::vector<std::unique_ptr<Program>> helpers;
  for (int i = 0; i < kHelpers; ++i) {
    // Two helpers mount each pool at the same directory.
    const std::string name = "p" + std::to_string(i / 2);
    if (i % 2 == 0) make_directory(directory(name));
    helpers.push_back(std::make_unique<Program>(command(name, directory(name), "size=16M")));
  }
  for (const auto& helper : helpers) {
    const Outcome outcome = helper->wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  }
  EXPECT_EQ(mounts_at(base()).size(), 1u);
  for (const char* name : {"p0", "p1", "p2"}) {
    EXPECT_EQ(mounts_at(directory(name)).size(), 1u);
    EXPECT_EQ(read_file(directory(name) + "/.pool/size"), "16M\n");
  }
}

TEST_F(MountHelperTest, MountsAgainAfterTheDaemonDied) {
  ASSERT_EQ(mount_pool("llama", directory("a"), "size=64M").exit_code, 0);
  const pid_t pid = daemon_pid();
  const pid_t serving = serving_pid();
  // The supervisor is stopped first, because otherwise it would replace its killed child.
  ASSERT_EQ(::kill(pid, SIGSTOP), 0);
  for (const pid_t each : {serving, pid}) ASSERT_EQ(::kill(each, SIGKILL), 0);
  ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
  if (serving != pid) {
    ASSERT_EQ(::waitpid(serving, nullptr, 0), serving);
  }
  std::string content;
  EXPECT_THAT(load(directory("a") + "/entry", &content), ::testing::AnyOf(ENOTCONN, ECONNABORTED, ECANCELED));
  const Outcome outcome = mount_pool("llama", directory("a"), "size=64M");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_NE(daemon_pid(), pid);
  EXPECT_EQ(mounts_at(base()).size(), 1u);
  EXPECT_EQ(mounts_at(directory("a")).size(), 1u);
  EXPECT_EQ(store(directory("a") + "/entry", "bytes"), 0);
}

TEST_F(MountHelperTest, GivesItsOutputToNoDaemon) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const File reading(ends[0]);
  File writing(ends[1]);
  // A caller such as `$(mount …)` or `ssh host mount …` waits until no process holds the pipe any more.
  const int helped = in_child([&] {
    ::dup2(writing.fd(), STDOUT_FILENO);
    ::dup2(writing.fd(), STDERR_FILENO);
    const std::vector<std::string> words = command("llama", directory("a"), "size=64M");
    const std::string program = std::string(KVCACHEFS_BIN_DIR) + "/" + words[0];
    ::execl(program.c_str(), words[0].c_str(), words[1].c_str(), words[2].c_str(), words[3].c_str(),
            words[4].c_str(), nullptr);
    return 127;
  });
  ASSERT_EQ(helped, 0);
  writing.close();
  pollfd end{reading.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&end, 1, 10'000), 1) << "the daemon holds it";
  EXPECT_EQ(mounts_at(directory("a")).size(), 1u);
  EXPECT_THAT(read_file(work_dir_ + "/run/mount.log"), HasSubstr("serves " + base()));
}

TEST_F(MountHelperTest, MountsForReadingOnly) {
  ASSERT_EQ(mount_pool("llama", directory("a"), "size=64M").exit_code, 0);
  ASSERT_EQ(store(directory("a") + "/entry", "bytes"), 0);
  const Outcome outcome = mount_pool("llama", directory("b"), "ro,noexec");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_EQ(read_file(directory("b") + "/entry"), "bytes");
  EXPECT_EQ(store(directory("b") + "/other", "bytes"), EROFS);
  EXPECT_EQ(store(directory("a") + "/other", "bytes"), 0);
  EXPECT_THAT(mounts_at(directory("b")).front().options, HasSubstr("nosuid"));
}

TEST_F(MountHelperTest, FollowsNoSymbolicLinksWhereItIsTold) {
  ASSERT_EQ(mount_pool("llama", directory("a"), "size=64M,sync,strictatime").exit_code, 0);
  ASSERT_EQ(store(directory("a") + "/entry", "bytes"), 0);
  ASSERT_EQ(::symlink("entry", (directory("a") + "/link").c_str()), 0);
  ASSERT_EQ(mount_pool("llama", directory("b"), "nosymfollow").exit_code, 0);
  std::string content;
  EXPECT_EQ(load(directory("a") + "/link", &content), 0);
  EXPECT_EQ(load(directory("b") + "/link", &content), ELOOP);
  EXPECT_EQ(load(directory("b") + "/entry", &content), 0);
}

// The test runs in a new mount namespace, in which /sbin, where mount(8) looks, has this build's helper.
TEST_F(MountHelperTest, MountsFromFstab) {
  std::string daemon_options = ",runtime_dir=" + work_dir_ + "/run";
  if (mode() == Mode::kDaemonIo) daemon_options += ",no_passthrough";
  if (mode() == Mode::kIoUring) daemon_options += ",io_uring";
  write_file(directory("fstab"), "one " + directory("a") + " kvcachefs size=16M,sync,nofail" +
                                     daemon_options + " 0 0\ntwo " + directory("b") +
                                     " kvcachefs ro,nouser,size=32M" + daemon_options + " 0 0\n");
  const auto body = [&] {
    ASSERT_EQ(::unshare(CLONE_NEWNS), 0);
    ASSERT_EQ(::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
    ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    ASSERT_EQ(::mount("none", "/sbin", "tmpfs", 0, "size=1M"), 0);
    for (const std::string program : {"/kvcachefsd", "/mount.kvcachefs"}) {
      write_file("/sbin" + program, "");
      ASSERT_EQ(::mount((KVCACHEFS_BIN_DIR + program).c_str(), ("/sbin" + program).c_str(), nullptr, MS_BIND,
                        nullptr),
                0);
    }
    for (int round = 0; round < 2; ++round) {  // as `mount -a` by hand after the one at boot
      const Outcome outcome = run({"/bin/mount", "-n", "-T", directory("fstab"), "-a"});
      ASSERT_EQ(outcome.exit_code, 0) << outcome.error;
      EXPECT_EQ(mounts_at(directory("a")).size(), 1u);
      EXPECT_EQ(mounts_at(directory("b")).size(), 1u);
    }
    EXPECT_EQ(store(directory("a") + "/entry", "bytes"), 0);
    EXPECT_EQ(store(directory("b") + "/entry", "bytes"), EROFS);
    EXPECT_EQ(read_file(control("two", "size")), "32M\n");
    for (const char* name : {"a", "b"}) EXPECT_EQ(run({"/bin/umount", "-n", directory(name)}).exit_code, 0);
    EXPECT_EQ(read_file(base() + "/one/entry"), "bytes");
    end_daemon();
  };
  EXPECT_EQ(in_child([&] {
              body();
              return HasFailure() ? 1 : 0;
            }),
            0);
}

TEST_F(MountHelperTest, NamesMistakesAndMountsNothing) {
  Outcome outcome = mount_pool("llama", directory("a"), "colour=red");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.error, "mount.kvcachefs: colour=red: unknown option\n");
  outcome = mount_pool("llama", directory("a"), "size=lots");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.error, HasSubstr("size: 'lots'"));
  outcome = mount_pool("llama", directory("missing"), "size=64M");
  EXPECT_EQ(outcome.exit_code, 32);
  EXPECT_THAT(outcome.error, HasSubstr("missing: No such file"));
  outcome = mount_pool("llama", directory("a"), "size=1000T");
  EXPECT_EQ(outcome.exit_code, 32);
  EXPECT_THAT(outcome.error, HasSubstr("size 1000T is beyond the memory"));
  outcome = mount_pool("llama", directory("a"), "size=64M,config=" + directory("none.toml"));
  EXPECT_EQ(outcome.exit_code, 32);
  EXPECT_TRUE(mounts_below(work_dir_).empty());
  ASSERT_EQ(mount_pool("llama", directory("a"), "size=64M").exit_code, 0);
  outcome = mount_pool("huge", directory("b"), "size=1000T");
  EXPECT_EQ(outcome.exit_code, 32);
  EXPECT_FALSE(exists(base() + "/huge"));
  EXPECT_TRUE(mounts_at(directory("b")).empty());
}

TEST_F(MountHelperTest, ReadsAConfigurationFile) {
  write_file(directory("kv.toml"),
             "[pools.one]\nsize = \"48M\"\npolicy = \"fifo\"\n[pools.two]\nsize = \"32M\"\n");
  const Outcome outcome = mount_pool("one", directory("a"), "policy=lfu,config=" + directory("kv.toml"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_EQ(read_file(control("one", "size")), "48M\n");
  EXPECT_EQ(read_file(control("one", "policy")), "lfu\n");
  EXPECT_EQ(mount_pool("two", directory("b"), "").exit_code, 0);
  EXPECT_EQ(read_file(directory("b") + "/.pool/size"), "32M\n");
}

}  // namespace
}  // namespace kvcachefs::test
