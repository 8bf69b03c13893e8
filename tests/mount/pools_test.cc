// Pools as directories of the mount's root, and the other calls that are refused there.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::test {
namespace {

constexpr uint64_t kMiB = 1 << 20;

class PoolsTest : public SharedMount<PoolsTest> {
 public:
  static MountOptions options() {
    return {.pools = {"p:size=64M", "q:size=32M,mode=0750,uid=12,gid=34,policy=fifo"}};
  }

 protected:
  static std::string root(std::string_view name) { return mount().root() + "/" + std::string(name); }
  static uint64_t size_of_pool(const std::string& name) {
    struct statvfs status {};
    EXPECT_EQ(::statvfs(root(name).c_str(), &status), 0);
    return status.f_blocks * status.f_frsize;
  }
  static struct stat status_of(const std::string& path) {
    struct stat status {};
    EXPECT_EQ(::lstat(path.c_str(), &status), 0) << path;
    return status;
  }
};

TEST_F(PoolsTest, RootListsThePoolsAlone) {
  EXPECT_EQ(list(mount().root()), (std::vector<std::string>{"p", "q"}));
  EXPECT_EQ(list(mount().path()), std::vector<std::string>());
  EXPECT_TRUE(exists(root(".kvcachefs/version")));
  EXPECT_TRUE(exists(mount().control("stats")));
}

TEST_F(PoolsTest, MountInfoNamesUs) {
  const auto entries = mounts_below(mount().root());
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].type, "fuse.kvcachefs");
  EXPECT_EQ(entries[0].source, "kvcachefs");
  EXPECT_NE(entries[0].options.find("nosuid"), std::string::npos) << entries[0].options;
  EXPECT_NE(entries[0].options.find("nodev"), std::string::npos) << entries[0].options;
}

// The daemon gives the removed pool's memory back while a client makes the pool again at once.
TEST_F(PoolsTest, MadeAnewAsSoonAsItIsRemoved) {
  for (int round = 0; round < 300; ++round) {
    ASSERT_EQ(error_of(::mkdir(root("again").c_str(), 0755)), 0) << round;
    ASSERT_EQ(error_name(store(root("again/e"), pattern(round, 5000))), "ok") << round;
    ASSERT_EQ(difference(round, read_file(root("again/e"))), "") << round;
    ASSERT_EQ(error_of(::unlink(root("again/e").c_str())), 0) << round;
    ASSERT_EQ(error_of(::rmdir(root("again").c_str())), 0) << round;
  }
}

TEST_F(PoolsTest, StatfsIsThePoolsOwn) {
  struct statvfs status {};
  ASSERT_EQ(::statvfs(mount().path("q").c_str(), &status), 0);
  EXPECT_EQ(status.f_bsize, 4096u);
  EXPECT_EQ(status.f_frsize, 4096u);
  // All entries in memory have to be on the disk too (durability=writeback), and so a pool holds as much as
  // its larger tier.
  const uint64_t disk = every_pool_spills() ? kMiB << 11 : 0;
  EXPECT_EQ(status.f_blocks, std::max(30 * kMiB, disk) / 4096) << "a sixteenth is kept free for writers";
  EXPECT_LE(status.f_bfree, status.f_bavail);
  EXPECT_EQ(size_of_pool("p"), std::max(60 * kMiB, disk));
}

TEST_F(PoolsTest, AvailableCountsWhatMayBeEvicted) {
  mount().stop_squeezing();
  for (int i = 0; i < 20; ++i) ASSERT_EQ(store(path("e" + std::to_string(i)), pattern(i, kMiB)), 0);
  EXPECT_TRUE(eventually([] {
    struct statvfs status {};
    ::statvfs(mount().path().c_str(), &status);
    const uint64_t free = status.f_bfree * 4096;
    const uint64_t available = status.f_bavail * 4096;
    const uint64_t size = size_of_pool("p");
    return free <= size - 19 * kMiB && free >= size - 24 * kMiB && available == size;
  }));
}

