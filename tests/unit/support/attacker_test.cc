// The attackers of the hostile tests have the identity and the capabilities that they should have, and leave
// nothing behind.
#include "tests/support/attacker.h"

#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::test::attacker_test {

class AttackerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "ThreadSanitizer has a thread in each process: unshare(2) makes a user namespace for one "
                    "with none";
#endif
    for (const Attacker attacker : {Attacker::kUserNamespaceRoot, Attacker::kUsersNamespaceRoot})
      KVCACHEFS_SKIP_IF(lacking(attacker));
    pool_ = std::make_unique<PlainTmpfs>("size=16M,mode=1777");
    ASSERT_EQ(::chown(pool_->path().c_str(), 1234, 1235), 0);
    write_file(pool_->path() + "/of_root", "x", 0600);
    mounts_ = own_mounts();
  }
  void TearDown() override {
    if (pool_ == nullptr) return;
    EXPECT_EQ(own_mounts(), mounts_) << "something stayed mounted";
  }

  // Only the mounts of this test are counted, because other tests mount and unmount at the same time.
  size_t own_mounts() const {
    return std::ranges::count_if(read_mounts().value(), [this](const MountPoint& mount) {
      return mount.source == "container" || mount.directory.starts_with(pool_->path());
    });
  }
  int as(Attacker attacker, const std::function<int(const std::string&)>& attack,
         std::chrono::milliseconds deadline = std::chrono::seconds(60)) {
    return attack_as(attacker, pool_->path(), attack, deadline);
  }
  // read_of_root() returns 0 or the errno of reading root's file in the pool as this attacker.
  int read_of_root(Attacker attacker) {
    return as(attacker, [](const std::string& place) {
      std::string content;
      return load(place + "/of_root", &content);
    });
  }

  std::unique_ptr<PlainTmpfs> pool_;
  size_t mounts_ = 0;
};

int user_and_group(const std::string&) {
  return ::geteuid() == kNobody && ::getegid() == kNobody ? 0 : 1;
}
int is_root(const std::string&) {
  return ::geteuid() == 0 && ::getegid() == 0 ? 0 : 1;
}
std::string capabilities() {
  const std::string status = read_file("/proc/self/status");
  const size_t at = status.find("CapEff:\t");
  return status.substr(at + 8, status.find('\n', at) - at - 8);
}

TEST_F(AttackerTest, AreWhoTheySay) {
  EXPECT_EQ(as(Attacker::kUser, user_and_group), 0);
  EXPECT_EQ(as(Attacker::kPoolOwner,
               [](const std::string&) { return ::geteuid() == 1234 && ::getegid() == 1235 ? 0 : 1; }),
            0);
  for (const Attacker root : {Attacker::kContainerRoot, Attacker::kDockerRoot, Attacker::kUserNamespaceRoot,
                              Attacker::kUsersNamespaceRoot}) {
    EXPECT_EQ(as(root, is_root), 0) << attacker_name(root);
  }
}

TEST_F(AttackerTest, CanWhatTheySay) {
  EXPECT_EQ(error_name(read_of_root(Attacker::kUser)), "EACCES");
  EXPECT_EQ(error_name(read_of_root(Attacker::kPoolOwner)), "EACCES");
  EXPECT_EQ(error_name(read_of_root(Attacker::kContainerRoot)), "ok") << "the file is its own";
  EXPECT_EQ(error_name(read_of_root(Attacker::kUserNamespaceRoot)), "ok");
  EXPECT_EQ(error_name(read_of_root(Attacker::kUsersNamespaceRoot)), "EACCES");
  EXPECT_EQ(as(Attacker::kContainerRoot,
               [](const std::string&) { return capabilities() == "0000000000000000" ? 0 : 1; }),
            0);
  const auto mounts = [](const std::string& place) {
    return error_of(::mount("x", place.c_str(), "tmpfs", 0, nullptr));
  };
  EXPECT_EQ(error_name(as(Attacker::kContainerRoot, mounts)), "EPERM");
  EXPECT_EQ(error_name(as(Attacker::kDockerRoot, mounts)), "EPERM");
  EXPECT_EQ(error_name(as(Attacker::kUserNamespaceRoot, mounts)), "ok") << "in its own mount namespace";
  const auto changes_owner = [](const std::string& place) {
    return error_of(::chown((place + "/of_root").c_str(), 7, 7));
  };
  EXPECT_EQ(error_name(as(Attacker::kContainerRoot, changes_owner)), "EPERM");
  EXPECT_EQ(error_name(as(Attacker::kDockerRoot, changes_owner)), "ok");
}

TEST_F(AttackerTest, AContainerSeesThePoolAloneAndItsOwnProcesses) {
  EXPECT_EQ(as(Attacker::kContainerRoot,
               [](const std::string& place) {
                 if (list("/") != std::vector<std::string>{"pool", "proc", "tmp"}) return 1;
                 if (list(place) != std::vector<std::string>{"of_root"}) return 2;
                 if (::getpid() != 1 || exists("/proc/2")) return 3;
                 write_file(place + "/made", "y");
                 return 0;
               }),
            0);
  EXPECT_EQ(read_file(pool_->path() + "/made"), "y") << "it is the pool itself";
}

TEST_F(AttackerTest, OneThatHangsIsKilledAtTheDeadline) {
  for (const Attacker attacker : {Attacker::kUser, Attacker::kContainerRoot}) {
    EXPECT_EQ(as(
                  attacker,
                  [](const std::string&) {
                    for (;;) ::pause();
                    return 0;
                  },
                  std::chrono::milliseconds(300)),
              -1);
  }
}

}  // namespace kvcachefs::test::attacker_test
