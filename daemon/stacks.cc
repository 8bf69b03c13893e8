#include "daemon/stacks.h"

#include <execinfo.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>
#include <thread>

#include "base/log.h"
#include "base/risky_read.h"
#include "base/sys.h"
#include "base/sys_process.h"

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

std::string line_of(const std::string& file) {
  const std::string text = sys::read_text(file.c_str()).value_or("?");
  return text.substr(0, text.find('\n'));
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
  const std::string tasks = fmt::format("/proc/{}/task", process);
  for (const int thread : sys::numbers_in(tasks).value_or(std::vector<int>())) {
    log_warning("thread {} ({}) waits in {}", thread, line_of(fmt::format("{}/{}/comm", tasks, thread)),
                line_of(fmt::format("{}/{}/wchan", tasks, thread)));
    (void)syscall(SYS_rt_tgsigqueueinfo, process, thread, kStackSignal, &order);
    std::this_thread::sleep_for(kTurn);
  }
}

}  // namespace kvcachefs
