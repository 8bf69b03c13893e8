#include "tests/support/fake_kernel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <stdexcept>

namespace kvcachefs::test {
namespace {

constexpr int kDeadlineMs = 60'000;
// From include/uapi/linux/fuse.h of Linux 6.9; Debian 12's is older.
constexpr uint64_t kResentBit = uint64_t{1} << 63;
constexpr uint32_t kHasResend = 1u << (39 - 32);
constexpr uint32_t kDirectIoAllowMmap = 1u << (36 - 32);
constexpr uint32_t kInitExtended = 1u << 30;

}  // namespace

FakeKernel::FakeKernel() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw std::runtime_error("socketpair");
  device_ = UniqueFd(ends[0]);
  end_ = UniqueFd(ends[1]);
}

std::string FakeKernel::init_request() {
  fuse_init_in init{};
  init.major = FUSE_KERNEL_VERSION;
  init.minor = 40;
  init.max_readahead = 128 << 10;
  init.flags = FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_DO_READDIRPLUS | FUSE_PARALLEL_DIROPS |
               FUSE_HANDLE_KILLPRIV | FUSE_HANDLE_KILLPRIV_V2 | FUSE_ATOMIC_O_TRUNC | FUSE_AUTO_INVAL_DATA |
               FUSE_MAX_PAGES | FUSE_CACHE_SYMLINKS | FUSE_NO_OPEN_SUPPORT | kInitExtended;
  init.flags2 = kHasResend | kDirectIoAllowMmap;
  fuse_in_header header{};
  header.len = sizeof header + sizeof init;
  header.opcode = FUSE_INIT;
  header.unique = kInitUnique;
  return wire(header) + wire(init);
}

void FakeKernel::send(const FuseRequest& request, uint64_t unique) {
  fuse_in_header header{};
  header.len = static_cast<uint32_t>(sizeof header + request.body.size());
  header.opcode = request.opcode;
  header.unique = unique;
  header.nodeid = request.nodeid;
  header.uid = request.uid;
  header.gid = request.gid;
  header.pid = static_cast<uint32_t>(request.pid);
  const std::string message = wire(header) + request.body;
  if (::write(end_.get(), message.data(), message.size()) != static_cast<ssize_t>(message.size()))
    throw std::runtime_error("the request is not taken");
}

bool FakeKernel::receive(int at_most_ms, fuse_out_header& header, std::string& bytes) {
  pollfd end{end_.get(), POLLIN, 0};
  if (::poll(&end, 1, at_most_ms) != 1) return false;
  std::vector<char> message(2 << 20);
  const ssize_t size = ::read(end_.get(), message.data(), message.size());
  if (size < static_cast<ssize_t>(sizeof header)) return false;
  std::memcpy(&header, message.data(), sizeof header);
  bytes.assign(message.data() + sizeof header, static_cast<size_t>(size) - sizeof header);
  return true;
}

FuseAnswer FakeKernel::answer_to(uint64_t unique) {
  fuse_out_header header{};
  std::string bytes;
  while (receive(kDeadlineMs, header, bytes)) {
    if (header.unique == unique) return {-header.error, std::move(bytes)};
    if (header.unique != 0) throw std::runtime_error("an answer to a request that was not asked");
    notices_.push_back({header.error, std::move(bytes)});
  }
  throw std::runtime_error("no answer");
}

FuseAnswer FakeKernel::ask(const FuseRequest& request) {
  last_unique_ += 2;
  send(request, last_unique_);
  return answer_to(last_unique_);
}

FuseAnswer FakeKernel::ask_again(const FuseRequest& request) {
  send(request, last_unique_ | kResentBit);
  return answer_to(last_unique_ | kResentBit);
}

uint64_t FakeKernel::tell(const FuseRequest& request) {
  last_unique_ += 2;
  send(request, last_unique_);
  return last_unique_;
}

uint64_t FakeKernel::next_answered() {
  fuse_out_header header{};
  std::string bytes;
  while (receive(kDeadlineMs, header, bytes)) {
    if (header.unique != 0) return header.unique;
    notices_.push_back({header.error, std::move(bytes)});
  }
  throw std::runtime_error("no answer");
}

FakeKernel::Notice FakeKernel::next_notice() {
  fuse_out_header header{};
  std::string bytes;
  if (!receive(kDeadlineMs, header, bytes) || header.unique != 0) throw std::runtime_error("no notice");
  return {header.error, std::move(bytes)};
}

std::vector<FakeKernel::Notice> FakeKernel::notices() {
  fuse_out_header header{};
  std::string bytes;
  while (receive(0, header, bytes)) notices_.push_back({header.error, std::move(bytes)});
  return std::exchange(notices_, {});
}

}  // namespace kvcachefs::test
