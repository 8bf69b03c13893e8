// A catalog on a disk that fails or is full, and a catalog of a process that ends at any of its writes. This
// file replaces the calls with which LMDB writes, for the whole program, and passes on each call that no test
// makes fail.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "tests/support/catalogs.h"
#include "tests/support/disks.h"
#include "tests/support/mount.h"
#include "tests/support/program.h"
#include "tier/catalog/catalog.h"

namespace {

enum class Fault { kNone, kError, kShort, kFirstIsWritten, kExit };
std::atomic<Fault> fault{Fault::kNone};
std::atomic<int> fault_errno{EIO};
std::atomic<int> calls_until_fault{0};
std::atomic<int> failing_calls{0};  // how many calls fail from then on

bool fails_now() {
  if (fault == Fault::kNone || calls_until_fault-- > 0) return false;
  if (fault == Fault::kExit) ::_exit(42);
  return failing_calls-- > 0;
}

ssize_t failed() {
  errno = fault_errno;
  return -1;
}

}  // namespace

// The asm label gives the function's name in the library, because with 64-bit offsets the headers make pwrite
// a name of pwrite64.
extern "C" ssize_t library_pwrite(int fd, const void* bytes, size_t count, off_t offset) __asm__("pwrite");
extern "C" ssize_t library_pwrite(int fd, const void* bytes, size_t count, off_t offset) {
  if (fails_now()) {
    if (fault == Fault::kFirstIsWritten && failing_calls == 1)
      (void)::syscall(SYS_pwrite64, fd, bytes, count, offset);
    if (fault != Fault::kShort || count < 2) return failed();
    count /= 2;  // as on a full file system, where the next call would fail
  }
  return ::syscall(SYS_pwrite64, fd, bytes, count, offset);
}

extern "C" ssize_t writev(int fd, const iovec* pieces, int count) {
  if (fails_now()) return failed();
  return ::syscall(SYS_writev, fd, pieces, count);
}

extern "C" int fdatasync(int fd) {
  if (fails_now()) return static_cast<int>(failed());
  return static_cast<int>(::syscall(SYS_fdatasync, fd));
}

namespace kvcachefs::catalog_faults_test {

using test::CatalogChanges;
using test::content_of;
using test::file_node;
using test::NaiveCatalog;
using test::text_of;
using test::units_of;

class CatalogFaultsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    open();
    for (uint64_t number = 0; number < 5; ++number) commit(CatalogChanges(number).batch(naive_, 30));
  }
  void TearDown() override { fault = Fault::kNone; }

  void open() {
    catalog_.reset();
    auto opened = Catalog::open(directory_);
    ASSERT_TRUE(opened) << opened.error().message;
    catalog_ = std::move(*opened);
  }
  void commit(const std::vector<CatalogChange>& batch) {
    const auto freed = catalog_->commit(batch);
    ASSERT_TRUE(freed) << freed.error().message;
    ASSERT_EQ(units_of(*freed), naive_.commit(batch));
  }
  static void arm(Fault kind, int after_calls, int calls, int error) {
    calls_until_fault = after_calls;
    failing_calls = calls;
    fault_errno = error;
    fault = kind;
  }

  // fail_each_call() fails the n-th call of a commit, for each n, until a commit needs fewer calls.
  void fail_each_call(Fault kind, int calls, int error) {
    for (int n = 0;; ++n) {
      ASSERT_LT(n, 200);
      const std::vector<CatalogChange> batch = CatalogChanges(1000 + n).batch(naive_, 10);
      arm(kind, n, calls, error);
      const auto failed = catalog_->commit(batch);
      const bool reached = calls_until_fault < 0;
      fault = Fault::kNone;
      if (failed) {
        ASSERT_EQ(units_of(*failed), naive_.commit(batch)) << "call " << n;
        if (!reached) {
          EXPECT_GT(n, 3) << "calls of a commit";
          return;
        }
      } else {
        EXPECT_TRUE(failed.error().code == error || failed.error().code == EIO) << failed.error().message;
        if (n % 2 == 0) {
          ASSERT_EQ(text_of(*catalog_), naive_.text()) << "call " << n;
        }
        commit(batch);
      }
      ASSERT_EQ(text_of(*catalog_), naive_.text()) << "call " << n;
      open();
      ASSERT_EQ(text_of(*catalog_), naive_.text()) << "call " << n << ", opened again";
    }
  }

  test::DiskDirectory place_;
  const std::string directory_ = place_ / "catalog";
  std::unique_ptr<Catalog> catalog_;
  NaiveCatalog naive_;
};

TEST_F(CatalogFaultsTest, AnErrorAtAnyCallLeavesNothingOfTheBatch) {
  fail_each_call(Fault::kError, 1, EIO);
}

TEST_F(CatalogFaultsTest, ADiskThatFailsFromACallOn) {
  fail_each_call(Fault::kError, 1000, EIO);
}

TEST_F(CatalogFaultsTest, ADiskThatIsFullFromACallOn) {
  fail_each_call(Fault::kError, 1000, ENOSPC);
}

TEST_F(CatalogFaultsTest, AShortWriteAtAnyCall) {
  fail_each_call(Fault::kShort, 1, ENOSPC);
}