TEST_F(PoolsTest, RootDirectoryOfAPoolAsConfigured) {
  const struct stat p = status_of(mount().path("p"));
  EXPECT_EQ(p.st_mode, S_IFDIR | 01777u);
  const struct stat q = status_of(mount().path("q"));
  EXPECT_EQ(q.st_mode, S_IFDIR | 0750u);
  EXPECT_EQ(q.st_uid, 12u);
  EXPECT_EQ(q.st_gid, 34u);
  // The upper 16 bits hold the pool's number, so that no inode number occurs in two pools.
  EXPECT_NE(p.st_ino >> 48, q.st_ino >> 48);
  EXPECT_EQ(status_of(mount().path("p") + "/..").st_ino, status_of(mount().root()).st_ino);
}

TEST_F(PoolsTest, MakeAndRemove) {
  ASSERT_EQ(error_of(::mkdir(root("new").c_str(), 0755)), 0);
  EXPECT_EQ(list(mount().root()), (std::vector<std::string>{"new", "p", "q"}));
  EXPECT_GE(size_of_pool("new"), 16 * kMiB);
  EXPECT_EQ(read_file(mount().control("policy", "new")), "lru\n");
  EXPECT_EQ(error_of(::mkdir(root("new").c_str(), 0755)), EEXIST);
  ASSERT_EQ(store(root("new/file"), "content"), 0);
  EXPECT_EQ(error_of(::rmdir(root("new").c_str())), ENOTEMPTY);
  EXPECT_EQ(read_file(root("new/file")), "content");
  EXPECT_EQ(error_of(::unlink(root("new/file").c_str())), 0);
  const size_t mounts = mounts_below(mount().runtime_dir()).size();
  EXPECT_EQ(error_of(::rmdir(root("new").c_str())), 0);
  EXPECT_EQ(list(mount().root()), (std::vector<std::string>{"p", "q"}));
  EXPECT_FALSE(exists(root("new/.pool/stats")));
  EXPECT_TRUE(eventually([&] { return mounts_below(mount().runtime_dir()).size() == mounts - 1; }));
  EXPECT_EQ(error_of(::rmdir(root("new").c_str())), ENOENT);
  // The name is free again, but the old content does not come back.
  ASSERT_EQ(error_of(::mkdir(root("new").c_str(), 0755)), 0);
  EXPECT_EQ(error_of(::access(root("new/file").c_str(), F_OK)), ENOENT);
  EXPECT_EQ(error_of(::rmdir(root("new").c_str())), 0);
}

TEST_F(PoolsTest, RemovedWhileAFileOfItIsOpen) {
  ASSERT_EQ(error_of(::mkdir(root("new").c_str(), 0755)), 0);
  File file(root("new/file"), O_RDWR | O_CREAT);
  ASSERT_EQ(::write(file.fd(), "content", 7), 7);
  ASSERT_EQ(error_of(::unlink(root("new/file").c_str())), 0);
  const int error = error_of(::rmdir(root("new").c_str()));
  // Refusing, and taking the pool apart at the last close, are both correct; losing the open file is not.
  EXPECT_TRUE(error == 0 || error == EBUSY || error == ENOTEMPTY) << error_name(error);
  EXPECT_EQ(read_at(file.fd(), 0, 100), "content");
  if (error == 0) return;
  file.close();
  EXPECT_TRUE(eventually([] { return ::rmdir(root("new").c_str()) == 0; }));
}

TEST_F(PoolsTest, BadNames) {
  for (const std::string& name : {std::string(65, 'x'), std::string(".hidden"), std::string("with space"),
                                  std::string("a\nb"), std::string("\xc3\xa4"), std::string("a:b")}) {
    EXPECT_NE(error_of(::mkdir(root(name).c_str(), 0755)), 0) << name;
  }
  EXPECT_EQ(list(mount().root()), (std::vector<std::string>{"p", "q"}));
  const std::string longest(64, 'x');
  EXPECT_EQ(error_of(::mkdir(root(longest).c_str(), 0755)), 0);
  EXPECT_EQ(error_of(::rmdir(root(longest).c_str())), 0);
}

