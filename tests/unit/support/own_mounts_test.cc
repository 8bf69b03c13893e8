// The unit tests mount in a namespace of their own: what they mount goes with the program, also if it is
// killed.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/support/mount.h"

namespace kvcachefs::own_mounts_test {

class OwnMounts final : public ::testing::Environment {
 public:
  void SetUp() override {
    if (::geteuid() != 0) return;
    ASSERT_EQ(::unshare(CLONE_NEWNS), 0);
    ASSERT_EQ(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
  }
};

const auto* const own_mounts = ::testing::AddGlobalTestEnvironment(new OwnMounts);

TEST(OwnMountsTest, TheMountsAreNotThoseOfTheCaller) {
  KVCACHEFS_SKIP_IF(::geteuid() == 0 ? std::string() : std::string("root"));
  EXPECT_NE(std::filesystem::read_symlink("/proc/thread-self/ns/mnt"),
            std::filesystem::read_symlink("/proc/" + std::to_string(::getppid()) + "/ns/mnt"));
}

}  // namespace kvcachefs::own_mounts_test
