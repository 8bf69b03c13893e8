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
#include "base/risky_read.h"
#include "base/sys.h"

namespace kvcachefs {
namespace {

// The time that a thread gets to print its calls; threads take turns, so that their lines do not mix.
constexpr auto kTurn = std::chrono::milliseconds(20);
constexpr int kMostCalls = 64;

void print_own_stack(int, siginfo_t* info, void*) {
  std::array<void*, kMostCalls> calls{};
  backtrace_symbols_fd(calls.data(), backtrace(calls.data(), kMostCalls), STDERR_FILENO);
  if (info->si_code == SI_QUEUE && info->si_value.sival_int != 0) RiskyRead::note_death();
}

std::string line_of(const std::filesystem::path& file) {
  auto text = sys::read_text(file.c_str());
  if (!text) return "?";
  while (!text->empty() && text->back() == '\n') text->pop_back();
  return *text;
}

}  // namespace

void let_stacks_be_printed() {
  // The first call of backtrace() loads a library, which a signal handler must not do.
  std::array<void*, 1> call{};
  (void)backtrace(call.data(), 1);
  struct sigaction action {};
  action.sa_sigaction = print_own_stack;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  (void)sigaction(kStackSignal, &action, nullptr);
}

void log_stacks(pid_t process, bool reads_are_deadly) {
  siginfo_t order{};
  order.si_signo = kStackSignal;
  order.si_code = SI_QUEUE;
  order.si_value.sival_int = reads_are_deadly ? 1 : 0;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", process), error)) {
    const std::string thread = task.path().filename();
    log_warning("thread {} ({}) waits in {}", thread, line_of(task.path() / "comm"),
                line_of(task.path() / "wchan"));
    (void)syscall(SYS_rt_tgsigqueueinfo, process, std::stoi(thread), kStackSignal, &order);
    std::this_thread::sleep_for(kTurn);
  }
}

}  // namespace kvcachefs
