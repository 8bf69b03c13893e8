#include "tests/support/sanitizer_reports.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "gtest/gtest.h"
#include "tests/support/files.h"

namespace kvcachefs::test {
namespace {

// The directory is not below a mount's directory, which is removed with the mount. Empty until the tests
// start.
std::string report_directory;

void add_option(const char* variable, const std::string& option) {
  const char* before = std::getenv(variable);
  const std::string all = before == nullptr || *before == '\0' ? option : std::string(before) + ":" + option;
  ::setenv(variable, all.c_str(), 1);
}

void fail_on_reports() {
  const std::string reports = take_sanitizer_reports();
  if (!reports.empty()) ADD_FAILURE() << "a program that the tests started reported:\n" << reports;
}

class ReportDirectory : public ::testing::Environment {
 public:
  void SetUp() override {
    std::string name = "/tmp/kv-reports-" + std::to_string(::getpid()) + "-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr) << name;
    // Daemons of other users may write reports too.
    std::filesystem::permissions(name, std::filesystem::perms::all);
    report_directory = name;
    // This process has already read its options: its reports go to its stderr and into its exit status.
    for (const char* variable : {"ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"})
      add_option(variable, "log_path=" + report_directory + "/report");
    add_option("UBSAN_OPTIONS", "print_stacktrace=1");
  }
  void TearDown() override {
    fail_on_reports();
    std::error_code ignored;
    if (!report_directory.empty()) std::filesystem::remove_all(report_directory, ignored);
  }
};

class ReportListener : public ::testing::EmptyTestEventListener {
  void OnTestEnd(const ::testing::TestInfo&) override { fail_on_reports(); }
};

}  // namespace

void watch_for_sanitizer_reports() {
  ::testing::AddGlobalTestEnvironment(new ReportDirectory);
  ::testing::UnitTest::GetInstance()->listeners().Append(new ReportListener);
}

std::string take_sanitizer_reports() {
  if (report_directory.empty()) return "";
  std::string all;
  for (const std::string& name : list(report_directory)) {
    const std::string file = report_directory + "/" + name;
    all += read_file(file);
    ::unlink(file.c_str());
  }
  return all;
}

}  // namespace kvcachefs::test
