// A sanitizer's report about a program that a test started is not lost. Builds without sanitizers have no
// reports.
#include "tests/support/sanitizer_reports.h"

#include <stdlib.h>

#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "tests/support/mount.h"
#include "tests/support/program.h"

namespace kvcachefs::test::sanitizer_reports_test {

using ::testing::HasSubstr;

// The started program runs this test; it is disabled in this one.
TEST(SanitizerReports, DISABLED_Wrong) {
#if defined(__SANITIZE_THREAD__)
  int shared = 0;
  std::thread other([&] { ++shared; });
  ++shared;
  other.join();
#elif defined(__SANITIZE_ADDRESS__)
  static int* volatile lost = new int[100];
  EXPECT_NE(lost, nullptr);
  lost = nullptr;
#endif
}

TEST(SanitizerReports, OfAStartedProgramAreFound) {
  ASSERT_EQ(mode_name().empty(), false);  // the call links mount.cc, which starts the watch
  // The one test of that program would fall to the other half of the unit tests as often as not.
  ::unsetenv("GTEST_TOTAL_SHARDS");
  ::unsetenv("GTEST_SHARD_INDEX");
  run({"/proc/self/exe", "--gtest_also_run_disabled_tests",
       "--gtest_filter=SanitizerReports.DISABLED_Wrong"});
  const std::string reports = take_sanitizer_reports();
#if defined(__SANITIZE_THREAD__)
  EXPECT_THAT(reports, HasSubstr("data race"));
#elif defined(__SANITIZE_ADDRESS__)
  EXPECT_THAT(reports, HasSubstr("LeakSanitizer"));
#else
  EXPECT_EQ(reports, "");
#endif
  EXPECT_EQ(take_sanitizer_reports(), "") << "a report counts once";
}

}  // namespace kvcachefs::test::sanitizer_reports_test
