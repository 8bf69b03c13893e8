// A mount with mapped ids, as Kubernetes makes one for a pod with its own users (hostUsers: false).
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "tests/support/attacker.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::test {
namespace {

constexpr uid_t kFirst = 100'000;  // of the pod's users on the host

class IdmapTest : public SharedMount<IdmapTest> {
 protected:
  // The id I of a file is kFirst + I in the mount.
  static File user_namespace() {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      if (::unshare(CLONE_NEWUSER) != 0) ::_exit(1);
      (void)!::write(ready[1], "", 1);
      ::pause();
      ::_exit(0);
    }
    char byte = 0;
    ::close(ready[1]);
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    const std::string process = "/proc/" + std::to_string(child);
    const std::string map = "0 " + std::to_string(kFirst) + " 65536\n";
    EXPECT_EQ(write_once(process + "/uid_map", map), 0);
    EXPECT_EQ(write_once(process + "/gid_map", map), 0);
    File opened(process + "/ns/user", O_RDONLY);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    return opened;
  }

  void SetUp() override {
    SharedMount::SetUp();
    KVCACHEFS_SKIP_IF(lacking(Attacker::kUserNamespaceRoot));
    if (IsSkipped() || HasFatalFailure()) return;
    ASSERT_EQ(::chmod(path("").c_str(), 01777), 0);
    ::snprintf(place_, sizeof place_, "/tmp/kv-test-idmap-XXXXXX");
    ASSERT_NE(::mkdtemp(place_), nullptr);
    const File tree(static_cast<int>(::syscall(SYS_open_tree, AT_FDCWD, path("").c_str(), OPEN_TREE_CLONE)));
    ASSERT_GE(tree.fd(), 0);
    const File users = user_namespace();
    mount_attr mapped{};
    mapped.attr_set = MOUNT_ATTR_IDMAP;
    mapped.userns_fd = static_cast<uint64_t>(users.fd());
    const long set = ::syscall(SYS_mount_setattr, tree.fd(), "", AT_EMPTY_PATH, &mapped, sizeof mapped);
    const std::string error = error_name(error_of(set));
    ASSERT_EQ(error, "ok");
    ASSERT_EQ(::syscall(SYS_move_mount, tree.fd(), "", AT_FDCWD, place_, MOVE_MOUNT_F_EMPTY_PATH), 0);
    mounted_ = true;
  }
  void TearDown() override {
    if (mounted_) {
      EXPECT_EQ(::umount2(place_, MNT_DETACH), 0);
    }
    if (place_[0] != '\0') ::rmdir(place_);
    SharedMount::TearDown();
  }
  std::string inside(const std::string& name) const { return std::string(place_) + "/" + name; }
  static struct ::stat status(const std::string& name) {
    struct ::stat result {};
    EXPECT_EQ(::lstat(name.c_str(), &result), 0) << name;
    return result;
  }

 private:
  char place_[64] = {};
  bool mounted_ = false;
};

TEST_F(IdmapTest, WhatIsMadeInItIsItsUsers) {
  const int made = as_user(kFirst + 5, kFirst + 6, [&] {
    if (store(inside("e"), "content") != 0) return 1;
    if (::mkdir(inside("d").c_str(), 0700) != 0) return 2;
    if (::symlink("e", inside("link").c_str()) != 0) return 3;
    if (read_file(inside("e")) != "content") return 4;
    if (::chmod(inside("e").c_str(), 0600) != 0) return 5;
    if (store(inside("d/f"), "other") != 0) return 6;
    if (set_xattr(inside("e"), "user.kv.layer", "5") != 0) return 7;
    return 0;
  });
  ASSERT_EQ(made, 0);
  for (const char* name : {"e", "d", "link", "d/f"}) {
    EXPECT_EQ(status(path(name)).st_uid, 5u) << name;
    EXPECT_EQ(status(path(name)).st_gid, 6u) << name;
    EXPECT_EQ(status(inside(name)).st_uid, kFirst + 5) << name;
    EXPECT_EQ(status(inside(name)).st_gid, kFirst + 6) << name;
  }
  // Other users have no rights on the file through either mount.
  EXPECT_EQ(as_user(kFirst + 7, kFirst + 7, [&] { return error_of(::open(inside("e").c_str(), O_RDONLY)); }),
            EACCES);
  EXPECT_EQ(as_user(kFirst + 5, kFirst + 6, [&] { return error_of(::open(path("e").c_str(), O_RDONLY)); }),
            EACCES);
  EXPECT_EQ(as_user(5, 6, [&] { return read_file(path("e")) == "content" ? 0 : 1; }), 0);
  // A user without an id in the mapping can make no file.
  EXPECT_EQ(as_user(65534, 65534, [&] { return store(inside("no"), "x"); }), EOVERFLOW);
  ASSERT_EQ(::chown(inside("e").c_str(), kFirst + 9, kFirst + 9), 0);
  EXPECT_EQ(status(path("e")).st_uid, 9u);
}

// Once a mapped mount exists, most requests do not name the user any more, on the host's mount either.
TEST_F(IdmapTest, RightsAreAsBefore) {
  EXPECT_EQ(as_user(65534, 65534, [&] { return write_once(mount().control("size"), "128M"); }), EACCES);
  EXPECT_EQ(as_user(65534, 65534,
                    [&] { return error_of(::mkdir((mount().root() + "/q").c_str(), 0755)) == 0 ? 0 : 1; }),
            1);
  EXPECT_EQ(write_once(mount().administrators("size"), "80M"), 0);
  EXPECT_EQ(write_once(mount().administrators("size"), "64M"), 0);
  ASSERT_EQ(::mkdir((mount().root() + "/q").c_str(), 0755), 0);
  EXPECT_EQ(::rmdir((mount().root() + "/q").c_str()), 0);
}

}  // namespace
}  // namespace kvcachefs::test
