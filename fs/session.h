// The connection to the kernel: mounts, negotiates, serves. serve() and notify() run on threads that
// daemon/workers starts; the rest is for the main thread. Failure: errno and a sentence; a failed start
// leaves nothing mounted.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "fs/control_files.h"
#include "fs/fuse.h"
#include "fs/invalidator.h"
#include "fs/poll_time.h"
#include "fs/server.h"

namespace kvcachefs {

class Session {
 public:
  struct Options {
    std::string mountpoint;
    bool io_uring = false;
    bool no_passthrough = false;
    unsigned poll_us = 0;  // most_ns of the PollTime
    uint32_t generation = 0;
    std::function<void()> pools_changed = [] {};  // called by requests that have made or changed one
  };
  Session(Pools& pools, SessionBacking& backing, Survivors& survivors, Invalidator& invalidator,
          Options options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Cleans a dead mount of ours off the mount point first. Serving threads must be started next: the kernel's
  // INIT waits for them.
  Result<void> mount();
  // One thread's work until the connection ends; over io_uring that of the only one.
  void serve();
  // One thread's work until stop_notifying().
  void notify();
  void stop_notifying();

  // False if the kernel's INIT was not answered in time or the connection broke.
  bool wait_until_negotiated(std::chrono::seconds at_most);
  bool ended() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return ended_;
  }
  bool passthrough() const { return server_.backing.passthrough(); }
  bool over_io_uring() const { return over_io_uring_; }
  const std::string& refusal() const { return refusal_; }  // why INIT ended the mount, if it did
  ControlFiles& control() { return control_; }

  // Ends the connection: serve() returns everywhere. Files still open see ENOTCONN, as after any unmount by
  // force.
  void unmount();

  // Instead of mount(): goes on with the connection of a process that died. The pools come after it, then
  // resume(), then serve().
  Result<void> take_over();
  // What that process had in hand comes again.
  void resume();

 private:
  void negotiate(fuse_conn_info* connection);
  Result<void> make_session();
  Result<void> give_device(int fd);
  void save_init(const fuse_buf& request);
  void serve_device();
  void poll_for_request(uint64_t until_ns);

  const Options options_;
  ControlFiles control_;
  Server server_;
  Invalidator& invalidator_;
  UniqueFd device_;
  std::string mounted_device_;  // MAJOR:MINOR, once it is mounted
  fuse_session* session_ = nullptr;
  std::atomic<bool> over_io_uring_{false};
  std::atomic<bool> stopping_{false};
  PollTime poll_time_;
  std::atomic<bool> polling_{false};  // a thread is
  std::string refusal_;

  Mutex mutex_;
  Condition condition_;
  bool negotiated_ GUARDED_BY(mutex_) = false;
  bool ended_ GUARDED_BY(mutex_) = false;
};

}  // namespace kvcachefs