// Once the page that makes a commit valid is written, the commit is done, even if the disk reports an error.
// Because LMDB cannot take it back, the catalog has to acknowledge it and hand out the extents that it freed.
TEST_F(CatalogFaultsTest, AWriteThatIsReportedToHaveFailedAndHasNot) {
  fail_each_call(Fault::kFirstIsWritten, 2, EIO);
}

TEST_F(CatalogFaultsTest, AProcessThatEndsAtAnyCall) {
  for (int n = 0;; ++n) {
    ASSERT_LT(n, 200);
    const std::vector<CatalogChange> batch = CatalogChanges(1000 + n).batch(naive_, 10);
    catalog_.reset();
    const int exit_code = test::in_child([&] {
      auto catalog = Catalog::open(directory_);
      arm(Fault::kExit, n, 0, EIO);
      return catalog && (*catalog)->commit(batch) ? 0 : 1;
    });
    open();
    const std::string held = text_of(*catalog_);
    if (held != naive_.text()) {
      naive_.commit(batch);
      ASSERT_EQ(held, naive_.text()) << "call " << n;
    }
    if (exit_code == 0) return;
    ASSERT_EQ(exit_code, 42);
  }
}

TEST_F(CatalogFaultsTest, AMakingThatIsCutAtAnyCall) {
  for (int n = 0;; ++n) {
    ASSERT_LT(n, 50);
    const std::string directory = place_ / ("new" + std::to_string(n));
    const int exit_code = test::in_child([&] {
      arm(Fault::kExit, n, 0, EIO);
      return Catalog::open(directory) ? 0 : 1;
    });
    const auto opened = Catalog::open(directory);
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_EQ(text_of(**opened), "");
    if (exit_code == 0) return;
    ASSERT_EQ(exit_code, 42);
  }
}

// A small ext4 file system on a loop device, which a test can fill.
class SmallFileSystem {
 public:
  static constexpr uint64_t kBytes = 16 << 20;
  SmallFileSystem() : device_(place_.make_file("disk", kBytes)), path_(place_ / "mounted") {
    EXPECT_EQ(test::run({"/sbin/mkfs.ext4", "-q", device_.path()}).exit_code, 0);
    EXPECT_EQ(::mkdir(path_.c_str(), 0755), 0);
    mounted_ = ::mount(device_.path().c_str(), path_.c_str(), "ext4", 0, nullptr) == 0;
  }
  ~SmallFileSystem() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  const std::string& path() const { return path_; }

 private:
  test::DiskDirectory place_;
  test::LoopDevice device_;
  std::string path_;
  bool mounted_ = false;
};

void fill(const std::string& path) {
  const test::File file(path, O_WRONLY | O_CREAT);
  off_t end = 0;
  for (off_t piece = 1 << 20; piece >= 4096;) {
    if (::fallocate(file.fd(), 0, end, piece) == 0)
      end += piece;
    else
      piece /= 2;
  }
}

TEST(CatalogFull, AFullFileSystemLosesNothingAndGoesOnWithRoom) {
  KVCACHEFS_SKIP_IF(test::LoopDevice::available() ? "" : "root and loop devices");
  const SmallFileSystem place;
  ASSERT_TRUE(place.mounted());
  const std::string directory = place.path() + "/catalog";
  auto catalog = Catalog::open(directory);
  ASSERT_TRUE(catalog) << catalog.error().message;
  NaiveCatalog naive;
  uint64_t id = 2;
  const auto more = [&] {
    std::vector<CatalogChange> batch;
    for (int entry = 0; entry < 200; ++entry, ++id) {
      batch.emplace_back(PutNode{file_node(id)});
      batch.emplace_back(PutName{kCatalogRoot, std::to_string(id * 0x9e3779b97f4a7c15), id});
      batch.emplace_back(PutContent{id, content_of({{id, 1}}, id)});
    }
    return batch;
  };
  const auto first = more();
  ASSERT_TRUE((*catalog)->commit(first));
  naive.commit(first);
  for (int round = 0; round < 3; ++round) {
    fill(place.path() + "/ballast");
    bool full = false;
    for (int tries = 0; tries < 50 && !full; ++tries) {
      const auto batch = more();
      const auto outcome = (*catalog)->commit(batch);
      if (outcome) {
        naive.commit(batch);
        continue;
      }
      full = true;
      EXPECT_TRUE(outcome.error().code == ENOSPC || outcome.error().code == EIO) << outcome.error().message;
      EXPECT_EQ(text_of(**catalog), naive.text());
      if (round == 1) {
        catalog->reset();
        catalog = Catalog::open(directory);
        ASSERT_TRUE(catalog) << catalog.error().message;
        EXPECT_EQ(text_of(**catalog), naive.text());
      }
      ASSERT_FALSE((*catalog)->commit(batch));
      ASSERT_EQ(::unlink((place.path() + "/ballast").c_str()), 0);
      const auto committed = (*catalog)->commit(batch);
      ASSERT_TRUE(committed) << committed.error().message;
      naive.commit(batch);
    }
    EXPECT_TRUE(full);
    EXPECT_EQ(text_of(**catalog), naive.text());
  }
  catalog->reset();
  catalog = Catalog::open(directory);
  ASSERT_TRUE(catalog);
  EXPECT_EQ(text_of(**catalog), naive.text());
}

}  // namespace kvcachefs::catalog_faults_test
