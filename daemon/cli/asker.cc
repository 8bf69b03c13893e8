#include "daemon/cli/asker.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/sys.h"

namespace kvcachefs {
namespace {

std::unexpected<Error> no_answer(const std::string& mount) {
  return fail(ETIMEDOUT, fmt::format("the daemon of {} does not answer", mount));
}

void write_all(int pipe, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(pipe, bytes.data(), bytes.size());
    if (written <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

// This process may outlive the tool, so it closes the tool's output and port.
[[noreturn]] void answer(int pipe, const Asker::Question& question) {
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (pipe > 0) (void)::close_range(0, static_cast<unsigned>(pipe) - 1, 0);
  (void)::close_range(static_cast<unsigned>(pipe) + 1, UINT_MAX, 0);
  const Result<std::string> text = question();
  const int code = text ? 0 : text.error().code;
  write_all(pipe, {reinterpret_cast<const char*>(&code), sizeof code});
  write_all(pipe, text ? *text : text.error().message);
  ::_exit(0);
}

}  // namespace

Asker::~Asker() {
  if (!still_waits()) return;
  (void)::kill(waiting_, SIGKILL);
  (void)still_waits();
}

bool Asker::still_waits() {
  if (waiting_ > 0 && ::waitpid(waiting_, nullptr, WNOHANG) != 0) waiting_ = -1;
  return waiting_ > 0;
}

Result<std::string> Asker::ask(const std::string& mount, const Question& question) {
  if (still_waits()) return no_answer(mount);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return std::unexpected(sys::last_error("pipe2"));
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  std::fflush(nullptr);
  waiting_ = ::fork();
  if (waiting_ < 0) return std::unexpected(sys::last_error("fork"));
  if (waiting_ == 0) answer(write_end.get(), question);
  write_end.reset();
  return answer_of(std::move(read_end), mount);
}

Result<std::string> Asker::answer_of(UniqueFd pipe, const std::string& mount) {
  const auto patience_ns = static_cast<uint64_t>(std::chrono::nanoseconds(patience_).count());
  const uint64_t end_ns = now_ns() + patience_ns;
  std::string bytes;
  std::array<char, 16 << 10> piece;
  for (;;) {
    const uint64_t now = now_ns();
    if (now >= end_ns) return no_answer(mount);
    pollfd ready{.fd = pipe.get(), .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, static_cast<int>((end_ns - now) / 1'000'000 + 1)) <= 0) continue;
    const auto count = sys::read_some(pipe.get(), std::as_writable_bytes(std::span(piece)));
    if (!count && count.error().code != EINTR) return fail(count.error().code);
    if (count && *count == 0) break;
    if (count) bytes.append(piece.data(), *count);
  }
  (void)::waitpid(std::exchange(waiting_, -1), nullptr, 0);
  int code = 0;
  if (bytes.size() < sizeof code) return fail(EIO, "the process that asked the daemon was killed");
  std::memcpy(&code, bytes.data(), sizeof code);
  bytes.erase(0, sizeof code);
  return code == 0 ? Result<std::string>(std::move(bytes)) : fail(code, std::move(bytes));
}

}  // namespace kvcachefs
