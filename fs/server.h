// The Server is what every handler has at hand; the functions are how handlers answer. Handlers run on any
// server thread, several at once. Each answers its request exactly once and holds no lock while it does. A
// failed handler answers with the errno of its Error; a message in the Error is logged here and nowhere else.
#pragma once

#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "base/fault_point.h"
#include "base/result.h"
#include "fs/backing.h"
#include "fs/caller.h"
#include "fs/fuse.h"
#include "fs/listings.h"
#include "fs/nodeid.h"
#include "fs/page_cache.h"
#include "fs/pages_in_use.h"
#include "fs/request.h"
#include "fs/stale_callers.h"
#include "fs/thread_groups.h"
#include "fs/waiting_copies.h"
#include "tier/pool/pools.h"

namespace kvcachefs {

class ControlFiles;

// st_blksize of all files: C and Python take it as the size of their buffers (docs/facts.md "What st_blksize
// decides"). The tmpfs with huge pages would have 2 MiB.
inline constexpr blksize_t kBufferBytes = 128 << 10;

// Because names and attributes change only through this mount, or with a notification to the kernel, a year
// is as good as for ever.
inline constexpr double kLongTimeoutS = 3.15e7;

struct Server {
  Pools& pools;
  SessionBacking& backing;
  Survivors& survivors;
  ControlFiles& control;
  StaleCallers stale_callers;
  ThreadGroups thread_groups;
  PageCache page_cache;
  PagesInUse pages_in_use;
  WaitingCopies copies;
  Listings listings;
  std::function<void(fuse_conn_info*)> negotiate;  // at INIT
  // Before a pool is made, removed or changed, and afterwards (fs/session.h).
  std::function<Result<void>()> may_change_pools;
  std::function<Result<void>()> pools_changed;
  // Starts a thread for a lane of the pool (tier/pool/waiting_lane.h); false: none can be had. Empty: each
  // request is done in the thread that took it.
  std::function<bool(const std::shared_ptr<Pool>&, WaitingLane&)> start_helper;
};

// A handler calls this when everything that was asked for is done and only the answer is left.
inline void about_to_answer(const Request& request) {
  fault_point("request done", request.opcode);
}

inline Server& server_of(const Request& request) {
  return *static_cast<Server*>(fuse_req_userdata(request));
}

// A handler calls this for an order, which may take as long as it likes: it must not count as a hanging
// request.
inline void takes_long(const Request& request) {
  server_of(request).survivors.requests().end();
}

// A Node is the pool and inode that a nodeid names; ESTALE for a pool that is gone.
struct Node {
  std::shared_ptr<Pool> pool;
  uint64_t ino = 0;

  uint64_t nodeid() const { return NodeId::of_inode(pool->number(), ino).value; }
};
Result<Node> find_node(Server& server, uint64_t nodeid);

// A handler answers an error only if the call had no effect, or makes the error EINTR with this function. At
// EINTR the kernel drops, before the call returns, what it has cached of the names that an unlink, rmdir or
// rename was about, and of the attributes that a setattr was about (fs/fuse/dir.c). Otherwise a cached name
// that belongs to another file by now would still lead to the earlier one.
inline Error in_effect(Error why) {
  return {EINTR, why.message};
}
void reply_error(const Request& request, Error error);
// The same for a read or a write of an open file, which the kernel does not try again: it may be ESTALE more
// than once.
void reply_io_error(const Request& request, Error error);
// The same for a handler that may wait for room (fs/waiting.h).
inline Tried refuse(const Request& request, Error error) {
  reply_error(request, std::move(error));
  return Tried::kDone;
}
// The caller's call succeeds, and if it was told ESTALE before, that counts no more.
inline void settle(const Request& request) {
  Server& server = server_of(request);
  const pid_t thread = fuse_req_ctx(request)->pid;
  if (server.stale_callers.settled(thread)) server.survivors.requests().settled_stale(thread);
}
inline void reply_done(const Request& request) {
  settle(request);
  about_to_answer(request);
  (void)fuse_reply_err(request, 0);
}
template <class T>
void reply_outcome(const Request& request, Result<T> outcome) {
  if (outcome)
    reply_done(request);
  else
    reply_error(request, std::move(outcome.error()));
}

// The result answers a request that has to wait for a disk; it may run on any thread.
inline auto answer(const Request& request) {
  return [request](Result<void> outcome) { reply_outcome(request, std::move(outcome)); };
}

// The result is the calling thread, if it is an administrator of the host; EPERM with a sentence for any
// other.
Result<Caller> need_administrator(const Request& request);

// The result is an entry reply for an inode for which the table has already counted a lookup.
fuse_entry_param entry_of(uint64_t nodeid, uint32_t generation, const struct stat& attributes,
                          double attributes_timeout_s = kLongTimeoutS);
void reply_entry(const Request& request, const fuse_entry_param& entry);
void reply_no_entry(const Request& request,
                    double timeout_s = kLongTimeoutS);  // for so long the kernel remembers the miss
// The result is the process that makes the request, from which a pool with a disk tier learns which entries
// follow each other; 0 for a pool without one.
uint64_t client_of(const Request& request, const Pool& pool);
uid_t user_of(const Request& request);  // the user that its memory counts for (fs/thread_groups.h)
void reply_attributes(const Request& request, uint64_t nodeid, struct stat attributes,
                      double timeout_s = kLongTimeoutS);

// Names under which control files are reached: a pool's in the pool's root only, the daemon's in the mount's
// root.
inline constexpr const char* kPoolControlName = ".pool";
inline constexpr const char* kMountControlName = ".kvcachefs";
bool is_reserved(const Node& directory, const char* name);

// Attributes of the mount's root, which is no inode of any pool.
struct stat root_attributes(Server& server);

}  // namespace kvcachefs
