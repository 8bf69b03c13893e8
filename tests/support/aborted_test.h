// The fixture of the tests of aborted connections: pools that the helper binds, and the connection's abort
// file.
#pragma once

#include <sys/mount.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/pool_pressure.h"
#include "tests/support/program.h"

namespace kvcachefs::test {

class AbortedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    KVCACHEFS_NEED_DAEMON();
    if (mode() == Mode::kIoUring) GTEST_SKIP() << "over io_uring the daemon ends";
    std::string name = "/tmp/kv-test-" + std::to_string(::getpid()) + "-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    work_dir_ = name;
    make_directory(work_dir_ + "/connections");
    ASSERT_EQ(error_of(::mount("none", (work_dir_ + "/connections").c_str(), "fusectl", 0, nullptr)), 0);
  }
  void TearDown() override {
    if (mount_ && HasFailure()) report_daemon_log(*mount_);
    for (const MountPoint& left : mounts_below(work_dir_)) ::umount2(left.directory.c_str(), MNT_DETACH);
    run({"/usr/bin/chattr", "-R", "-f", "-i", work_dir_});  // what the helper has sealed
    std::filesystem::remove_all(work_dir_);
  }
  void start(MountOptions options = {.pools = {"p:size=64M", "q:size=16M"}}) {
    fault_file_ = work_dir_ + "/faults";
    ::setenv("KVCACHEFS_FAULT_FILE", fault_file_.c_str(), 1);
    mount_ = std::make_unique<Mount>(std::move(options));
    ::unsetenv("KVCACHEFS_FAULT_FILE");
    ASSERT_EQ(error_name(store(entry(), pattern(1, kMiB))), "ok");
  }
  Mount& mount() { return *mount_; }
  std::string entry() { return mount().path() + "/entry"; }
  // Has the helper bind a pool's directory, and answers where.
  std::string bind(const std::string& pool, const std::string& name, const std::string& options = {}) {
    const std::string where = work_dir_ + "/" + name;
    if (!exists(where)) make_directory(where);
    const Outcome outcome =
        run({"mount.kvcachefs", pool, where, "-o",
             "mountpoint=" + mount().root() + ",runtime_dir=" + mount().runtime_dir() + options});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
    EXPECT_EQ(mounts_below(where).size(), 1u);
    return where;
  }
  void abort() {
    const auto mounts = mounts_below(mount().root());
    ASSERT_FALSE(mounts.empty());
    const std::string& device = mounts.back().device;  // a stat() would need an answer
    const std::string number = device.substr(device.find(':') + 1);
    ASSERT_EQ(write_once(work_dir_ + "/connections/" + number + "/abort", "1"), 0);
  }
  // The pool is served, by a new connection, and the mounts are bound again.
  void expect_entry(const std::string& path) {
    std::string content;
    EXPECT_TRUE(eventually([&] { return load(path, &content) == 0; })) << path << "\n" << mount().log();
    EXPECT_EQ(difference(1, content), "") << path;
    EXPECT_EQ(content.size(), kMiB);
  }
  void arm(const std::string& lines) { ASSERT_EQ(store(fault_file_, lines + "\n"), 0); }
  void await_pause() {
    EXPECT_TRUE(eventually([&] { return exists(fault_file_ + ".paused"); }));
  }
  void end_pause() { ASSERT_EQ(::unlink((fault_file_ + ".paused").c_str()), 0); }
  std::string daemon_stat(const std::string& name) {
    return parse_stats(read_file(mount().root() + "/.kvcachefs/stats"))[name];
  }
  size_t descriptors() { return list("/proc/" + std::to_string(mount().pid()) + "/fd").size(); }

  std::string work_dir_, fault_file_;
  std::unique_ptr<Mount> mount_;
};

}  // namespace kvcachefs::test
