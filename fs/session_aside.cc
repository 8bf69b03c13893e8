// What a Session does with requests that cannot be carried out the moment they come.
#include <cerrno>
#include <utility>
#include <vector>

#include "base/fault_point.h"
#include "fs/awaited_names.h"
#include "fs/session.h"

namespace kvcachefs {
namespace {

// What a request that waits takes besides its bytes is less than this.
constexpr uint64_t kRequestBytes = 1024;

}  // namespace

// The caller counts as told, as by a handler: if what it finds has gone before it is opened, that is a miss.
void Session::have_looked_up_again(std::span<const std::byte> request) {
  const auto thread = static_cast<pid_t>(header_of(request).pid);
  (void)server_.stale_callers.again(thread);
  server_.survivors.requests().told_stale(thread);
  (void)tell_kernel(-ESTALE, header_of(request).unique);
}

void Session::serve_what_was_put_aside() {
  while (auto request = in_part_.next())
    if (!awaits_names(*request)) handle(*request);
}

// It waits in a thread of the pool's lane, so that the threads that take requests of all pools wait for none.
// Where the lane cannot take it, it waits here.
bool Session::awaits_names(std::span<const std::byte> request) {
  auto awaited = awaited_by(server_.pools, request);
  if (!awaited) return false;
  const uint64_t unique = header_of(request).unique;
  if (awaited->for_the_disk) {
    awaited->pool->disk().away()->wait([this, unique](const PromoteOutcome& outcome) {
      (void)tell_kernel(outcome.kind == PromoteOutcome::Kind::kEnding ? -ENOTCONN : -EIO, unique);
    });
    return true;
  }
  auto share = server_.start_helper ? server_.copies.take(kRequestBytes + request.size()) : std::nullopt;
  if (share) {
    WaitingLane& lane = awaited->pool->names_to_come().lane();
    WaitingLane::Job job = [this, unique, its = *awaited, share = std::move(*share),
                            bytes = std::vector(request.begin(), request.end())]() mutable {
      if (!its.await()) return static_cast<void>(tell_kernel(-EIO, unique));
      handle(bytes);
      server_.survivors.requests().leave();
    };
    if (lane.hand_over(job, [&] { return server_.start_helper(awaited->pool, lane); })) {
      fault_point("request waits for a name");
      return true;
    }
  }
  if (awaited->await()) return false;
  (void)tell_kernel(-EIO, unique);
  return true;
}

}  // namespace kvcachefs
