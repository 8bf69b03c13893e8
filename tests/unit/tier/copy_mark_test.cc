// The mark on a file that says what the disk has of it.
#include "tier/catalog/copy_mark.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <string>

#include "base/unique_fd.h"
#include "tests/support/mount.h"

namespace kvcachefs::copy_mark_test {

class CopyMarkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    KVCACHEFS_SKIP_IF(::geteuid() == 0 ? std::string() : std::string("root"));
    tmpfs_ = std::make_unique<test::PlainTmpfs>();
    fd_ = UniqueFd(::open((tmpfs_->path() + "/f").c_str(), O_RDWR | O_CREAT, 0600));
    ASSERT_TRUE(fd_);
  }
  static CatalogContent content(size_t extents) {
    CatalogContent result{
        .size_bytes = 12345, .checksum = {.low = 1, .high = 2}, .version = 3, .extents = {}};
    for (size_t i = 0; i < extents; ++i) result.extents.push_back({i * 10 + 1, 5});
    return result;
  }
  std::unique_ptr<test::PlainTmpfs> tmpfs_;
  UniqueFd fd_;
};

TEST_F(CopyMarkTest, ComesBackAsItWas) {
  EXPECT_FALSE(copy_mark_of(fd_.get()));
  for (const size_t extents : {size_t{1}, size_t{0}, size_t{40}, size_t{3000}}) {
    for (const auto state : {CopyMark::State::kClean, CopyMark::State::kCold}) {
      ASSERT_TRUE(put_copy_mark(fd_.get(), {.state = state, .node_id = 77, .content = content(extents)}));
      const auto mark = copy_mark_of(fd_.get());
      ASSERT_TRUE(mark) << extents;
      EXPECT_EQ(mark->state, state);
      EXPECT_EQ(mark->node_id, 77u);
      EXPECT_EQ(mark->content.size_bytes, 12345u);
      EXPECT_EQ(mark->content.version, 3u);
      EXPECT_EQ(mark->content.extents.size(), extents);
    }
  }
  ASSERT_TRUE(put_copy_mark(fd_.get(), {.state = CopyMark::State::kNone, .node_id = 77, .content = {}}));
  EXPECT_EQ(copy_mark_of(fd_.get())->state, CopyMark::State::kNone);
}

TEST_F(CopyMarkTest, ADirtyOneSaysUnderWhichNameItsFileWasCutToNothing) {
  const uint64_t hash = place_hash(4711, "f");
  EXPECT_NE(hash, place_hash(4711, "g"));
  EXPECT_NE(hash, place_hash(4712, "f"));
  CopyMark mark{.state = CopyMark::State::kNone, .node_id = 77, .first_version = 3, .content = {}};
  ASSERT_TRUE(put_copy_mark(fd_.get(), mark));
  EXPECT_EQ(copy_mark_of(fd_.get())->emptied_as, 0u);
  mark.emptied_as = hash;
  ASSERT_TRUE(put_copy_mark(fd_.get(), mark));
  EXPECT_EQ(copy_mark_of(fd_.get())->emptied_as, hash);
  EXPECT_EQ(copy_mark_of(fd_.get())->first_version, 3u);
  mark.state = CopyMark::State::kClean;
  mark.content = content(2);
  ASSERT_TRUE(put_copy_mark(fd_.get(), mark));
  EXPECT_EQ(copy_mark_of(fd_.get())->emptied_as, 0u);
  EXPECT_EQ(copy_mark_of(fd_.get())->content.extents.size(), 2u);
}

TEST_F(CopyMarkTest, ACleanOneSaysWhenItsFileWasCutToNothing) {
  for (const size_t extents : {size_t{0}, size_t{1}, size_t{40}}) {
    for (const uint32_t first_version : {0u, 7u, UINT32_MAX}) {
      ASSERT_TRUE(put_copy_mark(fd_.get(), {.state = CopyMark::State::kClean,
                                            .node_id = 77,
                                            .first_version = first_version,
                                            .content = content(extents)}));
      const auto mark = copy_mark_of(fd_.get());
      EXPECT_EQ(mark->state, CopyMark::State::kClean);
      EXPECT_EQ(mark->first_version, first_version);
      EXPECT_EQ(mark->content.extents.size(), extents);
    }
  }
}

TEST_F(CopyMarkTest, TooManyExtentsLeaveTheOneOfBefore) {
  ASSERT_TRUE(put_copy_mark(fd_.get(), {.state = CopyMark::State::kNone, .node_id = 5, .content = {}}));
  EXPECT_FALSE(
      put_copy_mark(fd_.get(), {.state = CopyMark::State::kClean, .node_id = 5, .content = content(5000)}));
  EXPECT_EQ(copy_mark_of(fd_.get())->state, CopyMark::State::kNone);
}

TEST_F(CopyMarkTest, ADirtyOneSaysWhatItWas) {
  for (const uint32_t first_version : {0u, 7u, UINT32_MAX}) {
    for (const bool nameless : {false, true}) {
      ASSERT_TRUE(put_copy_mark(fd_.get(), {.state = CopyMark::State::kNone,
                                            .node_id = 77,
                                            .first_version = first_version,
                                            .synced_nameless = nameless,
                                            .content = {}}));
      const auto mark = copy_mark_of(fd_.get());
      EXPECT_EQ(mark->node_id, 77u);
      EXPECT_EQ(mark->first_version, first_version);
      EXPECT_EQ(mark->synced_nameless, nameless);
    }
  }
}

// An unreadable mark does not count as no mark, because the pages of a file without a mark are its content.
TEST_F(CopyMarkTest, WhatCannotBeReadSaysSo) {
  const auto put = [&](const std::string& value) {
    ASSERT_EQ(::fsetxattr(fd_.get(), kCopyXattr, value.data(), value.size(), 0), 0);
  };
  for (const char* text : {"", "n", "c12345678", "m12345678and more", "x12345678"}) {
    put(text);
    EXPECT_EQ(copy_mark_of(fd_.get())->state, CopyMark::State::kUnreadable) << text;
  }
  ASSERT_TRUE(
      put_copy_mark(fd_.get(), {.state = CopyMark::State::kClean, .node_id = 77, .content = content(2)}));
  std::string value(4096, '\0');
  const ssize_t size = ::fgetxattr(fd_.get(), kCopyXattr, value.data(), value.size());
  ASSERT_GT(size, 0);
  value.resize(static_cast<size_t>(size));
  for (size_t at = 1; at < value.size(); at += 7) {
    std::string damaged = value;
    damaged[at] = static_cast<char>(damaged[at] ^ 16);
    put(damaged);
    EXPECT_EQ(copy_mark_of(fd_.get())->state, CopyMark::State::kUnreadable) << at;
  }
}

}  // namespace kvcachefs::copy_mark_test
