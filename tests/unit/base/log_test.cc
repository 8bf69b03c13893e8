#include "base/log.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "base/log_limit.h"

namespace kvcachefs::log_test {

TEST(Log, LineCarriesThePriority) {
  testing::internal::CaptureStderr();
  log_error("error {}", 1);
  log_warning("warning {}", "two");
  log_info("plain");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "<3>error 1\n<4>warning two\n<6>plain\n");
}

TEST(Log, ControlCharactersAreEscaped) {
  testing::internal::CaptureStderr();
  log_line(LogLevel::kInfo, std::string_view("a\nb\tc\x1b[1m\x7f\0z", 12));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "<6>a\\nb\\tc\\x1b[1m\\x7f\\x00z\n");
}

TEST(Log, OtherBytesPass) {
  testing::internal::CaptureStderr();
  log_info("{}", "gr\xc3\xbc\xc3\x9f {}");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "<6>gr\xc3\xbc\xc3\x9f {}\n");
}

TEST(Log, DebugIsOffUnlessAskedFor) {
  if (std::getenv("KVCACHEFS_DEBUG") != nullptr) GTEST_SKIP() << "KVCACHEFS_DEBUG is set";
  testing::internal::CaptureStderr();
  log_line(LogLevel::kDebug, "not seen");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Log, AMessageHasAnEnd) {
  testing::internal::CaptureStderr();
  log_line(LogLevel::kWarning, std::string(100'000, 'x'));
  const std::string line = testing::internal::GetCapturedStderr();
  EXPECT_LT(line.size(), 3000u);
  EXPECT_TRUE(line.ends_with("x...\n"));
}

TEST(LogLimit, SaysOneAnIntervalAndHowManyItDidNotSay) {
  LogLimit limit(1, 100);
  EXPECT_EQ(limit.due(5), 0u);
  EXPECT_EQ(limit.due(5), std::nullopt);
  EXPECT_EQ(limit.due(104), std::nullopt);
  EXPECT_EQ(limit.due(105), 2u);
  EXPECT_EQ(limit.due(106), std::nullopt);
  EXPECT_EQ(limit.due(10'000), 1u);
  EXPECT_EQ(limit.due(20'000), 0u);
}

TEST(LogLimit, ABurstIsSaidWhole) {
  LogLimit limit(3, 100);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(limit.due(1), 0u);
  EXPECT_EQ(limit.due(100), std::nullopt);
  EXPECT_EQ(limit.due(101), 1u);
  EXPECT_EQ(limit.due(150), 0u);
}

TEST(LogLimit, WritesOnlyWhatIsDue) {
  LogLimit limit;
  testing::internal::CaptureStderr();
  for (int i = 0; i < 5; ++i) limit.warning("entry {}", i);
  LogLimit other;
  other.error("disk {}", 7);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "<4>entry 0\n<3>disk 7\n");
}

}  // namespace kvcachefs::log_test
