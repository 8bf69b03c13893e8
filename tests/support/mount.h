// The harness of the mount tests. A Mount starts the real kvcachefsd on a mount point, in the mode that the
// environment names, and removes all traces at its end.
//
// Threads: a Mount belongs to the thread that made it; any thread may use path() and the free functions.
// Failure: the constructor throws MountError with the daemon's log (GoogleTest reports that as a failure);
// stop() records GoogleTest failures and always cleans up.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/mountinfo.h"
#include "gtest/gtest.h"
#include "tests/support/disks.h"
#include "tests/support/mode.h"

namespace kvcachefs::test {

struct MountError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// This is a function because g++ 12 crashes on a braced list as the member's default.
inline std::vector<std::string> one_small_pool() {
  return {"p:size=64M"};
}

struct MountOptions {
  std::vector<std::string> pools = one_small_pool();  // values of --pool
  std::vector<std::string> options = {};              // values of -o, in addition to those of the mode
  std::vector<std::string> arguments = {};            // other arguments, before the mount point
  std::string mount_point = {};                       // empty: a fresh one
  std::string runtime_dir = {};                       // empty: a fresh one
  bool waits_for_names = true;                        // of pools with spill=, before the constructor returns
};

class Mount {
 public:
  explicit Mount(MountOptions options = {});
  ~Mount();
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;

  const std::string& root() const { return root_; }
  std::string path(std::string_view pool = "p") const { return root_ + "/" + std::string(pool); }
  std::string control(std::string_view file, std::string_view pool = "p") const {
    return path(pool) + "/.pool/" + std::string(file);
  }
  // The place of a file that only the host's administrator may use.
  std::string administrators(std::string_view file, std::string_view pool = "p") const {
    return root_ + "/.kvcachefs/pools/" + std::string(pool) + "/" + std::string(file);
  }
  // The place where the administrator writes a setting.
  std::string place_to_write(std::string_view file, std::string_view pool = "p") const {
    const std::string place = administrators(file, pool);
    return ::access(place.c_str(), F_OK) == 0 ? place : control(file, pool);
  }
  const std::string& runtime_dir() const { return runtime_dir_; }
  pid_t pid() const { return pid_; }  // the supervisor's, if there is one
  pid_t serving_pid() const;          // the supervisor's child; 0 while there is none
  // The process that does the work.
  pid_t server_pid() const { return serving_pid() > 0 ? serving_pid() : pid_; }
  std::string log() const;

  // stop() sends SIGTERM; the daemon has to exit with 0 and its mounts have to be gone. Violations are
  // recorded and cleaned up.
  void stop();
  // kill() sends SIGKILL and waits: the mount point is left stale, as after a crash.
  void kill();
  // wait_for_exit() waits for an exit that something else causes. Returns the exit code, 128 + signal, or -1
  // at the deadline.
  int wait_for_exit(std::chrono::milliseconds deadline);

  // The squeezer orders entries out of memory if every pool spills; stop_squeezing() returns when its last
  // order is done. The constructor starts it, and SharedMount starts it again for each test.
  void start_squeezing();
  void stop_squeezing();
  // kill_server() kills the serving process after the time `after`. If `once_it_serves`, it first waits until
  // a server has said since the last kill that it serves; otherwise the killed server may not have begun to
  // serve.
  void kill_server(bool once_it_serves, std::chrono::milliseconds after);
  // The killer kills the serving process all the time if KVCACHEFS_TEST_KILL=1; the constructor starts it.
  void start_killing();
  void stop_killing();

  // The `name value` lines as a map; throws if the file cannot be read.
  std::map<std::string, std::string> stats(std::string_view pool = "p") const;
  int64_t stat_value(std::string_view name, std::string_view pool = "p") const;

 private:
  void start_daemon();
  void start_tmpfs();
  std::string with_disk_tier(const std::string& pool);
  void wait_until_serving();
  void wait_for_names() const;
  void clean_up();

  MountOptions options_;
  std::string work_dir_;  // /tmp/kv-test-PID-XXXXXX: holds the files of this mount
  std::string root_;
  std::string runtime_dir_;
  std::string log_file_;
  std::unique_ptr<DiskDirectory> disk_;  // for the pools that get a disk tier from the harness
  pid_t squeezer_ = -1;
  pid_t killer_ = -1;
  size_t killed_servers_ = 0;  // how many servers had said that they serve at the last kill_server()
  pid_t pid_ = -1;
  bool running_ = false;
};

// A plain tmpfs, with which the mount is compared.
class PlainTmpfs {
 public:
  explicit PlainTmpfs(std::string_view tmpfs_options = "size=512M");
  ~PlainTmpfs();
  PlainTmpfs(const PlainTmpfs&) = delete;
  PlainTmpfs& operator=(const PlainTmpfs&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A fixture with one daemon for all tests of a suite. The suite says `class PoolsTest : public
// SharedMount<PoolsTest>` and may define `static MountOptions options()`. After each test the content of pool
// `p` is removed.
template <typename Suite>
class SharedMount : public ::testing::Test {
 public:
  static MountOptions options() { return {}; }
  static bool needs_daemon() { return true; }

  static void SetUpTestSuite() {
    if (!reason().empty()) return;
    mount_ = std::make_unique<Mount>(Suite::options());
  }
  static void TearDownTestSuite() {
    if (mount_) mount_->stop();
    mount_.reset();
  }

 protected:
  void SetUp() override {
    KVCACHEFS_SKIP_IF(reason());
    ASSERT_NE(mount_, nullptr) << "the daemon of this suite did not start";
    mount_->start_squeezing();
  }
  void TearDown() override;

  static Mount& mount() { return *mount_; }
  static std::string path(std::string_view name) { return mount_->path() + "/" + std::string(name); }

 private:
  static std::string reason() { return Suite::needs_daemon() ? missing_daemon() : missing_capability(); }
  static inline std::unique_ptr<Mount> mount_;
};

// remove_content() removes all entries below `directory`, but not `directory`; errors are ignored.
void remove_content(const std::string& directory);
// report_daemon_log() prints the last 8000 bytes of the daemon's log to stderr.
void report_daemon_log(const Mount& mount);

template <typename Suite>
void SharedMount<Suite>::TearDown() {
  if (!mount_) return;
  if (HasFailure()) report_daemon_log(*mount_);
  remove_content(mount_->path());
}

// True as soon as `condition` is true; false at the deadline. Tests wait for conditions only here. The
// deadline is long, because it costs nothing where the condition comes true, and a busy machine needs much of
// it.
bool eventually(const std::function<bool()>& condition,
                std::chrono::milliseconds deadline = std::chrono::seconds(60));

// The mounts at `prefix` or below it.
std::vector<MountPoint> mounts_below(const std::string& prefix);

}  // namespace kvcachefs::test
