#include "base/log.h"

#include <gtest/gtest.h>

#include <string>

namespace kvcachefs {
namespace {

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
  if (log_debug_enabled()) GTEST_SKIP() << "KVCACHEFS_DEBUG is set";
  testing::internal::CaptureStderr();
  log_debug("not {}", "seen");
  log_line(LogLevel::kDebug, "nor this");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace kvcachefs
