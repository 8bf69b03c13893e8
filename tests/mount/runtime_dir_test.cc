// The runtime directory and the names in it.
#include "daemon/runtime_dir.h"

#include <unistd.h>

#include <string>

#include "gmock/gmock.h"
#include "tests/support/disks.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/pool_pressure.h"
#include "tests/support/program.h"

namespace kvcachefs::test {
namespace {

// Descriptors are told by the kernel without the link: by the name with it nothing would be evicted.
TEST(RuntimeDirTest, ALinkOnTheWayCostsNothing) {
  KVCACHEFS_NEED_DAEMON();
  const DiskDirectory base;
  make_directory(base / "real", 0700);
  ASSERT_EQ(::symlink((base / "real").c_str(), (base / "link").c_str()), 0);
  Mount mount({.pools = {"p:size=16M"}, .runtime_dir = base / "link/run"});
  for (int i = 0; i < 40; ++i)
    EXPECT_EQ(error_name(store(mount.path() + "/e" + std::to_string(i), pattern(i, kMiB))), "ok") << i;
  mount.stop();
}

// Its standard error would stay the caller's, who may wait for the end of that.
TEST(RuntimeDirTest, ADaemonInTheBackgroundNeedsANameForItsLog) {
  KVCACHEFS_NEED_DAEMON();
  const DiskDirectory base;
  std::string root = base / "mnt";
  while (escape_path(root).size() + std::string(".mount").size() < 255) root += 'x';
  make_directory(root);
  const Outcome outcome = run({"kvcachefsd", "--daemonize", "--pool", "p:size=16M", "-o",
                               "state_dir=none,runtime_dir=" + (base / "run"), root});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.error, ::testing::HasSubstr(".mount.log.1: a longer name than a file may have"));
  EXPECT_TRUE(mounts_below(root).empty());
}

}  // namespace
}  // namespace kvcachefs::test
