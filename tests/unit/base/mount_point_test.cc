#include "base/mountinfo.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>

#include "tests/support/disks.h"
#include "tests/support/files.h"

namespace kvcachefs::mount_point_test {

TEST(MountPoint, ADeadDaemonIsKnownByItsErrors) {
  for (const int code : {ENOTCONN, ECONNABORTED, ECANCELED}) EXPECT_TRUE(is_daemon_gone(code)) << code;
  for (const int code : {0, EIO, ENOENT, ESTALE, ECONNREFUSED}) EXPECT_FALSE(is_daemon_gone(code)) << code;
}

TEST(MountPoint, IsAbsoluteAndWithoutLinks) {
  const test::DiskDirectory place;
  test::make_directory(place / "real");
  ASSERT_EQ(::symlink("real", (place / "link").c_str()), 0);
  for (const std::string& path :
       {place / "real", place / "link", place / "link/", place / "./link/../real/.", place / "real//"}) {
    const auto resolved = resolve_mount_point(path);
    ASSERT_TRUE(resolved) << path;
    EXPECT_EQ(resolved->native(), place / "real") << path;
  }
  EXPECT_EQ(resolve_mount_point("/")->native(), "/");
}

TEST(MountPoint, WhatIsMissingIsNamedAsItWasGiven) {
  const test::DiskDirectory place;
  test::write_file(place / "file", "x");
  ASSERT_EQ(::symlink("loop", (place / "loop").c_str()), 0);
  struct Case {
    std::string path;
    int code;
  };
  for (const Case& its : {Case{place / "missing", ENOENT}, Case{place / "file/below", ENOTDIR},
                          Case{place / "loop", ELOOP}, Case{"kv no such directory", ENOENT}}) {
    const auto resolved = resolve_mount_point(its.path);
    ASSERT_FALSE(resolved) << its.path;
    EXPECT_EQ(resolved.error().code, its.code);
    EXPECT_TRUE(resolved.error().message.starts_with(its.path + ": ")) << resolved.error().message;
  }
}

}  // namespace kvcachefs::mount_point_test
