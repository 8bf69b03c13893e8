#include "tier/disk/foreign_content.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "tests/support/disks.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

namespace kvcachefs::foreign_content_test {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr size_t kExt4MagicAt = 0x438;
constexpr const char* kRomFileSystem = "-rom1fs-";  // libblkid asks for no more

class ForeignContentTest : public ::testing::Test {
 protected:
  // A sparse file, on which any program may make its own content.
  std::string disk(uint64_t size_bytes = 8 * kMiB) const {
    const test::File file(path_, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT_EQ(::ftruncate(file.fd(), static_cast<off_t>(size_bytes)), 0);
    return path_;
  }
  void write(uint64_t offset, const std::string& bytes) const {
    const test::File file(path_, O_WRONLY | O_CLOEXEC);
    ASSERT_EQ(::pwrite(file.fd(), bytes.data(), bytes.size(), static_cast<off_t>(offset)),
              static_cast<ssize_t>(bytes.size()));
  }
  std::string bytes(uint64_t offset, size_t count) const {
    const test::File file(path_, O_RDONLY | O_CLOEXEC);
    return test::read_at(file.fd(), static_cast<off_t>(offset), count);
  }
  void make(const std::vector<std::string>& command) const {
    std::vector<std::string> with_path = command;
    with_path.push_back(path_);
    const test::Outcome outcome = test::run(with_path);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.error;
  }
  // An MBR with one partition of type 0x83.
  void write_partition_table() const {
    write(446, std::string("\x00\x00\x02\x00\x83\x00\x01\x00\x00\x08\x00\x00\x00\x20\x00\x00", 16));
    write(510, "\x55\xaa");
  }
  std::string found() const {
    const auto content = foreign_content(path_);
    return content ? *content : "error: " + content.error().message;
  }

  test::DiskDirectory directory_;
  const std::string path_ = directory_ / "disk";
};

TEST_F(ForeignContentTest, AnEmptyOrTinyFileHasNone) {
  for (const uint64_t size_bytes : {uint64_t{0}, uint64_t{1}, uint64_t{511}, uint64_t{4096}, 8 * kMiB}) {
    disk(size_bytes);
    EXPECT_EQ(found(), "") << size_bytes;
  }
}

TEST_F(ForeignContentTest, BytesWithoutASignatureAreNone) {
  disk();
  for (uint64_t offset = 0; offset < 8 * kMiB; offset += kMiB) write(offset, test::pattern(offset, 4096));
  EXPECT_EQ(found(), "");
}

TEST_F(ForeignContentTest, AFileSystemIsNamed) {
  disk();
  make({"/usr/sbin/mkfs.ext4", "-q", "-F"});
  EXPECT_EQ(found(), "a file system (ext4)");
}

TEST_F(ForeignContentTest, ContentOfAnotherUseIsNamed) {
  disk();
  make({"/usr/sbin/mkswap"});
  EXPECT_EQ(found(), "content of use: other (swap)");
}

TEST_F(ForeignContentTest, APartitionTableIsNamed) {
  disk();
  write_partition_table();
  EXPECT_EQ(found(), "a partition table (dos)");
}

TEST_F(ForeignContentTest, SeveralFileSystemsAreNotGuessedAt) {
  disk();
  make({"/usr/sbin/mkfs.ext4", "-q", "-F"});
  write(0, kRomFileSystem);
  EXPECT_EQ(found(), "signatures of several file systems");
}

TEST_F(ForeignContentTest, WhatCannotBeReadIsAnError) {
  const auto missing = foreign_content(path_);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ENOENT);
  EXPECT_EQ(missing.error().message, "No such file or directory");
  const auto directory = foreign_content(directory_.path());
  ASSERT_FALSE(directory);
  EXPECT_EQ(directory.error().code, EIO);
  const auto wiped = wipe_foreign_content(path_);
  ASSERT_FALSE(wiped);
  EXPECT_EQ(wiped.error().code, ENOENT);
  EXPECT_FALSE(test::exists(path_)) << "nothing is made";
  EXPECT_FALSE(wipe_foreign_content(directory_.path()));
}

TEST_F(ForeignContentTest, WipingTakesTheSignatureAndNothingElse) {
  disk();
  make({"/usr/sbin/mkfs.ext4", "-q", "-F"});
  write(4 * kMiB, "somebody's bytes");
  const std::string label = bytes(kExt4MagicAt + 2, 64);
  ASSERT_EQ(bytes(kExt4MagicAt, 2), "\x53\xef");
  ASSERT_TRUE(wipe_foreign_content(path_));
  EXPECT_EQ(found(), "");
  EXPECT_EQ(bytes(kExt4MagicAt, 2), std::string(2, '\0'));
  EXPECT_EQ(bytes(kExt4MagicAt + 2, 64), label);
  EXPECT_EQ(bytes(4 * kMiB, 16), "somebody's bytes");
}

TEST_F(ForeignContentTest, WipingTakesAllOfThem) {
  disk();
  make({"/usr/sbin/mkfs.ext4", "-q", "-F"});
  write(0, kRomFileSystem);
  write_partition_table();
  ASSERT_NE(found(), "");
  ASSERT_TRUE(wipe_foreign_content(path_));
  EXPECT_EQ(found(), "");
  EXPECT_EQ(bytes(510, 2), std::string(2, '\0'));
  EXPECT_EQ(bytes(kExt4MagicAt, 2), std::string(2, '\0'));
}

TEST_F(ForeignContentTest, WipingWhereNothingIsChangesNothing) {
  disk(kMiB);
  write(100, "bytes");
  const std::string before = test::read_file(path_);
  ASSERT_TRUE(wipe_foreign_content(path_));
  EXPECT_TRUE(test::read_file(path_) == before);
}

}  // namespace kvcachefs::foreign_content_test
