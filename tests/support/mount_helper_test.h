// The fixture of the tests of mount.kvcachefs: a directory of its own with a runtime directory and two mount
// points, and the end of the daemon that a helper has started.
#pragma once

#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/program.h"

namespace kvcachefs::test {

class MountHelperTest : public ::testing::Test {
 protected:
  void SetUp() override {
    KVCACHEFS_NEED_DAEMON();
    // Because the daemons outlive the helpers that start them, this process reaps them.
    ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    std::string name = "/tmp/kv-test-" + std::to_string(::getpid()) + "-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    work_dir_ = name;
    make_directory(directory("a"));
    make_directory(directory("b"));
  }

  void TearDown() override {
    if (work_dir_.empty()) return;
    end_daemon();
    EXPECT_TRUE(mounts_below(work_dir_).empty());
    for (const MountPoint& left : mounts_below(work_dir_)) ::umount2(left.directory.c_str(), MNT_DETACH);
    unseal(work_dir_);
    std::filesystem::remove_all(work_dir_);
  }

  // What mount.kvcachefs has left immutable at or below the directory can be removed again.
  static void unseal(const std::string& where) { run({"/usr/bin/chattr", "-R", "-f", "-i", where}); }

  std::string directory(const std::string& name) const { return work_dir_ + "/" + name; }
  std::string base() const { return work_dir_ + "/run/mount"; }
  std::string control(const std::string& pool, const std::string& file) const {
    return base() + "/" + pool + "/.pool/" + file;
  }

  std::vector<std::string> command(const std::string& pool, const std::string& where,
                                   const std::string& options) {
    std::string all = "runtime_dir=" + work_dir_ + "/run,state_dir=" + work_dir_ + "/state";
    if (mode() == Mode::kDaemonIo) all += ",no_passthrough";
    if (mode() == Mode::kIoUring) all += ",io_uring";
    if (!options.empty()) all += "," + options;
    return {"mount.kvcachefs", pool, where, "-o", all};
  }
  Outcome mount_pool(const std::string& pool, const std::string& where, const std::string& options) {
    return run(command(pool, where, options));
  }

  std::vector<MountPoint> mounts_at(const std::string& where) {
    std::vector<MountPoint> found = mounts_below(where);
    std::erase_if(found, [&](const MountPoint& mount) { return mount.directory != where; });
    return found;
  }
  pid_t daemon_pid() {
    const auto stats = parse_stats(read_file(base() + "/.kvcachefs/stats"));
    const std::string supervisor = stats.at("supervisor_pid");
    return static_cast<pid_t>(std::stoi(supervisor != "0" ? supervisor : stats.at("pid")));
  }

  pid_t serving_pid() {
    return static_cast<pid_t>(std::stoi(parse_stats(read_file(base() + "/.kvcachefs/stats")).at("pid")));
  }

  void end_daemon() {
    if (mounts_at(base()).empty()) return;
    const pid_t pid = daemon_pid();
    ::kill(pid, SIGTERM);
    int status = -1;
    EXPECT_TRUE(
        eventually([&] { return ::waitpid(pid, &status, WNOHANG) == pid; }, std::chrono::seconds(30)));
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }

  std::string work_dir_;
};

}  // namespace kvcachefs::test
