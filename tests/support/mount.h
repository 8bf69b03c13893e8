// The harness of the mount tests: starts the real kvcachefsd on a mount point of its own, in the mode the
// environment names, and leaves nothing behind.
//
// Environment: KVCACHEFS_TEST_MODE is passthrough (default), daemon_io, io_uring, or tmpfs (no daemon: each
// pool is a plain tmpfs, which proves the parity tests against themselves). KVCACHEFS_REQUIRE=all makes a
// missing capability a failure. KVCACHEFS_DAEMON_ARGS adds arguments to every daemon. KVCACHEFS_TEST_SPILL=1
// gives each pool that names no disk tier one, and takes its entries out of memory all the time: tests that
// know of no disk tier then prove that none is to be noticed. KVCACHEFS_TEST_KILL=1 kills the serving process
// of every daemon all the time: tests that know of no such thing then prove that nobody notices.
//
// Threads: a Mount belongs to the thread that made it; path() and the free functions may be used from any.
// Failure: the constructor throws MountError with the daemon's log in it (GoogleTest reports that as a
// failure); stop() records GoogleTest failures and always cleans up.
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

#include "gtest/gtest.h"
#include "tests/support/disks.h"

namespace kvcachefs::test {

enum class Mode { kPassthrough, kDaemonIo, kIoUring, kTmpfs };

Mode mode();
std::string_view mode_name();

// Why this mode cannot run on this machine; empty if it can.
std::string missing_capability();
// The same, for tests that need a daemon (control files, eviction): also names the tmpfs mode.
std::string missing_daemon();
bool everything_required();
bool every_pool_spills();   // KVCACHEFS_TEST_SPILL=1
bool servers_are_killed();  // KVCACHEFS_TEST_KILL=1

// First line of a test or of SetUp() that needs what `reason` says is missing.
#define KVCACHEFS_SKIP_IF(reason)                                                         \
  do {                                                                                    \
    if (const std::string skip_reason = (reason); !skip_reason.empty()) {                 \
      if (::kvcachefs::test::everything_required()) FAIL() << "missing: " << skip_reason; \
      GTEST_SKIP() << skip_reason;                                                        \
    }                                                                                     \
  } while (false)

#define KVCACHEFS_NEED_MOUNT() KVCACHEFS_SKIP_IF(::kvcachefs::test::missing_capability())
#define KVCACHEFS_NEED_DAEMON() KVCACHEFS_SKIP_IF(::kvcachefs::test::missing_daemon())

struct MountError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A function: g++ 12 crashes on a braced list as the default of the member.
inline std::vector<std::string> one_small_pool() {
  return {"p:size=64M"};
}

struct MountOptions {
  std::vector<std::string> pools = one_small_pool();  // values of --pool
  std::vector<std::string> options = {};              // values of -o, beside those of the mode
  std::vector<std::string> arguments = {};            // anything else, before the mount point
  std::string mount_point = {};                       // empty: one of its own
  std::string runtime_dir = {};                       // empty: one of its own
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
  // Of what only the host's administrator may do.
  std::string administrators(std::string_view file, std::string_view pool = "p") const {
    return root_ + "/.kvcachefs/pools/" + std::string(pool) + "/" + std::string(file);
  }
  // Where the administrator writes a setting.
  std::string place_to_write(std::string_view file, std::string_view pool = "p") const {
    const std::string place = administrators(file, pool);
    return ::access(place.c_str(), F_OK) == 0 ? place : control(file, pool);
  }
  const std::string& runtime_dir() const { return runtime_dir_; }
  pid_t pid() const { return pid_; }  // the supervisor's, where there is one
  pid_t serving_pid() const;          // its child; 0 while there is none
  pid_t server_pid() const { return serving_pid() > 0 ? serving_pid() : pid_; }  // who does the work
  std::string log() const;

  // SIGTERM; the daemon has to exit with 0 and its mounts have to be gone. Failures are recorded and cleaned
  // up.
  void stop();
  // SIGKILL and wait: the mount point is left stale, as a crash leaves it.
  void kill();
  // Waits for an exit that something else causes; the exit code, 128 + signal, or -1 at the deadline.
  int wait_for_exit(std::chrono::milliseconds deadline);

  // What takes the entries out of memory where every pool spills; returns when the last order is done. On at
  // first, and again for each test of a SharedMount.
  void start_squeezing();
  void stop_squeezing();
  // One is killed, which has come to serve before, or may not have.
  void kill_server(bool once_it_serves, std::chrono::milliseconds after);
  // The same for what kills the serving process.
  void start_killing();
  void stop_killing();

  // `name value` lines as a map; throws MountError if the file cannot be read.
  std::map<std::string, std::string> stats(std::string_view pool = "p") const;
  int64_t stat_value(std::string_view name, std::string_view pool = "p") const;

 private:
  void start_daemon();
  void start_tmpfs();
  std::string with_disk_tier(const std::string& pool);
  void wait_until_serving();
  void clean_up();

  MountOptions options_;
  std::string work_dir_;  // /tmp/kv-test-PID-XXXXXX: holds all that belongs to this mount
  std::string root_;
  std::string runtime_dir_;
  std::string log_file_;
  std::unique_ptr<DiskDirectory> disk_;  // for the pools that are given a disk tier
  pid_t squeezer_ = -1;
  pid_t killer_ = -1;
  size_t killed_servers_ = 0;  // by kill_server(); of those that had served
  pid_t pid_ = -1;
  bool running_ = false;
};

// A plain tmpfs of its own: what the mount is compared with.
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

// Fixture: one daemon for all tests of a suite. The suite says `class PoolsTest : public
// SharedMount<PoolsTest>` and may define `static MountOptions options()`. directory() is fresh for each test,
// in pool `p`.
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

// Removes all entries below `directory`, not itself; ignores what is missing.
void remove_content(const std::string& directory);
// Sets the name of the running test beside the daemon's log, and prints that log when it failed.
void report_daemon_log(const Mount& mount);

template <typename Suite>
void SharedMount<Suite>::TearDown() {
  if (!mount_) return;
  if (HasFailure()) report_daemon_log(*mount_);
  remove_content(mount_->path());
}

// True as soon as `condition` is; false at the deadline. The only place where tests wait for something.
bool eventually(const std::function<bool()>& condition,
                std::chrono::milliseconds deadline = std::chrono::seconds(10));

struct MountEntry {
  std::string mount_point;
  std::string file_system;
  std::string source;
  std::string options;        // of the mount
  std::string super_options;  // of the file system
};
// /proc/self/mountinfo as it is now; names unescaped.
std::vector<MountEntry> mount_entries();
// Those at `prefix` or below it.
std::vector<MountEntry> mounts_below(const std::string& prefix);

}  // namespace kvcachefs::test
