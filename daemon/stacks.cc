#include "daemon/stacks.h"

#include <execinfo.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include "base/log.h"
#include "base/sys.h"

namespace kvcachefs {
namespace {

// What a thread needs to print itself; they take turns, so that lines do not mix.
constexpr auto kTurn = std::chrono::milliseconds(20);
constexpr int kMostCalls = 64;

void print_own_stack(int) {
  std::array<void*, kMostCalls> calls{};
  backtrace_symbols_fd(calls.data(), backtrace(calls.data(), kMostCalls), STDERR_FILENO);
}

std::string line_of(const std::filesystem::path& file) {
  auto text = sys::read_text(file.c_str());
  if (!text) return "?";
  while (!text->empty() && text->back() == '\n') text->pop_back();
  return *text;
}

}  // namespace

void let_stacks_be_printed() {
  // The first call loads a library, which a handler must not.
  std::array<void*, 1> call{};
  (void)backtrace(call.data(), 1);
  struct sigaction action {};
  action.sa_handler = print_own_stack;
  action.sa_flags = SA_RESTART;
  (void)sigaction(kStackSignal, &action, nullptr);
}

void log_stacks(pid_t process) {
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", process), error)) {
    const std::string thread = task.path().filename();
    log_warning("thread {} ({}) waits in {}", thread, line_of(task.path() / "comm"),
                line_of(task.path() / "wchan"));
    (void)syscall(SYS_tgkill, process, std::stoi(thread), kStackSignal);
    std::this_thread::sleep_for(kTurn);
  }
}

}  // namespace kvcachefs
