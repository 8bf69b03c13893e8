// The fixture of tests that change pools while they serve and start the daemon again on the same settings
// file (daemon/kept_settings.h). One thread; failures are recorded with GoogleTest.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/disks.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/program.h"

namespace kvcachefs::test {

class KeptSettingsFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    KVCACHEFS_NEED_DAEMON();
    ASSERT_EQ(error_of(::chmod(place_.path().c_str(), 0755)), 0);
    make_directory(place_ / "mnt");
    start();
  }
  void TearDown() override {
    if (mount_ && HasFailure()) report_daemon_log(*mount_);
    if (mount_) mount_->stop();
    ::unlink(fault_file().c_str());
    ::unsetenv("KVCACHEFS_FAULT_FILE");
  }
  void start(std::vector<std::string> pools = {"p:size=64M,policy=fifo", "q:size=16M"}) {
    mount_.reset();
    ::setenv("KVCACHEFS_FAULT_FILE", fault_file().c_str(), 1);
    // A pool that is configured may have been deleted, so its names are not waited for.
    mount_ = std::make_unique<Mount>(MountOptions{.pools = std::move(pools),
                                                  .mount_point = place_ / "mnt",
                                                  .runtime_dir = place_ / "run",
                                                  .waits_for_names = false});
  }
  void restart(std::vector<std::string> pools = {"p:size=64M,policy=fifo", "q:size=16M"}) {
    mount_->stop();
    start(std::move(pools));
  }
  Outcome cli(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"kvcachefs", "--mount", mount_->root()});
    return run(arguments);
  }
  void change(const std::vector<std::string>& arguments) {
    const Outcome outcome = cli(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  }
  // `VALUE ORIGIN`.
  std::string get(const std::string& pool, const std::string& key) {
    Outcome outcome = cli({"get", pool, key});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
    std::ranges::replace(outcome.out, '\t', ' ');
    if (outcome.out.ends_with('\n')) outcome.out.pop_back();
    return outcome.out;
  }
  std::vector<std::string> pools() { return list(mount_->root()); }
  std::filesystem::path file() const {
    for (const auto& each : std::filesystem::directory_iterator(place_ / "run.state"))
      if (each.path().extension() == ".settings") return each.path();
    return {};
  }
  std::string fault_file() const { return place_ / "fault"; }
  // What a start says that must not come about.
  std::string refusal() {
    try {
      start();
    } catch (const MountError& error) {
      return error.what();
    }
    ADD_FAILURE() << "it started";
    mount_->stop();
    return "";
  }

  const DiskDirectory place_;
  std::unique_ptr<Mount> mount_;
};

}  // namespace kvcachefs::test
