// A write with passthrough holds the lock of the tmpfs's inode until the pages of its source are there, and
// they may be ones that only the daemon can give. The daemon waits for no such lock.
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/pool_pressure.h"

namespace kvcachefs::test {
namespace {

constexpr uid_t kOwner = 1000;

// Writes much, so that the evictor follows the writer, and last from a page of a control file that lists
// entries shard by shard.
int write_from_own_listing(const std::string& pool) {
  const int listing = ::open((pool + "/.pool/entries").c_str(), O_RDONLY);
  const int file = ::open((pool + "/evil").c_str(), O_WRONLY | O_CREAT, 0644);
  if (listing < 0 || file < 0) return 2;
  void* const page = ::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, listing, 0);
  if (page == MAP_FAILED) return 3;
  std::vector<char> much(96 * kMiB);
  for (int i = 0; i < 3; ++i) {
    const std::array<iovec, 2> pieces{iovec{much.data(), much.size()}, iovec{page, 4096}};
    if (::pwritev(file, pieces.data(), pieces.size(), 0) <= 0) return 4;
  }
  return 0;
}

TEST(StalledWriterTest, WhoWaitsForTheDaemonWithAnInodesLockGetsOn) {
  KVCACHEFS_NEED_DAEMON();
  Mount mount({.pools = {"p:size=1G,uid=1000,gid=1000", "q:size=64M"}, .options = {"hang_after=10"}});
  mount.stop_squeezing();
  fill(mount.path("p"), "seed", 3);
  const pid_t serving = mount.serving_pid();
  const pid_t writer = ::fork();
  if (writer == 0) {
    (void)::setgroups(0, nullptr);
    if (::setgid(kOwner) != 0 || ::setuid(kOwner) != 0) ::_exit(1);
    ::_exit(write_from_own_listing(mount.path("p")));
  }
  int status = -1;
  EXPECT_TRUE(eventually([&] { return ::waitpid(writer, &status, WNOHANG) == writer; }));
  EXPECT_EQ(status, 0);
  fill(mount.path("q"), "other", 3);
  EXPECT_EQ(mount.serving_pid(), serving);
  mount.stop();
}

}  // namespace
}  // namespace kvcachefs::test
