// A serving daemon: how it takes requests, what it says about that, and the mounts in which it keeps the
// bytes.
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::test {
namespace {

using ::testing::HasSubstr;

class ServingTest : public ::testing::Test {
 protected:
  void SetUp() override { KVCACHEFS_NEED_DAEMON(); }
};

TEST_F(ServingTest, PollsForRequestsIfItIsTold) {
  Mount mount({.options = {"poll_us=50"}});
  // The daemon serves a moment before its statistics are complete.
  ASSERT_TRUE(eventually([&] { return mount.log().find(" serves ") != std::string::npos; })) << mount.log();
  const auto stats = parse_stats(read_file(mount.root() + "/.kvcachefs/stats"));
  EXPECT_EQ(stats.at("poll_us"), mode() == Mode::kIoUring ? "0" : "50");
  std::vector<std::thread> clients;
  for (int client = 0; client < 4; ++client) {
    clients.emplace_back([&, client] {
      for (int i = 0; i < 200; ++i) {
        const std::string name = mount.path() + "/e-" + std::to_string(client);
        EXPECT_EQ(store(name, pattern(i, 1000)), 0);
        EXPECT_EQ(difference(i, read_file(name)), "");
      }
    });
  }
  for (std::thread& client : clients) client.join();
  mount.stop();
}

// This kernel offers passthrough to root, so that only the option prevents it; without CAP_SYS_ADMIN there is
// no mount.
TEST_F(ServingTest, SaysWhyThereIsNoPassthrough) {
  Mount mount;
  ASSERT_TRUE(eventually([&] { return mount.log().find(" serves ") != std::string::npos; })) << mount.log();
  const bool said =
      mount.log().find("<6>no passthrough: no_passthrough asks for none\n") != std::string::npos;
  EXPECT_EQ(said, mode() == Mode::kDaemonIo) << mount.log();
  EXPECT_EQ(mount.log().find("no passthrough: ") != std::string::npos, said) << mount.log();
  mount.stop();
}

TEST_F(ServingTest, AShellsLimitOnTheSizeOfFilesIsNoLimitOfEntries) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit low{64 << 10, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  Mount mount;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  const pid_t serving = mount.serving_pid();
  EXPECT_EQ(error_name(store(mount.path() + "/entry", pattern(1, 1 << 20))), "ok");
  EXPECT_EQ(difference(1, read_file(mount.path() + "/entry")), "");
  EXPECT_EQ(mount.serving_pid(), serving);
  mount.stop();
}

bool kernel_has_noswap() {
  try {
    const PlainTmpfs tmpfs("size=1M,noswap");
    return true;
  } catch (const MountError&) {
    return false;  // before Linux 6.4
  }
}

TEST_F(ServingTest, PoolsLieInMountsOfTheirOwn) {
  Mount mount({.pools = {"p:size=64M", "q:size=32M"}});
  const std::vector<MountPoint> own = mounts_below(mount.runtime_dir());
  ASSERT_EQ(own.size(), 2u);
  for (const MountPoint& entry : own) {
    EXPECT_EQ(entry.type, "tmpfs");
    const std::string options = "," + entry.options + ",";
    EXPECT_THAT(options, HasSubstr(",nosuid,nodev,"));
    const bool first = &entry == &own.front();  // in the order in which they were made
    for (const char* option :
         {first ? "size=65536k" : "size=32768k", "mode=700", "huge=within_size", "inode64"})
      EXPECT_THAT(options, HasSubstr("," + std::string(option) + ","));
    if (kernel_has_noswap()) {
      EXPECT_THAT(options, HasSubstr(",noswap,"));
    }
    // Only root can reach the bytes past the mount.
    struct stat status {};
    const std::string directory = std::filesystem::path(entry.directory).parent_path();
    ASSERT_EQ(::stat(directory.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0700u) << directory;
    EXPECT_EQ(as_user(1234, 2345, [&] { return exists(entry.directory + "/tree") ? 1 : 0; }), 0);
  }
  mount.stop();
}

TEST_F(ServingTest, EndsWhenSomebodyUnmountsIt) {
  Mount mount;
  mount.stop_squeezing();  // the squeezer has files of the mount open
  ASSERT_EQ(store(mount.path() + "/entry", "content"), 0);
  EXPECT_FALSE(mounts_below(mount.runtime_dir()).empty());
  ASSERT_EQ(::umount2(mount.root().c_str(), 0), 0);
  EXPECT_EQ(mount.wait_for_exit(std::chrono::seconds(60)), 0) << mount.log();
  EXPECT_THAT(mount.log(), HasSubstr("unmounted from outside"));
  EXPECT_TRUE(mounts_below(mount.runtime_dir()).empty());
  EXPECT_EQ(list(mount.runtime_dir()), std::vector<std::string>());
}

// The kernel gives the number of an unmounted file system's device to the next one.
TEST_F(ServingTest, UnmountsNoOtherMountThatHasItsDeviceNumber) {
  const auto device = [](const Mount& mount) {
    struct stat status {};
    return ::stat(mount.root().c_str(), &status) == 0 ? status.st_dev : 0;
  };
  std::vector<std::unique_ptr<Mount>> others;
  for (int attempt = 0; attempt < 40; ++attempt) {
    // The kernel assigns the lowest free number, and the other mount's pool takes a number before that mount.
    auto lower = std::make_unique<PlainTmpfs>("size=1M");
    Mount mount;
    mount.stop_squeezing();
    const dev_t number = device(mount);
    ASSERT_EQ(::kill(mount.server_pid(), SIGSTOP), 0);
    ASSERT_EQ(::umount2(mount.root().c_str(), 0), 0);
    lower.reset();
    // A mount of another test may get the number meanwhile.
    others.push_back(std::make_unique<Mount>());
    Mount& other = *others.back();
    ASSERT_EQ(::kill(mount.server_pid(), SIGCONT), 0);
    EXPECT_EQ(mount.wait_for_exit(std::chrono::seconds(60)), 0) << mount.log();
    if (device(other) != number) continue;
    EXPECT_EQ(store(other.path() + "/file", "content"), 0);
    other.stop();
    return;
  }
  FAIL() << "no mount was given the number of one before";
}

}  // namespace
}  // namespace kvcachefs::test
