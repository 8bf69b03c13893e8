// What a handler does that may wait for the room of one pool: the thread that took the request tries it with
// no patience, and hands it, with copies of its arguments, to the pool's lane if it would wait
// (tier/pool/waiting_lane.h). A thread of the lane runs the same handler with patience and answers. Any
// server thread. Failure: the thread that took the request waits itself if the lane cannot take it, if the
// copies of all that wait have reached their bound, and over io_uring, where only the thread of a queue may
// answer what came by it.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/fault_point.h"
#include "fs/server.h"

namespace kvcachefs {

// The bytes that a WRITE has still to write, and how many it has written. A handler that would wait leaves
// here what is left to do.
struct Writing {
  std::span<const char> bytes;
  uint64_t offset = 0;
  size_t done = 0;

  void wrote(size_t count) {
    bytes = bytes.subspan(count);
    offset += count;
    done += count;
  }
};

// The arguments of a request as the lane keeps them, and as the handler gets them back.
struct KeptWriting {
  std::vector<char> bytes;
  Writing writing;
};
inline KeptWriting kept(const Writing& writing) {
  return {{writing.bytes.begin(), writing.bytes.end()}, writing};
}
inline Writing& lent(KeptWriting& copy) {
  copy.writing.bytes = copy.bytes;
  return copy.writing;
}
inline std::string kept(const char* text) {
  return text;
}
inline const char* lent(std::string& text) {
  return text.c_str();
}
inline fuse_file_info kept(const fuse_file_info* file) {
  return *file;
}
inline fuse_file_info* lent(fuse_file_info& file) {
  return &file;
}
struct KeptBytes {
  std::string bytes;
};
inline KeptBytes kept(std::string_view bytes) {
  return {std::string(bytes)};
}
inline std::string_view lent(KeptBytes& copy) {
  return copy.bytes;
}
inline Node kept(const Node& node) {
  return node;
}
inline const Node& lent(Node& node) {
  return node;
}
template <class T>
requires std::is_arithmetic_v<T> T kept(T number) {
  return number;
}
template <class T>
requires std::is_arithmetic_v<T> T lent(T& number) {
  return number;
}
inline uint64_t kept_bytes(const Writing& writing) {
  return writing.bytes.size();
}
inline uint64_t kept_bytes(const char* text) {
  return std::strlen(text);
}
inline uint64_t kept_bytes(std::string_view bytes) {
  return bytes.size();
}
template <class T>
uint64_t kept_bytes(const T&) {
  return 0;
}

// The handler is `Tried handler(const Request&, const Node&, Patience, arguments...)`. At kDone it has
// answered. At kWouldWait, which it answers only without patience, it has done nothing, or its arguments say
// what is left. `node` is of the pool whose room it may wait for.
template <auto kHandler, class... Arguments>
void with_patience(const Request& request, const Node& node, Arguments&&... arguments) {
  Server& server = server_of(request);
  Patience patience{.may_wait = !server.start_helper};
  if (kHandler(request, node, patience, arguments...) == Tried::kDone) return;
  patience.may_wait = true;
  // What else a request that waits takes, libfuse's part included, is less than this.
  constexpr uint64_t kRequestBytes = 1024;
  if (auto share = server.copies.take(kRequestBytes + (kept_bytes(arguments) + ... + 0))) {
    Requests& requests = server.survivors.requests();
    WaitingLane::Job job = [request, node, patience, &requests, share = std::move(*share),
                            its = std::tuple(kept(arguments)...)]() mutable {
      requests.begin(request.unique, request.attempted);
      std::apply([&](auto&... each) { (void)kHandler(request, node, patience, lent(each)...); }, its);
      requests.leave();
    };
    WaitingLane& lane = node.pool->capacity().waiting();
    if (lane.hand_over(job, [&] { return server.start_helper(node.pool, lane); }))
      return fault_point("request waits", request.opcode);
  }
  (void)kHandler(request, node, patience, arguments...);
}

}  // namespace kvcachefs
