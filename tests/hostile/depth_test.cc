// A user without rights makes nested directories, as many as there are inodes: more than a stack or a table
// of descriptors has room for. Each walk of his pool has to come to its end, in time proportional to their
// number.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstdlib>
#include <string>

#include "tests/support/disk_tier.h"
#include "tests/support/files.h"
#include "tests/support/pool_pressure.h"
#include "tests/support/program.h"

namespace kvcachefs::test {
namespace {

constexpr uid_t kNobody = 65534;
constexpr int kLevels = 19500;
constexpr rlim_t kStackBytes = 1 << 20;  // a user's tree must not decide how much stack a server needs

// dig() makes `levels` nested directories, with a file in the first and in the last. Returns 0 or the errno
// of the failed step.
int dig(const std::string& top, int levels) {
  if (::mkdir(top.c_str(), 0777) != 0 || store(top + "/shallow", pattern(1, 8192)) != 0) return errno;
  int at = ::open(top.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  for (int level = 1; level < levels; ++level) {
    if (::mkdirat(at, "d", 0777) != 0) return errno;
    const int inner = ::openat(at, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (inner < 0) return errno;
    ::close(at);
    at = inner;
  }
  const File deep(::openat(at, "deep", O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  const std::string content = pattern(2, 8192);
  const bool written = ::write(deep.fd(), content.data(), content.size()) == 8192;
  ::close(at);
  return written ? 0 : errno;
}

// fill_depth() stores `files` of 1 MiB each in a directory whose path is twice as long as PATH_MAX. Returns 0
// or the errno of the failed step.
int fill_depth(const std::string& top, int files) {
  const std::string name(200, 'd');
  if (::mkdir(top.c_str(), 0777) != 0 || ::chdir(top.c_str()) != 0) return errno;
  for (size_t length = 0; length < 2 * PATH_MAX; length += name.size())
    if (::mkdir(name.c_str(), 0777) != 0 || ::chdir(name.c_str()) != 0) return errno;
  for (int i = 0; i < files; ++i)
    if (const int error = store(std::to_string(i), pattern(3, kMiB)); error != 0) return error;
  return 0;
}

// depth_of() returns the number of levels, and in `content` the bytes of the file in the last one.
int depth_of(const std::string& top, std::string* content = nullptr) {
  int levels = 1;
  int at = ::open(top.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  for (int inner; (inner = ::openat(at, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0; ++levels) {
    ::close(at);
    at = inner;
  }
  const int deep = ::openat(at, "deep", O_RDONLY | O_CLOEXEC);
  if (content != nullptr) *content = deep < 0 ? error_name(errno) : read_at(deep, 0, 8192);
  ::close(deep);
  ::close(at);
  return levels;
}

class DepthTest : public DiskTierTest {
 protected:
  DepthTest() {
    ::getrlimit(RLIMIT_STACK, &usual_);
    const rlimit small{kStackBytes, usual_.rlim_max};
    ::setrlimit(RLIMIT_STACK, &small);
  }
  ~DepthTest() override { ::setrlimit(RLIMIT_STACK, &usual_); }

  void dig_as_nobody(const std::string& name, int levels = kLevels) {
    ASSERT_EQ(as_user(kNobody, kNobody, [&] { return dig(path(name), levels); }), 0);
  }
  void expect_whole(const std::string& name) {
    EXPECT_EQ(difference(1, read_file(path(name + "/shallow"))), "");
    std::string deep;
    EXPECT_EQ(depth_of(path(name), &deep), kLevels);
    EXPECT_EQ(difference(2, deep), "");
  }
  void kill_server() {
    const pid_t serving = mount().serving_pid();
    ASSERT_GT(serving, 0);
    ASSERT_EQ(::kill(serving, SIGKILL), 0);
    // The next serving process answers this.
    EXPECT_TRUE(exists(mount().control("stats")));
    EXPECT_NE(mount().serving_pid(), serving);
  }

 private:
  rlimit usual_{};
};

TEST_F(DepthTest, ATakeoverComesToTheEnd) {
  start({.size = "128M"});
  dig_as_nobody("t");
  kill_server();
  expect_whole("t");
  kill_server();
  expect_whole("t");
}

TEST_F(DepthTest, ADiskIsGivenToAPoolThatServes) {
  start_pool("p:size=128M");
  dig_as_nobody("t");

  ASSERT_EQ(write_once(mount().root() + "/.kvcachefs/pools/p/spill", spill_file() + " 256M"), 0);
  expect_whole("t");
  kill_server();
  expect_whole("t");
}

TEST_F(DepthTest, DurabilityIsAskedForLater) {
  start({.size = "128M", .more = "durability=none"});
  dig_as_nobody("t");
  set("durability", "writeback");
  expect_whole("t");
}

TEST_F(DepthTest, ARestartRestoresTheCatalog) {
  start({.size = "128M", .more = "durability=none"});
  dig_as_nobody("t");
  set("durability", "writeback");
  // The kernel tells no path of the file in the last directory. It is found, and copied at the next try.
  EXPECT_TRUE(becomes("dirty_entries", 1));
  EXPECT_TRUE(eventually([&] { return sync_directory() == 0; }));
  EXPECT_EQ(stat("dirty_entries"), 0);
  stop_and_check();
  start({.size = "128M"});
  expect_whole("t");
}

// Entries without a path leave like others: for whoever needs the room, and by an order.
TEST_F(DepthTest, EntriesInTheDepthLeave) {
  start_pool("p:size=64M");
  ASSERT_EQ(as_user(kNobody, kNobody, [&] { return fill_depth(path("t"), 40); }), 0);
  EXPECT_GE(tmpfs_used_bytes(mount()), 40 * kMiB);
  for (int i = 0; i < 50; ++i)
    ASSERT_EQ(error_name(store(path("other-" + std::to_string(i)), pattern(1, kMiB))), "ok") << i;
  ASSERT_EQ(write_once(mount().control("evict"), "100%"), 0);
  EXPECT_EQ(stat("entries"), 0);
  EXPECT_LT(tmpfs_used_bytes(mount()), 8 * kMiB);
}

TEST_F(DepthTest, APoolIsDeletedWithWhatIsInIt) {
  start_pool("p:size=128M");
  dig_as_nobody("t");
  const Outcome deleted = run({"kvcachefs", "--mount", mount().root(), "delete", "--force", "p"});
  EXPECT_EQ(deleted.exit_code, 0) << deleted.out << deleted.error;
  EXPECT_FALSE(exists(mount().path()));
}

}  // namespace
}  // namespace kvcachefs::test
