// A user changes the attributes of an inode that has as many as it may, as fast as he can, while the disk is
// slow. The changes that wait for the catalog must not take more memory than is allowed for them.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "tests/support/disk_tier.h"
#include "tests/support/files.h"

namespace kvcachefs::test {
namespace {

constexpr uid_t kNobody = 65534;
constexpr int kValues = 4;
constexpr size_t kValueBytes = 60'000;
constexpr int kChanges = 2000;
constexpr int kFiles = 500;            // their xattrs are 120 MB
constexpr const char* kSize = "512M";  // a tmpfs counts an inode for each KiB of xattrs
#ifdef __SANITIZE_THREAD__
// Its own memory of all that was written is several times as much.
constexpr int64_t kMostGrowthMib = INT64_MAX, kLittleGrowthMib = INT64_MAX;
#else
constexpr int64_t kMostGrowthMib = 160;  // at most 64 changes wait, and malloc takes memory too
constexpr int64_t kLittleGrowthMib = 32;
#endif

class AttributesFloodTest : public DiskTierTest {
 protected:
  AttributesFloodTest() { ::setenv("KVCACHEFS_FAULT_FILE", fault_file().c_str(), 1); }
  ~AttributesFloodTest() override { ::unsetenv("KVCACHEFS_FAULT_FILE"); }
  std::string fault_file() const { return disk() / "fault"; }
  std::string mine(int number) { return path("mine-" + std::to_string(number)); }

