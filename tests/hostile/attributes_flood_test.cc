// A user changes the attributes of an inode that has as many as it may, as fast as he can, while the disk is
// slow. The changes that wait for the catalog must not take more memory than is allowed for them.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
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
constexpr int64_t kMostGrowthMib = 160;  // at most 64 changes wait, and malloc takes memory too

class AttributesFloodTest : public DiskTierTest {
 protected:
  AttributesFloodTest() { ::setenv("KVCACHEFS_FAULT_FILE", fault_file().c_str(), 1); }
  ~AttributesFloodTest() override { ::unsetenv("KVCACHEFS_FAULT_FILE"); }
  std::string fault_file() const { return disk() / "fault"; }

  int64_t resident_mib() {
    const std::string status = read_file("/proc/" + std::to_string(mount().server_pid()) + "/status");
    return std::atoll(status.c_str() + status.find("VmRSS:") + 6) / 1024;
  }
};

TEST_F(AttributesFloodTest, WaitsForTheCatalog) {
  start();
  ASSERT_EQ(
      as_user(kNobody, kNobody,
              [&] {
                if (store(path("mine"), "x") != 0) return 1;
                for (int i = 0; i < kValues; ++i)
                  if (set_xattr(path("mine"), "user.a" + std::to_string(i), pattern(i, kValueBytes)) != 0)
                    return 2;
                return 0;
              }),
      0);
  {
    const File file(path("mine"), O_RDONLY);
    ASSERT_EQ(::fsync(file.fd()), 0);
  }
  const int64_t before_mib = resident_mib();
  Mapping shared(-1, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS);
  auto& done = *new (shared.data()) std::atomic<int>(0);
  ASSERT_EQ(store(fault_file(), "pause disk flushed\n"), 0);
  std::thread user([&] {
    EXPECT_EQ(as_user(kNobody, kNobody,
                      [&] {
                        for (; done < kChanges; ++done) {
                          const timespec times[2] = {{done, 0}, {done, 0}};
                          if (::utimensat(AT_FDCWD, path("mine").c_str(), times, 0) != 0) return 1;
                        }
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
  EXPECT_LT(done, kChanges) << "nobody waits";
  EXPECT_EQ(error_name(store(path("another"), "others go on")), "ok");
  ::unlink((fault_file() + ".paused").c_str());
  user.join();
  EXPECT_EQ(done, kChanges);
  EXPECT_LT(resident_mib() - before_mib, kMostGrowthMib);
  EXPECT_EQ(stat("catalog_errors"), 0);
  struct ::stat status {};
  ASSERT_EQ(::stat(path("mine").c_str(), &status), 0);
  EXPECT_EQ(status.st_mtim.tv_sec, kChanges - 1);
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
