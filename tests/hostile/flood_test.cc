// How much one user can make the daemon log or keep by making refused calls as fast as he can.
#include <fcntl.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <string>

#include "gtest/gtest.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::test {
namespace {

constexpr uid_t kNobody = 65534;
constexpr int kRefusals = 3000;
constexpr size_t kMostLogBytes = 8192;

TEST(Flood, RefusalsOfOneUserAreNotAllWrittenDown) {
  KVCACHEFS_NEED_DAEMON();
  Mount mount({.pools = {"p:size=64M,pinned_max=0%"}});
  const size_t log_before = mount.log().size();
  const int refused = as_user(kNobody, kNobody, [&] {
    const std::string name = mount.path() + "/entry";
    write_file(name, "content");
    for (int i = 0; i < kRefusals; ++i)
      if (set_xattr(name, "user.kvcachefs.pinned", "1") != ENOSPC) return 1;
    return 0;
  });
  EXPECT_EQ(refused, 0);
  EXPECT_NE(mount.log().find("no room to pin", log_before), std::string::npos) << "not even the first";
  EXPECT_LT(mount.log().size() - log_before, kMostLogBytes);
  // Messages about the administrator's own calls are logged nevertheless.
  const size_t log_of_root = mount.log().size();
  EXPECT_EQ(error_name(write_once(mount.control("evict"), "some nonsense")), "EINVAL");
  EXPECT_TRUE(
      eventually([&] { return mount.log().find("some nonsense", log_of_root) != std::string::npos; }));
}

}  // namespace
}  // namespace kvcachefs::test
