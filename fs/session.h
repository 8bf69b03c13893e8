// A Session is the connection to the kernel: it mounts, negotiates and serves. serve() and notify() run on
// threads that daemon/workers starts; all else is for the main thread. Failure: errno and a sentence; a
// failed start leaves nothing mounted.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <span>
#include <string>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "fs/control_files.h"
#include "fs/fuse.h"
#include "fs/invalidator.h"
#include "fs/poll_time.h"
#include "fs/served_in_part.h"
#include "fs/server.h"

namespace kvcachefs {

class Session {
 public:
  struct Options {
    std::string mountpoint;
    bool io_uring = false;
    bool no_passthrough = false;
    bool no_page_cache = false;  // also where files that bypass it cannot be mapped shared (fs/page_cache.h)
    unsigned poll_us = 0;        // most_ns of the PollTime
    uint32_t generation = 0;
    std::optional<gid_t> control_group = {};  // of ControlFiles
    ServerInfo info = {};  // completed with what is negotiated before a request is answered
    // Called by requests before they make or change a pool, and afterwards. Failure: the change cannot be, or
    // was not, written down for the next start.
    std::function<Result<void>()> may_change_pools = [] { return Result<void>(); };
    std::function<Result<void>()> pools_changed = [] { return Result<void>(); };
    SettingOrigins* origins = nullptr;  // of the pools' settings
  };
  Session(Pools& pools, SessionBacking& backing, Survivors& survivors, Invalidator& invalidator,
          Options options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // The call first cleans a dead mount of kvcachefs off the mount point, and, if `seals`, seals the directory
  // below (base/mount_seal.h). Serving threads must be started
  // next, because the kernel's INIT waits for them.
  Result<void> mount(bool seals = false);
  // From here on what takes long for one pool is done on threads that the function starts (fs/waiting.h, and
  // orders to a pool). Before serve().
  void help_with(std::function<bool(const std::shared_ptr<Pool>&, WaitingLane&)> start_helper);
  // The call is one thread's work until the connection ends; over io_uring only one thread calls it.
  void serve();
  // The call is the work of each of several threads until stop_notifying().
  void notify();
  void stop_notifying();

  // The result is false if the kernel's INIT was not answered in time, if INIT was refused, or if the
  // connection broke.
  bool wait_until_negotiated(std::chrono::seconds at_most);
  bool ended() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return ended_;
  }
  bool passthrough() const { return server_.backing.passthrough(); }
  bool over_io_uring() const { return over_io_uring_; }
  const std::string& refusal() const { return refusal_; }  // why INIT ended the mount, if it did
  // After serve() has returned: true if the connection was aborted and the file system is still mounted. An
  // umount that forces aborts first, so the call waits a little for the mount to go.
  bool was_aborted() const;
  ControlFiles& control() { return control_; }

  // The call ends the connection: serve() returns on all threads. Files that are still open see ENOTCONN, as
  // after any forced unmount.
  void unmount();

  // A successor calls this instead of mount(): it goes on with the connection of a process that died, or
  // with one that is mounted in its place and has not sent its INIT yet. The adoption of the pools begins
  // after this call; then comes resume().
  Result<void> take_over();
  // The call makes the kernel send again the requests that the process that died had in hand. `in_part`:
  // until all_found() serve() serves in part only (fs/served_in_part.h).
  void resume(bool in_part);
  void all_found();
  // After all_found(): carries out what was put aside, on each of several threads until nothing is left.
  void serve_what_was_put_aside();

 private:
  void negotiate(fuse_conn_info* connection);
  Result<void> make_session();
  Result<void> give_device(int fd);
  Result<void> replay_init();
  Result<void> receive_init();
  void save_init(const fuse_buf& request);
  void serve_device();
  void handle(std::span<std::byte> bytes);
  // True for a request that has a name which is to come back: it is carried out when that is there, or was
  // answered.
  bool awaits_names(std::span<const std::byte> request);
  void have_looked_up_again(std::span<const std::byte> request);
  bool tell_kernel(int32_t code, uint64_t unique = 0) const;

  const Options options_;
  ControlFiles control_;
  Server server_;
  ServedInPart in_part_;
  std::vector<int32_t> told_stale_;  // by the process before, lately
  Invalidator& invalidator_;
  UniqueFd device_;
  std::string mounted_device_;  // MAJOR:MINOR, known once it is mounted
  fuse_session* session_ = nullptr;
  bool has_requests_of_before_ = true;  // false of a connection that no process has served before this one
  std::atomic<bool> over_io_uring_{false};
  std::atomic<bool> stopping_{false};
  PollTime poll_time_;
  std::atomic<bool> polling_{false};  // true while a thread polls
  std::string refusal_;

  Mutex mutex_;
  Condition condition_;
  bool negotiated_ GUARDED_BY(mutex_) = false;
  bool ended_ GUARDED_BY(mutex_) = false;
};

}  // namespace kvcachefs
