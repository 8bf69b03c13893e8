// The directory at which a pool is mounted: it takes no writes while nothing is mounted there, is not the
// place of what all processes need, and what a remount does to it does nothing to other pools.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "tests/support/disks.h"
#include "tests/support/files.h"
#include "tests/support/mount_helper_test.h"

namespace kvcachefs::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr uid_t kUser = 65534;

class MountPointTest : public MountHelperTest {
 protected:
  void TearDown() override {
    if (!below_.empty()) {
      end_daemon();
      EXPECT_EQ(::umount2(below_.c_str(), 0), 0);
    }
    MountHelperTest::TearDown();
  }
  // A file system on which a mount point is made, which the function returns.
  std::string mount_point_on(const std::string& type, const std::string& source) {
    below_ = directory(type);
    EXPECT_EQ(::chmod(work_dir_.c_str(), 0755), 0);
    make_directory(below_);
    EXPECT_EQ(error_of(::mount(source.c_str(), below_.c_str(), type.c_str(), 0, nullptr)), 0);
    make_directory(below_ + "/point");
    EXPECT_EQ(::chmod((below_ + "/point").c_str(), 0777), 0);
    return below_ + "/point";
  }
  static int store_as_user(const std::string& path) {
    return as_user(kUser, kUser, [&] { return store(path, "bytes"); });
  }
  // What a server finds while a pool is mounted at `where`, when it is unmounted, and after the daemon's end.
  void serve_and_end(const std::string& where, int after_for_root) {
    ASSERT_EQ(mount_pool("llama", where, "size=16M").exit_code, 0);
    EXPECT_EQ(store(where + "/entry", "bytes"), 0);
    EXPECT_EQ(store_as_user(where + "/user's"), 0);
    ASSERT_EQ(::umount2(where.c_str(), 0), 0);
    EXPECT_EQ(store(where + "/entry", "bytes"), after_for_root);
    EXPECT_NE(store_as_user(where + "/user's"), 0);
    ASSERT_EQ(mount_pool("llama", where, "size=16M").exit_code, 0) << "again";
    EXPECT_EQ(read_file(where + "/entry"), "bytes");
    end_daemon();
    EXPECT_TRUE(mounts_at(where).empty());
    EXPECT_EQ(store(where + "/after", "bytes"), after_for_root);
    EXPECT_NE(store_as_user(where + "/after"), 0);
  }
  static mode_t mode_of(const std::string& path) {
    struct stat status {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0);
    return status.st_mode & 07777;
  }

  std::string below_;
};

TEST_F(MountPointTest, TakesNoWritesOfRootWithoutItsPool) {
  if (!LoopDevice::available()) GTEST_SKIP() << "loop devices";
  const DiskDirectory disk;
  const std::string image = disk.make_file("image", 16 << 20);
  ASSERT_EQ(run({"/usr/sbin/mkfs.ext4", "-q", image}).exit_code, 0);
  const LoopDevice device(image);
  const std::string point = mount_point_on("ext4", device.path());
  serve_and_end(point, EPERM);
  EXPECT_EQ(error_of(::rmdir(point.c_str())), EPERM);
  ASSERT_EQ(run({"/usr/bin/chattr", "-i", point}).exit_code, 0);
  EXPECT_EQ(mode_of(point), 0777u);
  EXPECT_EQ(::rmdir(point.c_str()), 0);
  ASSERT_EQ(::umount2(below_.c_str(), 0), 0);
  below_.clear();  // before its device ends
}

// A ramfs has no immutable flag; root is not stopped there.
TEST_F(MountPointTest, TakesNoWritesOfOthersWhereThereIsNoFlag) {
  const std::string point = mount_point_on("ramfs", "none");
  serve_and_end(point, 0);
  EXPECT_EQ(mode_of(point), 0u);
}

TEST_F(MountPointTest, IsLeftAsItIsWhereThatIsAskedFor) {
  const std::string where = directory("a");
  ASSERT_EQ(mount_pool("llama", where, "size=16M,seal=off").exit_code, 0);
  ASSERT_EQ(::umount2(where.c_str(), 0), 0);
  EXPECT_EQ(store(where + "/on the disk", "bytes"), 0);
  // What lies there is not shut in, and the administrator hears of it.
  Outcome outcome = mount_pool("llama", where, "");
  ASSERT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.error, HasSubstr(where + " is not empty"));
  ASSERT_EQ(::umount2(where.c_str(), 0), 0);
  EXPECT_EQ(store(where + "/on the disk", "more"), 0);
  outcome = mount_pool("llama", where, "seal=off");
  EXPECT_EQ(outcome.error, "");
}

// As the service has it, and mount.kvcachefs for a base that the administrator chose.
TEST_F(MountPointTest, OfAllPoolsTakesNoWritesWithoutThem) {
  const std::string all = directory("all");
  ASSERT_EQ(mount_pool("llama", directory("a"), "size=16M,mountpoint=" + all).exit_code, 0);
  EXPECT_EQ(store(all + "/llama/entry", "bytes"), 0);
  const auto stats = parse_stats(read_file(all + "/.kvcachefs/stats"));
  EXPECT_EQ(run({"kvcachefs", "--mount", all, "stop", "--runtime-dir", work_dir_ + "/run"}).exit_code, 0);
  ASSERT_EQ(::waitpid(std::stoi(stats.at("supervisor_pid")), nullptr, 0),
            std::stoi(stats.at("supervisor_pid")));
  EXPECT_TRUE(mounts_below(work_dir_).empty());
  EXPECT_NE(error_of(::mkdir((all + "/llama").c_str(), 0755)), 0);
}

