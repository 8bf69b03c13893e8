#include "fs/server.h"

#include <fmt/format.h>
#include <linux/fuse.h>
#include <pthread.h>

#include <cstring>

#include "base/log_limit.h"

namespace kvcachefs {

namespace {

thread_local Request received;  // without its handle

constexpr unsigned kRefusalsOfAdministrator = 100;  // for each minute
constexpr unsigned kRefusalsOfOthers = 10;

// Refusals that users provoke, root of a container among them, have a limit of their own, so that they do not
// crowd out what the administrator is told.
void log_refusal(const fuse_ctx& context, const std::string& message) {
  static LogLimit of_administrator(kRefusalsOfAdministrator);
  static LogLimit of_others(kRefusalsOfOthers);
  // The kernel does not tell the user where it allows mapped ids: -1.
  const bool may_be = context.uid == 0 || context.uid == static_cast<uid_t>(-1);
  const auto caller = may_be ? Caller::of(context.pid) : fail(EPERM);
  (caller && caller->is_administrator() ? of_administrator : of_others).warning("{}", message);
}

}  // namespace

Request begin_request(Survivors& survivors, const fuse_buf& buffer) {
  fuse_in_header header{};
  if (buffer.size < sizeof header) return {};
  std::memcpy(&header, buffer.mem, sizeof header);
  received = {.unique = header.unique & ~kResentBit, .opcode = header.opcode};
  received.resent = (header.unique & kResentBit) != 0;
  received.attempted = received.resent && survivors.requests().was_attempted(received.unique);
  survivors.requests().begin(received.unique, received.attempted);
  fault_point("request begun", received.opcode);
  return received;
}

Request received_request(fuse_req_t handle) {
  // libfuse ends the threads with which it serves over io_uring by a wake-up and pthread_cancel(3). The
  // wake-up alone ends a thread when its request is done; the cancellation would end the handler in its
  // midst.
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  Request request = received;
  request.handle = handle;
  return request;
}

Result<Node> find_node(Server& server, uint64_t nodeid) {
  const NodeId id{nodeid};
  // The root and control files have handlers of their own; an operation without such a handler is refused for
  // them.
  if (!id.is_inode()) return fail(EPERM);
  auto pool = server.pools.find(id.pool_number());
  if (pool == nullptr) return fail(ESTALE);
  return Node{std::move(pool), id.ino()};
}

void reply_error(const Request& request, Error error) {
  if (!error.message.empty()) log_refusal(*fuse_req_ctx(request), error.message);
  StaleCallers& stale_callers = server_of(request).stale_callers;
  const pid_t thread = fuse_req_ctx(request)->pid;
  int code = error.code;
  if (code == ESTALE) {
    if (stale_callers.again(thread))
      code = ENOENT;
    else
      server_of(request).survivors.requests().told_stale(thread);
  }
  about_to_answer(request);
  (void)fuse_reply_err(request, code);
}

void reply_io_error(const Request& request, Error error) {
  if (error.code != ESTALE) return reply_error(request, std::move(error));
  if (!error.message.empty()) log_refusal(*fuse_req_ctx(request), error.message);
  about_to_answer(request);
  (void)fuse_reply_err(request, ESTALE);
}

Result<Caller> need_administrator(const Request& request) {
  const fuse_ctx* context = fuse_req_ctx(request);
  auto caller = Caller::of(context->pid);
  if (caller && caller->is_administrator()) return caller;
  return fail(
      EPERM,
      fmt::format("user {} (thread {}) asks for what needs CAP_SYS_ADMIN on this host: pools are made, "
                  "deleted and given more by its administrator",
                  static_cast<int64_t>(caller ? caller->user() : context->uid), context->pid));
}

fuse_entry_param entry_of(uint64_t nodeid, uint32_t generation, const struct stat& attributes,
                          double attributes_timeout_s) {
  fuse_entry_param entry{};
  entry.ino = nodeid;
  entry.generation = generation;
  entry.attr = attributes;
  entry.attr.st_ino = nodeid;
  entry.attr.st_blksize = kBufferBytes;
  entry.attr_timeout = attributes_timeout_s;
  entry.entry_timeout = kLongTimeoutS;
  return entry;
}

void reply_entry(const Request& request, const fuse_entry_param& entry) {
  const NodeId id{entry.ino};
  Server& server = server_of(request);
  about_to_answer(request);
  // If the request was interrupted, the kernel does not have the inode, so the lookup must not stay counted.
  if (fuse_reply_entry(request, &entry) == -ENOENT && id.is_inode())
    if (auto pool = server.pools.find(id.pool_number())) pool->inodes().forget(id.ino(), 1);
}

void reply_no_entry(const Request& request, double timeout_s) {
  if (timeout_s == 0) return (void)fuse_reply_err(request, ENOENT);
  fuse_entry_param entry{};
  entry.entry_timeout = timeout_s;
  (void)fuse_reply_entry(request, &entry);
}

uid_t user_of(const Request& request) {
  const fuse_ctx& caller = *fuse_req_ctx(request);
  return server_of(request).thread_groups.user_of(caller.pid, caller.uid);
}

uint64_t client_of(const Request& request, const Pool& pool) {
  return pool.disk().tier() == nullptr ? 0 : server_of(request).thread_groups.of(fuse_req_ctx(request)->pid);
}

void reply_attributes(const Request& request, uint64_t nodeid, struct stat attributes, double timeout_s) {
  attributes.st_ino = nodeid;
  attributes.st_blksize = kBufferBytes;
  about_to_answer(request);
  (void)fuse_reply_attr(request, &attributes, timeout_s);
}

bool is_reserved(const Node& directory, const char* name) {
  return directory.ino == directory.pool->root_ino() && std::strcmp(name, kPoolControlName) == 0;
}

struct stat root_attributes(Server& server) {
  struct stat attributes {};
  attributes.st_mode = S_IFDIR | 0755;
  attributes.st_nlink = static_cast<nlink_t>(2 + server.pools.list().size());
  return attributes;
}

}  // namespace kvcachefs
