// The fixture of the tests of the supervisor: a mount with an entry whose content is known, and upgrades.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/pool_pressure.h"
#include "tests/support/program.h"

namespace kvcachefs::test {

class SupervisedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    KVCACHEFS_NEED_DAEMON();
    if (mode() == Mode::kIoUring) GTEST_SKIP() << "over io_uring nobody supervises";
  }
  void start(MountOptions options = {}) {
    mount_ = std::make_unique<Mount>(std::move(options));
    ASSERT_EQ(error_name(store(mount_->path() + "/entry", pattern(1, kMiB))), "ok");
  }
  // start_with_faults() returns the path of the file for names of fault points.
  std::string start_with_faults(MountOptions options = {}) {
    const std::string file = "/tmp/kv-fault-" + std::to_string(::getpid());
    ::setenv("KVCACHEFS_FAULT_FILE", file.c_str(), 1);
    start(std::move(options));
    ::unsetenv("KVCACHEFS_FAULT_FILE");
    return file;
  }
  void TearDown() override {
    if (mount_ && HasFailure()) report_daemon_log(*mount_);
  }
  Mount& mount() { return *mount_; }
  std::string daemon_stat(const std::string& name) {
    return parse_stats(read_file(mount_->root() + "/.kvcachefs/stats"))[name];
  }
  Outcome upgrade() { return run({"kvcachefs", "--mount", mount_->root(), "upgrade"}); }
  void expect_refusal(const std::string& reason) {
    const Outcome outcome = upgrade();
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_NE(outcome.error.find(reason), std::string::npos) << outcome.error;
  }
  void expect_entry() { EXPECT_EQ(difference(1, read_file(mount_->path() + "/entry")), ""); }

  std::unique_ptr<Mount> mount_;
};

}  // namespace kvcachefs::test