TEST_F(PoolsTest, NothingElseIsMadeInTheRoot) {
  EXPECT_EQ(error_of(::open(root("file").c_str(), O_RDWR | O_CREAT, 0644)), EPERM);
  EXPECT_EQ(error_of(::symlink("p", root("link").c_str())), EPERM);
  EXPECT_EQ(error_of(::mkfifo(root("pipe").c_str(), 0644)), EPERM);
  EXPECT_EQ(error_of(::mknod(root("node").c_str(), S_IFREG | 0644, 0)), EPERM);
  EXPECT_NE(error_of(::rename(mount().path().c_str(), root("other").c_str())), 0);
  EXPECT_NE(error_of(::rename(mount().path("p").c_str(), mount().path("q").c_str())), 0);
  EXPECT_NE(error_of(::unlink(mount().path().c_str())), 0);
  EXPECT_NE(error_of(::rmdir(root(".kvcachefs").c_str())), 0);
  EXPECT_EQ(list(mount().root()), (std::vector<std::string>{"p", "q"}));
}

TEST_F(PoolsTest, UsersMakeNoPools) {
  EXPECT_EQ(as_user(1234, 1234, [] { return error_of(::mkdir(root("mine").c_str(), 0755)); }), EACCES);
  EXPECT_EQ(as_user(1234, 1234, [] { return error_of(::rmdir(mount().path("p").c_str())); }), EACCES);
}

TEST_F(PoolsTest, NothingCrossesFromPoolToPool) {
  ASSERT_EQ(store(path("file"), "content"), 0);
  EXPECT_EQ(error_of(::rename(path("file").c_str(), root("q/file").c_str())), EXDEV);
  EXPECT_EQ(error_of(::link(path("file").c_str(), root("q/file").c_str())), EXDEV);
  const int into_root = error_of(::rename(path("file").c_str(), root("file").c_str()));
  EXPECT_TRUE(into_root == EXDEV || into_root == EPERM) << error_name(into_root);
  EXPECT_EQ(read_file(path("file")), "content");
  ASSERT_EQ(store(root("q/file"), "another"), 0);
  EXPECT_EQ(read_file(path("file")), "content");
  EXPECT_EQ(error_of(::unlink(root("q/file").c_str())), 0);
}

TEST_F(PoolsTest, CopiesCross) {
  const std::string content = pattern(1, 3 * kMiB + 17);
  ASSERT_EQ(store(path("file"), content), 0);
  {
    const File from(path("file"), O_RDONLY);
    const File to(root("q/copy"), O_RDWR | O_CREAT);
    size_t copied = 0;
    while (copied < content.size()) {
      const ssize_t got = ::copy_file_range(from.fd(), nullptr, to.fd(), nullptr, content.size(), 0);
      ASSERT_GT(got, 0) << error_name(error_of(got));
      copied += got;
    }
  }
  EXPECT_EQ(difference(1, read_file(root("q/copy"))), "");
  EXPECT_EQ(error_of(::unlink(root("q/copy").c_str())), 0);
}

TEST(DefaultPool, AQuarterOfMemoryIfNoneIsNamed) {
  KVCACHEFS_NEED_DAEMON();
  Mount mount({.pools = {}});
  EXPECT_EQ(list(mount.root()), std::vector<std::string>{"default"});
  const uint64_t memory =
      static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t size = static_cast<uint64_t>(mount.stat_value("size_bytes", "default"));
  // The memory is what the kernel reports, or a memory cgroup's limit if that is less.
  EXPECT_LE(size, memory / 4 + memory / 50);
  EXPECT_GT(size, 16 * kMiB);
  mount.stop();
}

}  // namespace
}  // namespace kvcachefs::test
