#include "tier/disk/spill_target.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/program.h"

namespace kvcachefs::spill_target_test {

using namespace std::chrono_literals;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kUnit = uint64_t{64} << 10;

class SpillTargetTest : public testing::Test {
 protected:
  SpillTargetOptions options(uint64_t size_bytes = 8 * kMiB) const {
    return {.path = directory_ / "spill", .size_bytes = size_bytes, .patience = 0ms};
  }
  // overwrite() overwrites bytes at this offset of the spill file, to damage the superblock.
  void overwrite(uint64_t offset, const std::string& bytes) const {
    const test::File file(directory_ / "spill", O_WRONLY | O_CLOEXEC);
    ASSERT_EQ(::pwrite(file.fd(), bytes.data(), bytes.size(), static_cast<off_t>(offset)),
              static_cast<ssize_t>(bytes.size()));
  }

  test::DiskDirectory directory_;
};

// The errno, or 0; the message has to name the path and `words`.
int error_of(const SpillTargetOptions& options, const std::string& words = {}) {
  const auto target = open_spill_target(options);
  if (target) return 0;
  const std::string& message = target.error().message;
  EXPECT_TRUE(message.starts_with(options.path + " ")) << message;
  EXPECT_NE(message.find(words), std::string::npos) << message << " lacks: " << words;
  return target.error().code;
}

// The options with which a catalog asks that knows the disk.
SpillTargetOptions known(SpillTargetOptions options, const Uuid& uuid) {
  options.uuid = uuid;
  return options;
}

Uuid made(const SpillTargetOptions& options) {
  auto target = open_spill_target(options);
  EXPECT_TRUE(target) << (target ? "" : target.error().message);
  if (!target) return {};
  EXPECT_TRUE(target->made);
  return target->uuid;
}

TEST_F(SpillTargetTest, MakesAFileOfItsSizeAllocated) {
  const auto target = open_spill_target(options(8 * kMiB + 5));
  ASSERT_TRUE(target) << target.error().message;
  EXPECT_TRUE(target->made);
  EXPECT_EQ(target->unit_bytes, kUnit);
  EXPECT_EQ(target->size_units, 128u);
  EXPECT_EQ(target->device->size_bytes(), 8 * kMiB);
  struct stat status {};
  ASSERT_EQ(::stat((directory_ / "spill").c_str(), &status), 0);
  EXPECT_EQ(status.st_size, static_cast<off_t>(8 * kMiB));
  EXPECT_GE(status.st_blocks * 512, static_cast<off_t>(8 * kMiB));
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(SpillTargetTest, IsKnownAgain) {
  const Uuid uuid = made(options());
  SpillTargetOptions again = known(options(), uuid);
  const auto target = open_spill_target(again);
  ASSERT_TRUE(target) << target.error().message;
  EXPECT_FALSE(target->made);
  EXPECT_EQ(target->uuid, uuid);
  again.path = directory_ / "./spill";
  again.size_bytes = 0;
  EXPECT_EQ(error_of(again), EBUSY);  // `target` still has it open
}

TEST_F(SpillTargetTest, IsMadeAsAskedAndKnownByThat) {
  SpillTargetOptions first = options();
  first.new_uuid = Uuid{std::byte{7}};
  EXPECT_EQ(made(first), *first.new_uuid);
  {
    const auto target = open_spill_target(first);
    ASSERT_TRUE(target) << target.error().message;
    EXPECT_FALSE(target->made);
  }
  first.new_uuid = Uuid{std::byte{8}};
  EXPECT_EQ(error_of(first, "does not know"), ESTALE);
  first.uuid = Uuid{std::byte{7}};
  EXPECT_EQ(error_of(first), 0);
}

TEST_F(SpillTargetTest, OnlyOneHasItAtATime) {
  auto target = open_spill_target(options());
  ASSERT_TRUE(target);
  EXPECT_EQ(error_of(options(), "in use"), EBUSY);
  SpillTargetOptions forced = options();
  forced.force = true;
  EXPECT_EQ(error_of(forced), EBUSY);
  target->device.reset();
  EXPECT_EQ(error_of(known(options(), target->uuid)), 0);
}

// A daemon that was killed with requests in flight holds the spill file for a moment after its death.
TEST_F(SpillTargetTest, WaitsForTheKilled) {
  const Uuid uuid = made(options(64 * kMiB));
  for (int round = 0; round < 5; ++round) {
    EXPECT_EQ(test::in_child([&] {
                auto target = open_spill_target(known(options(64 * kMiB), uuid));
                auto channel = target->device->channel(16);
                test::AlignedMemory memory(16 * kMiB);
                std::vector<BlockRequest> requests;
                for (uint64_t index = 1; index < 16; ++index)
                  requests.push_back(
                      {BlockRequest::Kind::kWrite, index * kMiB, memory.part(index * kMiB, kMiB), index});
                (*channel)->submit(requests);
                return ::raise(SIGKILL);
              }),
              128 + SIGKILL);
    SpillTargetOptions patient = known(options(64 * kMiB), uuid);
    patient.patience = 30s;
    EXPECT_EQ(error_of(patient), 0);
  }
}

TEST_F(SpillTargetTest, GrowsAndShrinksWithItsContent) {
  const Uuid uuid = made(options());
  test::AlignedMemory memory(kUnit);
  memory.fill(4);
  for (const uint64_t size_bytes : {8 * kMiB, 16 * kMiB, 2 * kMiB, uint64_t{0}}) {
    const auto target = open_spill_target(known(options(size_bytes), uuid));
    ASSERT_TRUE(target) << target.error().message;
    EXPECT_FALSE(target->made);
    EXPECT_EQ(target->uuid, uuid);
    const uint64_t expected_bytes = size_bytes != 0 ? size_bytes : 2 * kMiB;
    EXPECT_EQ(target->size_units, expected_bytes / kUnit);
    EXPECT_EQ(std::filesystem::file_size(directory_ / "spill"), expected_bytes);
    if (size_bytes == 8 * kMiB) {
      EXPECT_EQ(test::write_blocks(*target->device, kUnit, memory.all()), 0);
    }
    test::AlignedMemory back(kUnit);
    EXPECT_EQ(test::read_blocks(*target->device, kUnit, back.all()), 0);
    EXPECT_TRUE(back.holds(4));
  }
}

TEST_F(SpillTargetTest, TakesAFileThatWasAllocatedForIt) {
  directory_.make_file("spill", 4 * kMiB);
  const auto target = open_spill_target(options(0));
  ASSERT_TRUE(target) << target.error().message;
  EXPECT_TRUE(target->made);
  EXPECT_EQ(target->size_units, 64u);
}

TEST_F(SpillTargetTest, RefusesDataOfSomethingElse) {
  test::write_file(directory_ / "spill", "somebody's only copy");
  EXPECT_EQ(error_of(options(), "did not make"), EEXIST);
  EXPECT_EQ(test::read_file(directory_ / "spill"), "somebody's only copy");
  SpillTargetOptions forced = options();
  forced.force = true;
  EXPECT_EQ(error_of(known(options(), made(forced))), 0);
}

TEST_F(SpillTargetTest, RefusesMemory) {
  for (const std::string& path : {std::string("/dev/shm/kv-spill-target-test"), std::string("/dev/shm")}) {
    EXPECT_EQ(error_of({.path = path, .size_bytes = kMiB}), EINVAL);
  }
  EXPECT_EQ(error_of({.path = "/dev/shm/kv-spill-target-test", .size_bytes = kMiB}, "lies on tmpfs"), EINVAL);
  EXPECT_FALSE(test::exists("/dev/shm/kv-spill-target-test"));
}

TEST_F(SpillTargetTest, RefusesWhatIsNoDisk) {
  EXPECT_EQ(error_of({.path = "/dev/null", .size_bytes = kMiB}, "neither a block device nor a file"), EINVAL);
  EXPECT_EQ(error_of({.path = directory_.path(), .size_bytes = kMiB}, "neither a block device nor a file"),
            EINVAL);
}

TEST_F(SpillTargetTest, NamesWhatIsMissing) {
  EXPECT_EQ(error_of({.path = directory_ / "no/spill", .size_bytes = kMiB}, directory_ / "no does not exist"),
            ENOENT);
  EXPECT_EQ(error_of(options(0), "spill_size"), EINVAL);
  EXPECT_EQ(error_of(options(kUnit), "too small"), EINVAL);
  EXPECT_FALSE(test::exists(directory_ / "spill"));
}

TEST_F(SpillTargetTest, RefusesUnitsThatCannotBe) {
  for (const uint64_t unit_bytes : {uint64_t{0}, uint64_t{512}, uint64_t{5000}, uint64_t{8} << 20}) {
    SpillTargetOptions wrong = options();
    wrong.unit_bytes = unit_bytes;
    EXPECT_EQ(error_of(wrong), EINVAL);
  }
}

TEST_F(SpillTargetTest, NoRoomLeavesThingsAsTheyWere) {
  struct statvfs space {};
  ASSERT_EQ(::statvfs(directory_.path().c_str(), &space), 0);
  const uint64_t much = (uint64_t{space.f_blocks} + 1024) * space.f_frsize;
  EXPECT_EQ(error_of(options(much), "free"), ENOSPC);
  EXPECT_FALSE(test::exists(directory_ / "spill"));
  const Uuid uuid = made(options());
  EXPECT_EQ(error_of(known(options(much), uuid), "8M"), ENOSPC);
  EXPECT_EQ(std::filesystem::file_size(directory_ / "spill"), 8 * kMiB);
  const auto target = open_spill_target(known(options(), uuid));
  ASSERT_TRUE(target);
  EXPECT_EQ(target->uuid, uuid);
}

TEST_F(SpillTargetTest, BelongsToOnePool) {
  const Uuid uuid = made(options());
  SpillTargetOptions expecting = options();
  expecting.uuid = uuid;
  (*expecting.uuid)[0] ^= std::byte{1};
  EXPECT_EQ(error_of(expecting, to_string(uuid)), ESTALE);
  SpillTargetOptions elsewhere = expecting;
  elsewhere.path = directory_ / "other";
  EXPECT_EQ(error_of(elsewhere, to_string(*expecting.uuid)), ENODATA);
  EXPECT_FALSE(test::exists(elsewhere.path));
  directory_.make_file("other", 8 * kMiB);
  EXPECT_EQ(error_of(elsewhere, to_string(*expecting.uuid)), ENODATA);
  expecting.force = true;
  EXPECT_NE(made(expecting), uuid);
}

// A catalog that knows no disk may lie in the directory of a file system that is not mounted, or belong to
// another pool.
TEST_F(SpillTargetTest, IsNotTakenByANewCatalog) {
  const Uuid uuid = made(options());
  const std::string before = test::read_file(directory_ / "spill");
  EXPECT_EQ(error_of(options(), to_string(uuid)), ESTALE);
  EXPECT_EQ(error_of(options(), "spill_force=on"), ESTALE);
  EXPECT_TRUE(test::read_file(directory_ / "spill") == before);
  SpillTargetOptions forced = options();
  forced.force = true;
  EXPECT_NE(made(forced), uuid) << "the catalog of before does not match any more";
}

TEST_F(SpillTargetTest, RefusesAnotherUnit) {
  SpillTargetOptions other = known(options(), made(options()));
  other.unit_bytes = kMiB;
  EXPECT_EQ(error_of(other, "spill_unit=64K, not 1M"), EINVAL);
  other.force = true;
  EXPECT_EQ(error_of(known(options(), made(other))), EINVAL);
}

TEST_F(SpillTargetTest, RefusesADamagedSuperblock) {
  // Every byte of the block counts, because a partition table may have been written over the block.
  for (const uint64_t at : {20, 24, 33, 48, 450, 4000}) {
    SpillTargetOptions forced = options();
    forced.force = true;
    made(forced);
    // The new byte differs from the old one, also in the UUID, which is random.
    const std::string block = test::read_file(options().path).substr(0, 4096);
    overwrite(at, block[at] == '\x2a' ? "\x2b" : "\x2a");
    EXPECT_EQ(error_of(options(), "damaged superblock"), EUCLEAN) << at;
    EXPECT_EQ(error_of(known(options(), made(forced))), 0);
  }
}

TEST_F(SpillTargetTest, RefusesANewerVersion) {
  made(options());
  overwrite(16, "\x02");
  EXPECT_EQ(error_of(options(), "superblock of version 2"), ENOTSUP);
}

class SpillDeviceTest : public SpillTargetTest {
 protected:
  void SetUp() override {
    KVCACHEFS_SKIP_IF(test::LoopDevice::available() ? "" : "root and loop devices");
    loop_ = std::make_unique<test::LoopDevice>(directory_.make_file("disk", 32 * kMiB));
    options_ = {.path = loop_->path(), .patience = 0ms};
  }
  void run(std::vector<std::string> command) const {
    command.push_back(loop_->path());
    const test::Outcome outcome = test::run(command);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.error;
  }

  std::unique_ptr<test::LoopDevice> loop_;
  SpillTargetOptions options_;
};

TEST_F(SpillDeviceTest, TakesAllOfAnEmptyDevice) {
  {
    const auto target = open_spill_target(options_);
    ASSERT_TRUE(target) << target.error().message;
    EXPECT_TRUE(target->made);
    EXPECT_EQ(target->size_units, 512u);
    EXPECT_EQ(error_of(options_, "in use"), EBUSY);
    options_.uuid = target->uuid;
  }
  options_.size_bytes = 16 * kMiB;
  const auto smaller = open_spill_target(options_);
  ASSERT_TRUE(smaller) << smaller.error().message;
  EXPECT_FALSE(smaller->made);
  EXPECT_EQ(smaller->size_units, 256u);
  options_.size_bytes = 64 * kMiB;
  options_.path = loop_->path();
  EXPECT_EQ(error_of(options_), EBUSY);
}

TEST_F(SpillDeviceTest, RefusesMoreThanItHas) {
  options_.size_bytes = 64 * kMiB;
  EXPECT_EQ(error_of(options_, "has 32M, spill_size asks for 64M"), EINVAL);
}

TEST_F(SpillDeviceTest, RefusesAFileSystemUnlessForced) {
  run({"/usr/sbin/mkfs.ext4", "-q"});
  EXPECT_EQ(error_of(options_, "a file system (ext4)"), EEXIST);
  options_.force = true;
  options_.uuid = made(options_);
  options_.force = false;
  const auto target = open_spill_target(options_);
  ASSERT_TRUE(target) << target.error().message;
  EXPECT_FALSE(target->made);
  EXPECT_EQ(test::run({"/usr/sbin/blkid", "-p", loop_->path()}).out, "");
}

// A file system made over a spill tier counts as a file system.
TEST_F(SpillDeviceTest, RefusesAFileSystemMadeOverIt) {
  made(options_);
  run({"/usr/sbin/mkfs.ext4", "-q", "-F"});
  EXPECT_EQ(error_of(options_, "a file system (ext4)"), EEXIST);
}

// The refusal comes before any byte of the device is changed, with and without force.
TEST_F(SpillDeviceTest, RefusesBlocksLargerThanPages) {
  std::unique_ptr<test::LoopDevice> coarse;
  try {
    coarse = std::make_unique<test::LoopDevice>(directory_.make_file("coarse", 32 * kMiB), 16384);
  } catch (const std::runtime_error&) {
    KVCACHEFS_SKIP_IF("loop devices of 16 KiB blocks (Linux 6.15)");
  }
  for (const bool force : {false, true}) {
    options_ = {.path = coarse->path(), .force = force, .patience = 0ms};
    EXPECT_EQ(error_of(options_, "moves blocks of 16K only"), EINVAL);
  }
  EXPECT_EQ(test::read_file(directory_ / "coarse"), std::string(32 * kMiB, '\0'));
}

TEST_F(SpillDeviceTest, RefusesAPartitionTable) {
  // The MBR has only its signature and one partition of type 0x83.
  const test::File file(loop_->path(), O_WRONLY | O_CLOEXEC);
  std::string sector(512, '\0');
  sector.replace(446, 16,
                 std::string("\x00\x00\x02\x00\x83\x00\x01\x00\x00\x08\x00\x00\x00\x40\x00\x00", 16));
  sector.replace(510, 2, "\x55\xaa");
  ASSERT_EQ(::pwrite(file.fd(), sector.data(), sector.size(), 0), 512);
  ASSERT_EQ(::fsync(file.fd()), 0);
  EXPECT_EQ(error_of(options_, "a partition table (dos)"), EEXIST);
}

TEST_F(SpillDeviceTest, RefusesAMountedDevice) {
  run({"/usr/sbin/mkfs.ext4", "-q"});
  const std::string mount_point = directory_ / "mounted";
  test::make_directory(mount_point);
  ASSERT_EQ(test::run({"/bin/mount", loop_->path(), mount_point}).exit_code, 0);
  options_.force = true;
  EXPECT_EQ(error_of(options_, "mounted"), EBUSY);
  EXPECT_EQ(test::run({"/bin/umount", mount_point}).exit_code, 0);
}

}  // namespace kvcachefs::spill_target_test
