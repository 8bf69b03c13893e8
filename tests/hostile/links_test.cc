// A file with more names than can be removed in one go. Its discard takes long, but other clients do not wait
// for it, least of all the users of other pools. A pool with more directories than can be looked at in one go
// is no reason to hang, either.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "tests/support/disk_tier.h"
#include "tests/support/files.h"

namespace kvcachefs::test {
namespace {

constexpr uid_t kNobody = 65534;
constexpr int kLinks = 250;
constexpr int kDirectories = 200;

class LinksTest : public DiskTierTest {
 protected:
  LinksTest() {
    ::setenv("KVCACHEFS_FAULT_FILE", fault_file().c_str(), 1);
    ::setenv("KVCACHEFS_DAEMON_ARGS", "-o hang_after=4", 1);
  }
  ~LinksTest() override {
    ::unsetenv("KVCACHEFS_FAULT_FILE");
    ::unsetenv("KVCACHEFS_DAEMON_ARGS");
  }
  std::string fault_file() const { return disk() / "fault"; }
};

TEST_F(LinksTest, AreNoReasonToHang) {
  start_pool("p:size=16M");
  ASSERT_EQ(as_user(kNobody, kNobody,
                    [&] {
                      if (::mkdir(path("links").c_str(), 0755) != 0) return 1;
                      if (store(path("links/0"), pattern(1, 8 * kMiB)) != 0) return 2;
                      for (int i = 1; i < kLinks; ++i)
                        if (::link(path("links/0").c_str(), path("links/" + std::to_string(i)).c_str()) != 0)
                          return 3;
                      return 0;
                    }),
            0);
  const pid_t serving = mount().serving_pid();
  ASSERT_EQ(store(fault_file(), "slow name discarded\n"), 0);
  fill_pool("e", 12);
  // The evictor may be working on the file when an order looks for it.
  EXPECT_TRUE(eventually(
      [&] { return write_once(mount().control("evict"), "100%") == 0 && list(path("links")).empty(); },
      std::chrono::seconds(60)));
  EXPECT_EQ(mount().serving_pid(), serving) << "whoever discards them was taken for hung";
  ::unlink(fault_file().c_str());
  EXPECT_EQ(error_name(store(path("after"), pattern(2, 8 * kMiB))), "ok");
}

TEST_F(LinksTest, AnFsyncOfThePoolGetsOn) {
  start({.more = "durability=none"});
  for (int i = 0; i < kDirectories; ++i) make_directory(path("d" + std::to_string(i)));
  const pid_t serving = mount().serving_pid();
  ASSERT_EQ(store(fault_file(), "slow looked at a name\n"), 0);
  EXPECT_EQ(as_user(kNobody, kNobody,
                    [&] {
                      const File root(mount().path(), O_RDONLY | O_DIRECTORY);
                      return error_of(::fsync(root.fd()));
                    }),
            0);
  EXPECT_EQ(mount().serving_pid(), serving) << "whoever looks at them was taken for hung";
}

}  // namespace
}  // namespace kvcachefs::test
