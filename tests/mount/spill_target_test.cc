// The targets to which a pool may spill: files on a disk and block devices without foreign data, each for one
// pool.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/disk_tier.h"
#include "tests/support/files.h"
#include "tests/support/program.h"
#include "tier/catalog/catalog.h"
#include "tier/disk/spill_orders.h"

namespace kvcachefs::test {
namespace {

#define KVCACHEFS_NEED_LOOP_DEVICE() \
  KVCACHEFS_SKIP_IF(LoopDevice::available() ? std::string() : std::string("loop devices"))

class FileSystem {
 public:
  FileSystem(const char* type, const std::string& source, const std::string& options) {
    EXPECT_EQ(error_name(error_of(::mount(source.c_str(), path().c_str(), type, MS_NODEV, options.c_str()))),
              "ok")
        << type;
  }
  ~FileSystem() { ::umount2(path().c_str(), MNT_DETACH); }
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;
  const std::string& path() const { return directory_.path(); }

 private:
  const DiskDirectory directory_;
};

class SpillTargetTest : public DiskTierTest {
 protected:
  std::string on(const std::string& where, const std::string& more = "") {
    return "p:size=32M,spill=" + where + ",catalog=" + (disk() / "catalog") + more;
  }
  void expect_refused(const std::string& pool, const std::vector<std::string>& words) {
    const std::string said = refusal({pool});
    EXPECT_NE(said, "") << "it serves " << pool;
    for (const std::string& word : words)
      EXPECT_NE(said.find(word), std::string::npos) << word << ":\n" << said;
  }
};

// The file would be on the disk below, where no one looks for it.
TEST_F(SpillTargetTest, NotWhereFstabHasADiskThatIsNotMounted) {
  const std::string fstab = disk() / "fstab";
  std::filesystem::create_directory(disk() / "data");
  write_file(fstab, "/dev/nothing " + (disk() / "data") + " ext4 nofail 0 0\n");
  ::setenv("LIBMOUNT_FSTAB", fstab.c_str(), 1);
  const std::string file = disk() / "data/spill";
  expect_refused(on(file, ",spill_size=64M"), {"pool p", "fstab", disk() / "data", "is not mounted"});
  expect_refused("p:size=32M,spill=" + spill_file() + ",spill_size=64M,catalog=" + (disk() / "data/catalog"),
                 {"data/catalog: the file system", "is not mounted"});
  start_pool("p:size=32M");
  EXPECT_EQ(error_name(write_once(mount().administrators("spill"), file + " 64M")), "ENODEV");
  const std::string configure = mount().root() + "/.kvcachefs/configure";
  EXPECT_EQ(error_name(write_once(configure, on(file, ",spill_size=64M").replace(0, 1, "q"))), "ENODEV");
  EXPECT_FALSE(exists(mount().path("q")));
  EXPECT_FALSE(std::filesystem::exists(file));
  ASSERT_EQ(error_name(error_of(::mount("none", (disk() / "data").c_str(), "tmpfs", 0, nullptr))), "ok");
  // Something is mounted, though nothing that keeps anything: the next check is another one.
  EXPECT_EQ(error_name(write_once(mount().administrators("spill"), file + " 64M")), "EINVAL");
  ::umount2((disk() / "data").c_str(), MNT_DETACH);
  ::unsetenv("LIBMOUNT_FSTAB");
}

TEST_F(SpillTargetTest, ABlockDevice) {
  KVCACHEFS_NEED_LOOP_DEVICE();
  const LoopDevice device(disk().make_file("image", 256 * kMiB));
  start_pool(on(device.path()));
  EXPECT_EQ(stat("spill_size_bytes"), static_cast<int64_t>(256 * kMiB)) << "all of it";
  EXPECT_EQ(check_whole(fill_pool("e", 128)), 128);
  EXPECT_GE(stat("cold_entries"), 90);
  make_all_cold();
  stop();
  start_pool(on(device.path()));
  std::vector<std::string> names;
  for (int i = 0; i < 128; ++i) names.push_back(path("e-" + std::to_string(i)));
  EXPECT_EQ(check_whole(names), 128);
  const File directory(mount().path(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(error_name(error_of(::fsync(directory.fd()))), "ok");
  kill();
  // The pool now has a part of the device; entries that lie beyond it are dropped.
  start_pool(on(device.path(), ",spill_size=64M"));
  EXPECT_EQ(stat("spill_size_bytes"), static_cast<int64_t>(64 * kMiB));
  EXPECT_LE(survivors(names).size(), 63u);
  EXPECT_EQ(check_whole(names), static_cast<int>(survivors(names).size()));
}

TEST_F(SpillTargetTest, AFileSystemOnTheDeviceIsNotOverwritten) {
  KVCACHEFS_NEED_LOOP_DEVICE();
  const LoopDevice device(disk().make_file("image", 64 * kMiB));
  ASSERT_EQ(run({"/usr/sbin/mkfs.ext4", "-q", device.path()}).exit_code, 0);
  expect_refused(on(device.path()), {device.path(), "carries a file system (ext4)", "spill_force=on"});
  EXPECT_EQ(run({"/usr/sbin/e2fsck", "-fn", device.path()}).exit_code, 0) << "as it was";
  start_pool(on(device.path(), ",spill_force=on"));
  EXPECT_EQ(check_whole(fill_pool("e", 40)), 40);
  stop();
  // The device is a spill tier by now: it needs no force, and a start with force keeps its entries.
  start_pool(on(device.path(), ",spill_force=on"));
  EXPECT_EQ(stat("entries"), 40);
  start_pool(on(device.path()));
  EXPECT_EQ(stat("entries"), 40);
}

TEST_F(SpillTargetTest, APartitionTableIsNotOverwritten) {
  KVCACHEFS_NEED_LOOP_DEVICE();
  const std::string image = disk().make_file("image", 64 * kMiB);
  {
    // A DOS table with one partition of type Linux: sectors 2048 to the end.
    unsigned char entry[16] = {0, 0, 33, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0xf8, 1, 0};
    const File file(image, O_WRONLY);
    ASSERT_EQ(::pwrite(file.fd(), entry, sizeof entry, 446), 16);
    ASSERT_EQ(::pwrite(file.fd(), "\x55\xaa", 2, 510), 2);
  }
  const LoopDevice device(image);
  expect_refused(on(device.path()), {"carries a partition table (dos)"});
}

TEST_F(SpillTargetTest, AFileOfSomethingElseIsNotOverwritten) {
  write_file(disk() / "letters", pattern(1, 3 * kMiB));
  expect_refused(on(disk() / "letters"), {"data of something else"});
  EXPECT_EQ(difference(1, read_file(disk() / "letters")), "");
}

TEST_F(SpillTargetTest, MemoryIsNoDisk) {
  const PlainTmpfs tmpfs("size=512M");
  expect_refused(on(tmpfs.path() + "/spill", ",spill_size=64M"), {"lies on tmpfs"});
  EXPECT_EQ(list(tmpfs.path()), std::vector<std::string>());
}

// A daemon whose disk or catalog is an entry of its own would wait for itself.
TEST_F(SpillTargetTest, AMountOfKvcachefsIsNoDisk) {
  start_pool("p:size=64M");
  const auto refused = [&](const std::string& spill, const std::string& catalog) {
    return run({"kvcachefs", "--mount", mount().root(), "set", "p", "spill_size=64M", "spill=" + spill,
                "catalog=" + catalog})
               .exit_code == 1;
  };
  EXPECT_TRUE(refused(path("self"), disk() / "catalog"));
  EXPECT_TRUE(refused(disk() / "spill", path("c/atalog")));
  for (const char* line : {"p/self lies on fuse.kvcachefs", "p/c/atalog lies on fuse.kvcachefs"})
    EXPECT_NE(mount().log().find(line), std::string::npos) << mount().log() << line;
  EXPECT_EQ(list(mount().path()), std::vector<std::string>());
  expect_refused(on(path("other"), ",spill_size=64M"), {"lies on fuse.kvcachefs"});
  EXPECT_EQ(run({"kvcachefsd", "--check-system=" + path("self")}).exit_code, 1);
}

// An overlay on ramfs has no O_DIRECT for any caller. ext4 that journals data lets files be opened with
// O_DIRECT, but copies the bytes.
TEST_F(SpillTargetTest, AFileSystemWithoutDirectIO) {
  const PlainTmpfs below("size=16M");
  const FileSystem memory("ramfs", "ramfs", "");
  make_directory(memory.path() + "/upper");
  make_directory(memory.path() + "/work");
  const FileSystem overlay("overlay", "overlay",
                           "lowerdir=" + below.path() + ",upperdir=" + memory.path() +
                               "/upper,workdir=" + memory.path() + "/work");
  expect_refused(on(overlay.path() + "/spill", ",spill_size=64M"), {overlay.path(), "O_DIRECT"});
  EXPECT_EQ(list(overlay.path()), std::vector<std::string>());

  const LoopDevice device(disk().make_file("image", 64 * kMiB));
  ASSERT_EQ(run({"/usr/sbin/mkfs.ext4", "-q", device.path()}).exit_code, 0);
  const FileSystem journaled("ext4", device.path(), "data=journal");
  expect_refused(on(journaled.path() + "/spill", ",spill_size=32M"), {journaled.path(), "O_DIRECT"});
  EXPECT_FALSE(exists(journaled.path() + "/spill"));
}

TEST_F(SpillTargetTest, OnlyTheDiskThatTheCatalogKnows) {
  start();
  fill_pool("e", 4);
  stop();
  ASSERT_EQ(::rename(spill_file().c_str(), (disk() / "mine").c_str()), 0);
  const std::string pool = "p:size=32M,spill=" + spill_file() + ",spill_size=256M";
  expect_refused(pool, {"does not exist", "catalog expects"});
  EXPECT_FALSE(exists(spill_file()));
  start_pool("p:size=32M,spill=" + (disk() / "other") + ",spill_size=256M");
  stop();
  ASSERT_EQ(::rename((disk() / "other").c_str(), spill_file().c_str()), 0);
  expect_refused(pool, {"carries ", "the pool's catalog expects "});
  ASSERT_EQ(::rename((disk() / "mine").c_str(), spill_file().c_str()), 0);
  // A new catalog knows no disk: it is another pool's, or the old one is on a file system that is not
  // mounted.
  const std::string catalog = spill_file() + ".catalog";
  ASSERT_EQ(::rename(catalog.c_str(), (disk() / "aside").c_str()), 0);
  expect_refused(pool, {"carries ", "does not know", "spill_force=on"});
  std::filesystem::remove_all(catalog);
  ASSERT_EQ(::rename((disk() / "aside").c_str(), catalog.c_str()), 0);
  start();
  EXPECT_EQ(stat("entries"), 4);
}

// The first start ended after it wrote the superblock and before it told the catalog.
TEST_F(SpillTargetTest, AFirstStartThatWasCutShortIsDoneAgain) {
  start();
  stop();
  {
    auto catalog = Catalog::open(spill_file() + ".catalog", {.create = false});
    ASSERT_TRUE(catalog) << catalog.error().message;
    ASSERT_TRUE((*catalog)->put_setting(kSpillUuidSetting, ""));
  }
  start();
  fill_pool("e", 4);
  start();
  EXPECT_EQ(stat("entries"), 4);
}

TEST_F(SpillTargetTest, AnotherDiskByForceStartsEmpty) {
  start();
  fill_pool("e", 4);
  stop();
  ASSERT_EQ(::unlink(spill_file().c_str()), 0);
  start({.more = "spill_force=on"});
  EXPECT_EQ(stat("entries"), 0);
  EXPECT_EQ(list(mount().path()), std::vector<std::string>());
  fill_pool("e", 4);
  start();
  EXPECT_EQ(stat("entries"), 4);
}

TEST_F(SpillTargetTest, OneDaemonAtATime) {
  start();
  fill_pool("e", 4);
  expect_refused("p:size=32M,spill=" + spill_file() + ",spill_size=256M", {"in use"});
  EXPECT_EQ(check_whole({path("e-0"), path("e-1")}), 2);
}

TEST_F(SpillTargetTest, FromAConfigurationFile) {
  const std::string config = disk() / "kvcachefs.toml";
  write_file(config, "[pools.p]\nsize = \"32M\"\nspill = \"" + spill_file() +
                         "\"\nspill_size = \"64M\"\ndurability = \"sync\"\nadmission = \"tinylfu\"\n");
  Mount mount({.pools = {}, .arguments = {"--config", config}});
  EXPECT_EQ(read_file(mount.control("spill")), spill_file() + " 64M\n");
  EXPECT_EQ(read_file(mount.control("durability")), "sync\n");
  EXPECT_EQ(read_file(mount.control("admission")), "tinylfu\n");
  mount.stop();
}

TEST_F(SpillTargetTest, WrongOptions) {
  const std::string spill = ",spill=" + spill_file();
  for (const std::string& wrong :
       {spill + ",spill_size=64K", spill + ",spill_size=many", spill + ",spill_size=64M,spill_unit=1000",
        spill + ",spill_size=64M,durability=perhaps", spill + ",spill_size=64M,admission=some",
        std::string(",spill_size=64M"), std::string(",durability=sync")}) {
    expect_refused("p:size=32M" + wrong, {"ended with 2"});
  }
  expect_refused("p:size=32M" + spill, {"spill_size"});
  expect_refused("p:size=32M,spill=" + (disk() / "missing/spill") + ",spill_size=64M",
                 {"missing", "No such file"});
  expect_refused("p:size=32M" + spill + ",spill_size=9000T", {"large", "free"});
  EXPECT_FALSE(exists(spill_file()));
}

}  // namespace
}  // namespace kvcachefs::test
