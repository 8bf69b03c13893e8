// The kernel's end of a FUSE connection, in place of /dev/fuse: it sends requests as linux/fuse.h lays them
// out and takes the answers. A Session serves the other end without a mount. One thread; throws
// std::runtime_error when no answer comes.
#pragma once

#include <linux/fuse.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/unique_fd.h"

namespace kvcachefs::test {

// The bytes of a structure of linux/fuse.h, and those of a name with its end.
template <class T>
std::string wire(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
inline std::string wire_name(std::string_view name) {
  return std::string(name) + '\0';
}

struct FuseAnswer {
  int error = 0;  // an errno
  std::string bytes;

  // The structure at this place of the answer; zeros where the answer is shorter.
  template <class T>
  T as(size_t at = 0) const {
    T value{};
    if (bytes.size() >= at + sizeof value) std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  }
};

struct FuseRequest {
  uint32_t opcode = 0;
  uint64_t nodeid = 0;
  std::string body = {};
  uid_t uid = 0;
  gid_t gid = 0;
  pid_t pid = ::getpid();
};

class FakeKernel {
 public:
  FakeKernel();
  // The daemon's end; the caller owns it.
  int take_device() { return device_.release(); }
  // The INIT request of a kernel that offers what the daemon can use without passthrough.
  static std::string init_request();
  static constexpr uint64_t kInitUnique = 2;

  FuseAnswer ask(const FuseRequest& request);
  // The same request once more, marked as one that the kernel has sent before: the last one that was asked.
  FuseAnswer ask_again(const FuseRequest& request);
  // A request without an answer, or with one that comes later; the result is the request's number.
  uint64_t tell(const FuseRequest& request);
  FuseAnswer answer_to(uint64_t unique);
  FuseAnswer answer_to_init() { return answer_to(kInitUnique); }
  uint64_t next_answered();  // the number of the request that is answered next

  struct Notice {
    int code = 0;
    std::string bytes = {};
    template <class T>
    T as(size_t at = 0) const {
      return FuseAnswer{0, bytes}.as<T>(at);
    }
  };
  std::vector<Notice> notices();  // that have come until now
  Notice next_notice();

 private:
  void send(const FuseRequest& request, uint64_t unique);
  bool receive(int at_most_ms, fuse_out_header& header, std::string& bytes);

  UniqueFd device_;
  UniqueFd end_;
  uint64_t last_unique_ = kInitUnique;
  std::vector<Notice> notices_;
};

}  // namespace kvcachefs::test