  // Without the pages of the catalog, which are mapped and not held.
  int64_t resident_mib() {
    const std::string status = read_file("/proc/" + std::to_string(mount().server_pid()) + "/status");
    return std::atoll(status.c_str() + status.find("RssAnon:") + 8) / 1024;
  }
  // A user's files, each with as many xattrs as it may have, which the catalog knows.
  void make_files(int count) {
    ASSERT_EQ(
        as_user(kNobody, kNobody,
                [&] {
                  for (int number = 0; number < count; ++number) {
                    if (store(mine(number), "x") != 0) return 1;
                    for (int i = 0; i < kValues; ++i)
                      if (set_xattr(mine(number), "user.a" + std::to_string(i), pattern(i, kValueBytes)) != 0)
                        return 2;
                  }
                  return 0;
                }),
        0);
    ASSERT_EQ(sync_directory(), 0);
  }
  // A user makes his changes while no transaction ends. change() returns 0 or the number of what failed.
  void flood(const std::function<int(int number)>& change, bool has_to_wait) {
    const int64_t before_mib = resident_mib();
    Mapping shared(-1, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS);
    auto& done = *new (shared.data()) std::atomic<int>(0);
    ASSERT_EQ(store(fault_file(), "pause catalog committed\n"), 0);
    std::thread user([&] {
      EXPECT_EQ(as_user(kNobody, kNobody,
                        [&] {
                          for (; done < kChanges; ++done)
                            if (const int failed = change(done); failed != 0) return failed;
                          return 0;
                        }),
                0);
    });
    EXPECT_TRUE(eventually([&] { return exists(fault_file() + ".paused"); }));
    // The test goes on when the user waits or has made all changes.
    int last = -1;
    EXPECT_TRUE(eventually([&] {
      ::usleep(300'000);
      return std::exchange(last, done.load()) == done && done > 0;
    }));
    EXPECT_LT(resident_mib() - before_mib, kMostGrowthMib);
    EXPECT_EQ(done < kChanges, has_to_wait) << done;
    {
      const File another(path("another"), O_CREAT | O_RDWR);  // throws if others do not go on
      EXPECT_EQ(::write(another.fd(), "x", 1), 1);
    }
    ::unlink((fault_file() + ".paused").c_str());
    user.join();
    EXPECT_EQ(done, kChanges);
    EXPECT_LT(resident_mib() - before_mib, kMostGrowthMib);
    EXPECT_EQ(stat("catalog_errors"), 0);
  }
};

TEST_F(AttributesFloodTest, OneInodesChangesWaitOnce) {
  start();
  make_files(1);
  const int64_t before_mib = resident_mib();
  flood(
      [&](int number) {
        const timespec times[2] = {{number, 0}, {number, 0}};
        return ::utimensat(AT_FDCWD, mine(0).c_str(), times, 0) == 0 ? 0 : 1;
      },
      false);
  EXPECT_LT(resident_mib() - before_mib, kLittleGrowthMib);
  struct ::stat status {};
  ASSERT_EQ(::stat(mine(0).c_str(), &status), 0);
  EXPECT_EQ(status.st_mtim.tv_sec, kChanges - 1);
  stop_and_check();
  start();
  ASSERT_EQ(::stat(mine(0).c_str(), &status), 0);
  EXPECT_EQ(status.st_mtim.tv_sec, kChanges - 1);
}

TEST_F(AttributesFloodTest, XattrsOfManyWaitForTheCatalog) {
  start({.size = kSize});
  make_files(kFiles);
  flood([&](int number) { return set_xattr(mine(number % kFiles), "user.b", std::to_string(number)); }, true);
}

// One order of the owner's changes as many as a user likes.
TEST_F(AttributesFloodTest, AForgottenAgentsEntriesWaitForTheCatalog) {
  start({.size = kSize});
  make_files(kFiles);
  for (int number = 0; number < kFiles; ++number)
    ASSERT_EQ(set_xattr(mine(number), "user.kv.agent", "he"), 0);
  ASSERT_EQ(sync_directory(), 0);
  const int64_t before_mib = resident_mib();
  ASSERT_EQ(store(fault_file(), "pause catalog committed\n"), 0);
  std::atomic<bool> is_done = false;
  std::thread owner([&] {
    EXPECT_EQ(write_once(mount().control("forget_agent"), "he"), 0);
    is_done = true;
  });
  EXPECT_TRUE(eventually([&] { return exists(fault_file() + ".paused"); }));
  int64_t last_mib = -1;
  EXPECT_TRUE(eventually([&] {
    ::usleep(300'000);
    return std::exchange(last_mib, resident_mib()) == last_mib;
  }));
  EXPECT_LT(resident_mib() - before_mib, kMostGrowthMib);
  EXPECT_FALSE(is_done);
  ::unlink((fault_file() + ".paused").c_str());
  owner.join();
  for (int number = 0; number < kFiles; ++number)
    ASSERT_EQ(::getxattr(mine(number).c_str(), "user.kv.agent", nullptr, 0), -1) << number;
}

// The catalog is told of what has changed, not of the inode's xattrs.
TEST_F(AttributesFloodTest, AttributesAndNamesOfManyAreSmall) {
  start({.size = kSize});
  make_files(kFiles);
  const int64_t before_mib = resident_mib();
  flood(
      [&](int number) {
        const std::string name = mine(number % kFiles), other = name + "-other";
        if (::chmod(name.c_str(), number % 2 == 0 ? 0600 : 0644) != 0) return 1;
        if (::rename(name.c_str(), other.c_str()) != 0) return 2;
        if (::link(other.c_str(), name.c_str()) != 0) return 3;
        return ::unlink(other.c_str()) == 0 ? 0 : 4;
      },
      false);
  EXPECT_LT(resident_mib() - before_mib, kLittleGrowthMib);
  stop_and_check();
  start({.size = kSize});
  for (int i = 0; i < kValues; ++i)
    EXPECT_EQ(xattr(mine(7), "user.a" + std::to_string(i)), pattern(i, kValueBytes));
}

TEST_F(AttributesFloodTest, AnInodeHasRoomForSoMany) {
  start();
  write_file(path("mine"), "x");
  const std::string value = pattern(1, 64 << 10);
  int set = 0;
  while (set < 100 && set_xattr(path("mine"), "user.a" + std::to_string(set), value) == 0) ++set;
  EXPECT_EQ(set, 3);
  EXPECT_EQ(error_name(set_xattr(path("mine"), "user.b", value)), "ENOSPC");
  EXPECT_EQ(error_name(set_xattr(path("mine"), "user.a1", pattern(2, 64 << 10))), "ok")
      << "no more than before";
  EXPECT_EQ(xattr(path("mine"), "user.a1"), pattern(2, 64 << 10));
  EXPECT_EQ(error_name(set_xattr(path("mine"), "user.small", "1")), "ok");
}

}  // namespace
}  // namespace kvcachefs::test