// In a mount namespace of its own, where /sbin has the helper under both of its names.
TEST_F(MountPointTest, ARemountConcernsOnePool) {
  ASSERT_EQ(mount_pool("one", directory("a"), "size=16M").exit_code, 0);
  ASSERT_EQ(mount_pool("two", directory("b"), "size=16M,noexec").exit_code, 0);
  const auto body = [&] {
    ASSERT_EQ(::unshare(CLONE_NEWNS), 0);
    ASSERT_EQ(::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
    ASSERT_EQ(::mount("none", "/sbin", "tmpfs", 0, "size=1M"), 0);
    for (const std::string name : {"mount.kvcachefs", "mount.fuse.kvcachefs"}) {
      write_file("/sbin/" + name, "");
      ASSERT_EQ(
          error_of(::mount(program_path(name).c_str(), ("/sbin/" + name).c_str(), nullptr, MS_BIND, nullptr)),
          0)
          << name;
    }
    const auto mount = [](const std::string& options, const std::string& where) {
      return run({"/bin/mount", "-n", "-o", options, where});
    };
    Outcome outcome = mount("remount,ro", directory("b"));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
    EXPECT_EQ(outcome.error, "");
    EXPECT_EQ(store(directory("b") + "/entry", "bytes"), EROFS);
    EXPECT_THAT(mounts_at(directory("b")).front().options, HasSubstr("noexec"));
    EXPECT_EQ(store(directory("a") + "/entry", "bytes"), 0);
    EXPECT_EQ(store(base() + "/two/entry", "bytes"), 0);
    outcome = mount("remount,rw,size=32M", directory("b"));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
    EXPECT_THAT(outcome.error, HasSubstr("pool two is left as it is: size is 16M, not 32M"));
    EXPECT_EQ(store(directory("b") + "/entry", "bytes"), 0);
    outcome = mount("remount,ro", base());
    EXPECT_EQ(outcome.exit_code, 32);
    EXPECT_THAT(outcome.error, HasSubstr("is the mount of all pools"));
    EXPECT_EQ(store(directory("a") + "/entry", "bytes"), 0);

    // By the system call itself, which no helper sees.
    ASSERT_EQ(::mount("none", directory("b").c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
    EXPECT_EQ(store(directory("a") + "/entry", "bytes"), EROFS);
    EXPECT_THAT(run({"kvcachefs", "--mount", base(), "status"}).out,
                HasSubstr("all pools are read-only: `mount -o remount,rw " + base() + "`"));
    const auto log = [&] {
      std::string all;
      for (const std::string& name : list(work_dir_ + "/run"))
        if (name.ends_with(".log")) all += read_file(work_dir_ + "/run/" + name);
      return all;
    };
    EXPECT_TRUE(eventually([&] { return log().contains("all pools are read-only"); })) << log();
    outcome = mount("remount,rw", base());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
    EXPECT_EQ(store(directory("a") + "/entry", "bytes"), 0);
    EXPECT_THAT(run({"kvcachefs", "--mount", base(), "status"}).out, Not(HasSubstr("read-only")));
  };
  EXPECT_EQ(in_child([&] {
              body();
              return HasFailure() ? 1 : 0;
            }),
            0);
}

// In a mount namespace of its own, so that a mount that is made ends with the test.
TEST_F(MountPointTest, IsNoPlaceThatAllProcessesNeed) {
  const auto body = [&] {
    ASSERT_EQ(::unshare(CLONE_NEWNS), 0);
    ASSERT_EQ(::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
    for (const std::string place : {"/", "/proc", "/proc/1", "/sys/fs", "/dev"}) {
      Outcome outcome = mount_pool("llama", place, "size=16M");
      EXPECT_EQ(outcome.exit_code, 32) << place;
      EXPECT_THAT(outcome.error, HasSubstr(place + ": kvcachefs is not mounted "));
      outcome = mount_pool("llama", directory("a"), "size=16M,mountpoint=" + place);
      EXPECT_EQ(outcome.exit_code, 32) << place;
      outcome = run({"kvcachefsd", "--daemonize", "-o", "runtime_dir=" + work_dir_ + "/run,state_dir=none",
                     "--pool", "p:size=16M", place});
      EXPECT_EQ(outcome.exit_code, 1) << place;
      EXPECT_THAT(outcome.error, HasSubstr(place + ": kvcachefs is not mounted "));
    }
    EXPECT_FALSE(exists(work_dir_ + "/run")) << "a daemon was started";
  };
  EXPECT_EQ(in_child([&] {
              body();
              return HasFailure() ? 1 : 0;
            }),
            0);
}

TEST_F(MountPointTest, WrongOptionsAreNamedThoughADaemonServes) {
  ASSERT_EQ(mount_pool("one", directory("a"), "size=16M").exit_code, 0);
  const std::pair<const char*, const char*> cases[] = {{"poll_us=x", "poll_us: 'x' is not a number"},
                                                       {"io_uring=1", "io_uring: takes no value"},
                                                       {"control_group=no one's", "'no one's' is no group"},
                                                       {"seal=maybe", "seal: 'maybe' is not on or off"}};
  for (const auto& [option, reason] : cases) {
    const Outcome outcome = mount_pool("two", directory("b"), std::string("size=16M,") + option);
    EXPECT_EQ(outcome.exit_code, 1) << option;
    EXPECT_THAT(outcome.error, HasSubstr(reason));
  }
  EXPECT_TRUE(mounts_at(directory("b")).empty());
}

}  // namespace
}  // namespace kvcachefs::test
