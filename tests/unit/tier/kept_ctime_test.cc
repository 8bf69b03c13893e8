// What users see of an inode's times while the daemon changes the inode, and what a successor makes of it.
#include "tier/kept_ctime.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/unique_fd.h"
#include "tests/support/mount.h"

namespace kvcachefs::kept_ctime_test {

constexpr timespec kLongAgo{1'000'000'000, 5};

bool operator==(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

class KeptCtimeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    KVCACHEFS_SKIP_IF(::geteuid() == 0 ? std::string() : std::string("root"));
    fd_ = UniqueFd(::memfd_create("entry", MFD_CLOEXEC));
    ASSERT_EQ(::ftruncate(fd(), 4096), 0);
    set_mtime(kLongAgo);
  }
  int fd() const { return fd_.get(); }
  void set_mtime(const timespec& modified) {
    const timespec times[] = {{0, UTIME_OMIT}, modified};
    ASSERT_EQ(::futimens(fd(), times), 0);
  }
  struct stat actual() const {
    struct stat attributes {};
    EXPECT_EQ(::fstat(fd(), &attributes), 0);
    return attributes;
  }
  struct stat shown() const {
    struct stat attributes = actual();
    show_ctime(kept_, attributes);
    return attributes;
  }
  // A change of the daemon's that moves the ctime, and is waited for until it does.
  void change() {
    const timespec before = actual().st_ctim;
    ASSERT_TRUE(test::eventually([&] {
      EXPECT_EQ(::fsetxattr(fd(), "trusted.test", "x", 1, 0), 0);
      return !(actual().st_ctim == before);
    }));
  }
  void punch() {
    const timespec before = actual().st_mtim;
    ASSERT_TRUE(test::eventually([&] {
      EXPECT_EQ(::fallocate(fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
      return !(actual().st_mtim == before);
    }));
  }
  bool is_written_down() const { return ::fgetxattr(fd(), kTimesXattr, nullptr, 0) > 0; }

  UniqueFd fd_;
  KeptCtime kept_;
};

TEST_F(KeptCtimeTest, TheDaemonsChangeIsHiddenUntilAUserMakesOne) {
  const timespec before = actual().st_ctim;
  keep_ctime(kept_, fd(), false);
  change();
  EXPECT_TRUE(shown().st_ctim == before);
  keep_ctime(kept_, fd(), false);
  EXPECT_TRUE(shown().st_ctim == before) << "the first one kept stays";
  forget_ctime(kept_, fd(), false);
  EXPECT_TRUE(shown().st_ctim == actual().st_ctim);
  EXPECT_FALSE(is_written_down());
}

TEST_F(KeptCtimeTest, AWriteShowsItsOwnTimes) {
  keep_ctime(kept_, fd(), false);
  change();
  set_mtime({2'000'000'000, 0});
  EXPECT_TRUE(shown().st_ctim == actual().st_ctim);
}

TEST_F(KeptCtimeTest, AnUnseenChangePutsTheMtimeBack) {
  const timespec changed = actual().st_ctim;
  {
    UnseenChange change(kept_, fd(), false);
    punch();
  }
  EXPECT_TRUE(actual().st_mtim == kLongAgo);
  EXPECT_TRUE(shown().st_ctim == changed);
}

TEST_F(KeptCtimeTest, AWriterThatMadeTheFileLongerMeanwhileKeepsItsTimes) {
  {
    UnseenChange change(kept_, fd(), false);
    punch();
    ASSERT_EQ(::ftruncate(fd(), 8192), 0);
  }
  EXPECT_FALSE(actual().st_mtim == kLongAgo);
  EXPECT_TRUE(shown().st_ctim == actual().st_ctim);
}

TEST_F(KeptCtimeTest, ASuccessorLearnsTheTimes) {
  const timespec before = actual().st_ctim;
  keep_ctime(kept_, fd(), true);
  change();
  struct stat attributes = actual();
  kept_ = adopt_ctime(fd(), attributes, false);
  EXPECT_TRUE(attributes.st_ctim == before);
  EXPECT_TRUE(shown().st_ctim == before);
  forget_ctime(kept_, fd(), true);
  EXPECT_FALSE(is_written_down());
  attributes = actual();
  EXPECT_EQ(adopt_ctime(fd(), attributes, false).ctime_ns, 0u);
}

TEST_F(KeptCtimeTest, ASuccessorEndsAChangeThatWasUnderWay) {
  const struct stat before = actual();
  for (const bool written : {true, false}) {
    begin_unseen(kept_, fd(), before, true);
    punch();
    struct stat attributes = actual();
    (void)adopt_ctime(fd(), attributes, written);
    EXPECT_EQ(actual().st_mtim == kLongAgo, !written) << "the mtime may be the writer's";
    EXPECT_TRUE(attributes.st_mtim == actual().st_mtim);
    EXPECT_EQ(attributes.st_ctim == before.st_ctim, !written);
  }
}

TEST_F(KeptCtimeTest, TimesThatTheCatalogDoesNotKnowAreNotRestored) {
  EXPECT_EQ(restore_ctime(fd(), kLongAgo, {0, 0}, true).ctime_ns, 0u);
  EXPECT_FALSE(is_written_down());
  kept_ = restore_ctime(fd(), kLongAgo, {5, 6}, true);
  EXPECT_TRUE((shown().st_ctim == timespec{5, 6}));
  EXPECT_TRUE(is_written_down());
}

}  // namespace kvcachefs::kept_ctime_test
