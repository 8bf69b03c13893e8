// A daemon as it serves: how it takes requests, and what it says of that.
#include <string>
#include <thread>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::test {
namespace {

class ServingTest : public ::testing::Test {
 protected:
  void SetUp() override { KVCACHEFS_NEED_DAEMON(); }
};

TEST_F(ServingTest, PollsForRequestsIfItIsTold) {
  Mount mount({.options = {"poll_us=50"}});
  // It serves a moment before it knows all of itself.
  ASSERT_TRUE(eventually([&] { return mount.log().find(" serves ") != std::string::npos; })) << mount.log();
  const auto stats = parse_stats(read_file(mount.root() + "/.kvcachefs/stats"));
  EXPECT_EQ(stats.at("poll_us"), mode() == Mode::kIoUring ? "0" : "50");
  std::vector<std::thread> clients;
  for (int client = 0; client < 4; ++client) {
    clients.emplace_back([&, client] {
      for (int i = 0; i < 200; ++i) {
        const std::string name = mount.path() + "/e-" + std::to_string(client);
        EXPECT_EQ(store(name, pattern(i, 1000)), 0);
        EXPECT_EQ(difference(i, read_file(name)), "");
      }
    });
  }
  for (std::thread& client : clients) client.join();
  mount.stop();
}

// The kernel here offers it to root; without CAP_SYS_ADMIN there is no mount to ask.
TEST_F(ServingTest, SaysWhyThereIsNoPassthrough) {
  Mount mount;
  ASSERT_TRUE(eventually([&] { return mount.log().find(" serves ") != std::string::npos; })) << mount.log();
  const bool said =
      mount.log().find("<6>no passthrough: no_passthrough asks for none\n") != std::string::npos;
  EXPECT_EQ(said, mode() == Mode::kDaemonIo) << mount.log();
  EXPECT_EQ(mount.log().find("no passthrough: ") != std::string::npos, said) << mount.log();
  mount.stop();
}

}  // namespace
}  // namespace kvcachefs::test
