#include "daemon/cli/asker.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <string>
#include <string_view>

#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/unit/daemon/cli_fixture.h"

namespace kvcachefs::asker_test {

constexpr std::chrono::milliseconds kShort(100), kLong(60'000);

// A fifo that has no writer is a file whose daemon does not answer.
class AskerTest : public CliTest {
 protected:
  void hang() {
    ASSERT_EQ(::unlink(version_.c_str()), 0);
    ASSERT_EQ(::mkfifo(version_.c_str(), 0600), 0);
  }
  Asker::Question reading() const {
    return [this]() -> Result<std::string> { return test::read_file(version_); };
  }

  const std::string version_ = mount_.root() / ".kvcachefs/version";
};

TEST_F(AskerTest, AnswersWhatTheQuestionAnswers) {
  Asker asker(kLong);
  EXPECT_EQ(asker.ask("m", reading()).value(), "kvcachefs 0.1.0\n");
  const std::string much(1 << 20, 'x');
  EXPECT_EQ(asker.ask("m", [&]() -> Result<std::string> { return much; }).value(), much);
  EXPECT_EQ(asker.ask("m", []() -> Result<std::string> { return std::string(); }).value(), "");
  const auto failed = asker.ask("m", []() -> Result<std::string> { return fail(ENOTCONN, "gone"); });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ENOTCONN);
  EXPECT_EQ(failed.error().message, "gone");
  EXPECT_EQ(asker.ask("m", []() -> Result<std::string> { ::_exit(0); }).error().code, EIO);
}

TEST_F(AskerTest, OneProcessAtMostWaits) {
  hang();
  Asker asker(kShort);
  const auto begun = asker.ask("/m", reading());
  ASSERT_FALSE(begun);
  EXPECT_EQ(begun.error().code, ETIMEDOUT);
  EXPECT_EQ(begun.error().message, "the daemon of /m does not answer");
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(asker.ask("m", []() -> Result<std::string> { return std::string("now"); }).error().code,
              ETIMEDOUT);
  std::ofstream(version_) << "late";
  EXPECT_TRUE(test::eventually([&] {
    const auto answer = asker.ask("m", []() -> Result<std::string> { return std::string("now"); });
    return answer && *answer == "now";
  }));
}

TEST_F(AskerTest, SaysThatTheDaemonDoesNotAnswer) {
  hang();
  patience_ = std::chrono::milliseconds(100);
  for (const char* command : {"status", "stats", "upgrade", "metrics", "version"}) {
    const Outcome result = run({command});
    EXPECT_EQ(result.exit_code, 1) << command;
    EXPECT_TRUE(result.error.ends_with("the daemon of " + mount_.root().native() + " does not answer\n"))
        << command << ": " << result.error;
  }
}

TEST_F(AskerTest, AHangBetweenTwoViewsEndsThem) {
  patience_ = std::chrono::seconds(1);
  for (const char* command : {"stats", "top"}) {
    views_ = 10;
    on_wait_ = [&] { hang(); };
    const bool is_top = std::string_view(command) == "top";
    const Outcome result = is_top ? run({"top"}) : run({"stats", "--watch", "1"});
    EXPECT_EQ(result.exit_code, 1) << command;
    EXPECT_TRUE(result.error.ends_with(" does not answer\n")) << command << ": " << result.error;
    EXPECT_EQ(views_, 9);
    ASSERT_EQ(::unlink(version_.c_str()), 0);
    mount_.write(".kvcachefs/version", "kvcachefs 0.1.0\n");
  }
}

}  // namespace kvcachefs::asker_test
