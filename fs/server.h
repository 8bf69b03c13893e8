// What every handler has at hand, and how handlers answer. Handlers run on any server thread, several at
// once; each answers its request exactly once and holds no lock while it does. A failed handler answers with
// the errno of its Error; a message that came along is logged here and nowhere else.
#pragma once

#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/fault_point.h"
#include "base/result.h"
#include "fs/backing.h"
#include "fs/caller.h"
#include "fs/fuse.h"
#include "fs/nodeid.h"
#include "fs/stale_callers.h"
#include "fs/thread_groups.h"
#include "tier/pools.h"

namespace kvcachefs {

class ControlFiles;

// Names and attributes change only through this mount, or the kernel is told: a year is as good as for ever.
inline constexpr double kLongTimeoutS = 3.15e7;

struct Server {
  Pools& pools;
  SessionBacking& backing;
  Survivors& survivors;
  ControlFiles& control;
  StaleCallers stale_callers;
  ThreadGroups thread_groups;
  std::function<void(fuse_conn_info*)> negotiate;  // at INIT
  std::function<void()> pools_changed;             // which there are, or their options
};

// The request that this thread works for: the kernel's number for it, and whether a process that died had
// been given it too, and may have done it (Survivors::attempt()). Requests that come over io_uring have no
// number here.
struct RequestIdentity {
  uint64_t unique = 0;
  uint32_t opcode = 0;
  bool resent = false;
  bool attempted = false;
};
RequestIdentity request_identity();
// Works for another request than the thread was given, as long as it lives.
class RequestScope {
 public:
  explicit RequestScope(const RequestIdentity& identity);
  ~RequestScope();
  RequestScope(const RequestScope&) = delete;
  RequestScope& operator=(const RequestScope&) = delete;

 private:
  const RequestIdentity before_;
};
// What goes on once it has waited, on whichever thread: it does so for the request that it waited for.
template <class Then>
auto for_this_request(Then then) {
  return [identity = request_identity(),
          its = std::move(then)]<class... Arguments>(Arguments&&... arguments) mutable {
    const RequestScope scope(identity);
    return its(std::forward<Arguments>(arguments)...);
  };
}
// All that was asked for is done; the answer is what comes next.
inline void about_to_answer() {
  fault_point("request done", request_identity().opcode);
}
void begin_request(Survivors& survivors, const fuse_buf& request);  // as it has come from the device

inline Server& server_of(fuse_req_t request) {
  return *static_cast<Server*>(fuse_req_userdata(request));
}

// An order, which may take as long as it takes: it is not for that to be taken for one that hangs.
inline void takes_long(fuse_req_t request) {
  server_of(request).survivors.end_request();
}

// The pool and inode that a nodeid names; ESTALE for a pool that is gone.
struct Node {
  std::shared_ptr<Pool> pool;
  uint64_t ino = 0;
};
Result<Node> find_node(Server& server, uint64_t nodeid);

// A call answers an error only if its effect is not there, or as this one says: at EINTR the kernel forgets
// what it has of the names that an unlink, rmdir or rename was about, and of the attributes that were to be
// set (fs/fuse/dir.c), before the call returns. Else a name that is another file's by now would still stand
// for the one of before.
inline Error in_effect(const Error& why) {
  return {EINTR, why.message};
}
void reply_error(fuse_req_t request, Error error);
inline void reply_done(fuse_req_t request) {
  server_of(request).stale_callers.settled(fuse_req_ctx(request)->pid);
  about_to_answer();
  (void)fuse_reply_err(request, 0);
}
template <class T>
void reply_outcome(fuse_req_t request, Result<T> outcome) {
  if (outcome)
    reply_done(request);
  else
    reply_error(request, std::move(outcome.error()));
}

// What answers a request that has to wait for a disk; from any thread.
inline auto answer(fuse_req_t request) {
  return for_this_request([request](Result<void> outcome) { reply_outcome(request, std::move(outcome)); });
}

// Whoever asks, if he is an administrator of the host; EPERM with a sentence for all others.
Result<Caller> need_administrator(fuse_req_t request);

// An entry reply for an inode that the table has already counted a lookup for.
fuse_entry_param entry_of(uint64_t nodeid, uint32_t generation, const struct stat& attributes);
void reply_entry(fuse_req_t request, const fuse_entry_param& entry);
void reply_no_entry(fuse_req_t request,
                    double timeout_s = kLongTimeoutS);  // a miss, which the kernel remembers
// Who opens in it, for the pool to learn what follows what.
uint64_t client_of(fuse_req_t request, const Pool& pool);
void reply_attributes(fuse_req_t request, uint64_t nodeid, struct stat attributes);

// The name under which a pool's control files are reached, in the pool's root only.
inline constexpr const char* kPoolControlName = ".pool";
inline constexpr const char* kMountControlName = ".kvcachefs";
bool is_reserved(const Node& directory, const char* name);

// Attributes of what is no inode of any pool: the root and the control directories' own.
struct stat root_attributes(Server& server);

}  // namespace kvcachefs
