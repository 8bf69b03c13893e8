#include "tests/clients/processes.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "tests/clients/calls.h"

namespace kvcachefs::clients {
namespace {

bool receive_exactly(int fd, std::span<std::byte> bytes, uint64_t deadline_ns) {
  size_t done = 0;
  while (done < bytes.size()) {
    const uint64_t now = now_ns();
    if (now >= deadline_ns) return false;
    pollfd waiting{fd, POLLIN, 0};
    if (::poll(&waiting, 1, static_cast<int>((deadline_ns - now) / 1'000'000 + 1)) <= 0) continue;
    const long got = result_of(::read(fd, bytes.data() + done, bytes.size() - done));
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}

// The parent's ends of the pipes of all children. A later child inherits these descriptors and has to close
// them; otherwise an earlier child would never see the end of its requests.
std::vector<int>& parent_ends() {
  static std::vector<int> ends;
  return ends;
}

}  // namespace

bool send_message(int fd, const std::string& message) {
  const uint64_t size_bytes = message.size();
  std::string framed(sizeof size_bytes, '\0');
  std::memcpy(framed.data(), &size_bytes, sizeof size_bytes);
  framed += message;
  return write_all(fd, std::as_bytes(std::span(framed))) == static_cast<long>(framed.size());
}

std::optional<std::string> receive_message(int fd, std::chrono::milliseconds deadline) {
  const uint64_t deadline_ns = now_ns() + static_cast<uint64_t>(deadline.count()) * 1'000'000;
  uint64_t size_bytes = 0;
  if (!receive_exactly(fd, std::as_writable_bytes(std::span(&size_bytes, 1)), deadline_ns))
    return std::nullopt;
  std::string message(size_bytes, '\0');
  if (!receive_exactly(fd, std::as_writable_bytes(std::span(message)), deadline_ns)) return std::nullopt;
  return message;
}

ChildProcess::ChildProcess(const std::function<void(int, int)>& body) {
  int requests[2];
  int answers[2];
  if (::pipe2(requests, O_CLOEXEC) != 0 || ::pipe2(answers, O_CLOEXEC) != 0) return;
  // A write to a child that died must fail, not end the test.
  ::signal(SIGPIPE, SIG_IGN);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(requests[1]);
    ::close(answers[0]);
    for (const int end : parent_ends()) ::close(end);
    body(requests[0], answers[1]);
    ::_exit(0);
  }
  ::close(requests[0]);
  ::close(answers[1]);
  requests_ = UniqueFd(requests[1]);
  answers_ = UniqueFd(answers[0]);
  parent_ends().push_back(requests[1]);
  parent_ends().push_back(answers[0]);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      requests_(std::move(other.requests_)),
      answers_(std::move(other.answers_)) {}

ChildProcess::~ChildProcess() {
  for (const int end : {requests_.get(), answers_.get()}) std::erase(parent_ends(), end);
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

std::string ChildProcess::finish(std::chrono::milliseconds deadline) {
  if (pid_ <= 0) return "fork failed";
  std::erase(parent_ends(), requests_.get());
  requests_.reset();
  // The end of the answers comes at the child's end, or near enough to it for waitpid.
  std::byte byte{};
  const uint64_t deadline_ns = now_ns() + static_cast<uint64_t>(deadline.count()) * 1'000'000;
  while (receive_exactly(answers_.get(), std::span(&byte, 1), deadline_ns)) {
  }
  if (now_ns() >= deadline_ns) return "did not end in time";
  int status = 0;
  ::waitpid(std::exchange(pid_, -1), &status, 0);
  if (WIFSIGNALED(status)) return std::string("killed by ") + ::strsignal(WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "" : "exit code " + std::to_string(WEXITSTATUS(status));
}

}  // namespace kvcachefs::clients
