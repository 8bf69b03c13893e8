#include "daemon/running_daemon.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>

#include "tests/support/disks.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::running_daemon_test {

TEST(Holders, AreNamedUpToThree) {
  std::vector<Holder> holders;
  EXPECT_EQ(text_of(holders), "");
  holders.push_back({17, "python3"});
  EXPECT_EQ(text_of(holders), "process 17 (python3)");
  holders.push_back({18, "sh"});
  holders.push_back({19, "a b"});
  EXPECT_EQ(text_of(holders), "process 17 (python3), process 18 (sh), process 19 (a b)");
  holders.push_back({20, "x"});
  holders.push_back({21, "x"});
  EXPECT_EQ(text_of(holders), "process 17 (python3), process 18 (sh), process 19 (a b) and 2 more");
}

TEST(Holders, OfNoDeviceThereAreNone) {
  EXPECT_TRUE(holders_of("").empty());
  EXPECT_TRUE(holders_of("4095:1048575").empty());
}

TEST(RunningDaemon, HasTheDirectoryAndAConnectionOpen) {
  KVCACHEFS_SKIP_IF(::access("/dev/fuse", R_OK | W_OK) == 0 ? std::string() : std::string("/dev/fuse"));
  const test::DiskDirectory place;
  EXPECT_EQ(find_daemon(place / "missing").error().code, ESRCH);
  EXPECT_EQ(find_daemon(place.path()).error().code, ESRCH);
  const test::File device("/dev/fuse", O_RDWR | O_CLOEXEC);
  EXPECT_EQ(find_daemon(place.path()).error().code, ESRCH) << "a daemon, of another directory";
  const test::File directory(place.path(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const auto found = find_daemon(place.path());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->pid, ::getpid());
  EXPECT_EQ(found->device_fd, device.fd());
}

}  // namespace kvcachefs::running_daemon_test
