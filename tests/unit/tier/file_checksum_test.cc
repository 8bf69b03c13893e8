// The checksum of an entry's file: of its bytes, and of the holes that its layout has.
#include "tier/disk/file_checksum.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <span>
#include <string>

#include "base/unique_fd.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::file_checksum_test {

constexpr uint64_t kUnitBytes = 65536;
constexpr uint64_t kSize = 3 * kUnitBytes + 100;  // hash_file() reads 128 KiB at a time

Checksum sum_of(const std::string& bytes) {
  return checksum_of(std::as_bytes(std::span(bytes)));
}

class FileChecksumTest : public ::testing::Test {
 protected:
  void SetUp() override {
    KVCACHEFS_SKIP_IF(::geteuid() == 0 ? std::string() : std::string("root"));
    tmpfs_ = std::make_unique<test::PlainTmpfs>("size=16M");
    fd_ = open(O_RDWR | O_CREAT);
  }
  UniqueFd open(int flags) const {
    UniqueFd fd(::open((tmpfs_->path() + "/f").c_str(), flags | O_CLOEXEC, 0600));
    EXPECT_TRUE(fd);
    return fd;
  }
  void write(const std::string& bytes, uint64_t at = 0) {
    ASSERT_EQ(::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(at)),
              static_cast<ssize_t>(bytes.size()));
  }
  // The checksum that hash_file() makes of a range; none: the file ends before.
  std::optional<Checksum> hashed(uint64_t offset, uint64_t bytes) {
    Hasher hasher;
    const auto whole = hash_file(hasher, fd_.get(), offset, bytes);
    EXPECT_TRUE(whole);
    return whole && *whole ? std::optional(hasher.digest()) : std::nullopt;
  }
  std::optional<Checksum> checksum(uint64_t size, const ContentLayout& layout) const {
    return checksum_of_file(fd_.get(), size, layout, kUnitBytes);
  }
  static int error_of(int fd) {
    Hasher hasher;
    const auto hashed = hash_file(hasher, fd, 0, 1);
    return hashed ? 0 : hashed.error().code;
  }
  uint64_t blocks() const {
    struct stat status {};
    EXPECT_EQ(::fstat(fd_.get(), &status), 0);
    return static_cast<uint64_t>(status.st_blocks);
  }

  std::unique_ptr<test::PlainTmpfs> tmpfs_;
  UniqueFd fd_;
  const std::string bytes_ = test::pattern(1, kSize);
};

TEST_F(FileChecksumTest, EachRangeIsHashedWhole) {
  write(bytes_);
  EXPECT_EQ(hashed(0, kSize), sum_of(bytes_));
  EXPECT_EQ(hashed(5, 2 * kUnitBytes + 1), sum_of(bytes_.substr(5, 2 * kUnitBytes + 1)));
  EXPECT_EQ(hashed(kSize - 1, 1), sum_of(bytes_.substr(kSize - 1)));
  EXPECT_EQ(hashed(kSize, 0), sum_of(""));
}

TEST_F(FileChecksumTest, TheBytesAreAddedToThoseBefore) {
  write(bytes_);
  Hasher hasher;
  const std::string before = "before";
  hasher.update(std::as_bytes(std::span(before)));
  ASSERT_TRUE(hash_file(hasher, fd_.get(), 0, 10));
  ASSERT_TRUE(hash_file(hasher, fd_.get(), 10, kSize - 10));
  EXPECT_EQ(hasher.digest(), sum_of(before + bytes_));
}

TEST_F(FileChecksumTest, AFileThatEndsBeforeIsNotWhole) {
  write(bytes_);
  EXPECT_FALSE(hashed(0, kSize + 1));
  EXPECT_FALSE(hashed(kSize, 1));
  EXPECT_FALSE(hashed(uint64_t{1} << 40, 1));
  EXPECT_FALSE(checksum(kSize + 1, layout_without_holes(4)));
  ASSERT_EQ(::ftruncate(fd_.get(), 1), 0);
  EXPECT_FALSE(checksum(kSize, layout_without_holes(4))) << "it was cut meanwhile";
}

TEST_F(FileChecksumTest, AFileThatCannotBeReadIsAnError) {
  write("x");
  EXPECT_EQ(error_of(open(O_WRONLY).get()), EBADF);
  EXPECT_EQ(error_of(UniqueFd(::open(tmpfs_->path().c_str(), O_RDONLY | O_CLOEXEC)).get()), EISDIR);
  fd_ = open(O_WRONLY);
  EXPECT_FALSE(checksum(1, layout_without_holes(1)));
}

TEST_F(FileChecksumTest, WithoutHolesItIsThatOfTheBytes) {
  write(bytes_);
  EXPECT_EQ(checksum(kSize, layout_without_holes(4)), sum_of(bytes_));
  EXPECT_EQ(checksum(kSize - 7, layout_without_holes(4)), sum_of(bytes_.substr(0, kSize - 7)))
      << "what lies behind the size is no content";
  EXPECT_EQ(checksum(0, ContentLayout()), sum_of(""));
}

TEST_F(FileChecksumTest, AHoleCountsAsAHole) {
  const std::string data = bytes_.substr(0, kUnitBytes);
  const std::string end = bytes_.substr(kUnitBytes, 100);
  write(data);
  write(end, 11 * kUnitBytes);
  const uint64_t size = 11 * kUnitBytes + 100;
  const auto layout = layout_of_file(fd_.get(), size, kUnitBytes);
  ASSERT_TRUE(layout && has_holes(layout->runs));
  const auto expected = [&](uint64_t hole) {
    Hasher hasher;
    hasher.update(std::as_bytes(std::span(data)));
    hash_hole(hasher, hole);
    hasher.update(std::as_bytes(std::span(end)));
    return hasher.digest();
  };
  EXPECT_EQ(checksum(size, *layout), expected(10));
  EXPECT_NE(checksum(size, *layout), expected(9));
  EXPECT_NE(checksum(size, *layout), checksum(size, layout_without_holes(12))) << "it is no run of zeros";
  write("filled meanwhile", 5 * kUnitBytes);
  EXPECT_EQ(checksum(size, *layout), expected(10)) << "a hole is not read";
}

// A hole at the end, and a file of nothing else.
TEST_F(FileChecksumTest, AHoleMayBeAllThereIs) {
  ASSERT_EQ(::ftruncate(fd_.get(), kSize), 0);
  Hasher hole;
  hash_hole(hole, 4);
  EXPECT_EQ(checksum(kSize, {.runs = {Extent{0, 4}}}), hole.digest());
  EXPECT_EQ(checksum(kSize, layout_without_holes(4)), sum_of(std::string(kSize, '\0')));
  EXPECT_EQ(blocks(), 0u) << "to read a hole does not fill it";
}

}  // namespace kvcachefs::file_checksum_test
