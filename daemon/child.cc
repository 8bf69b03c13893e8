#include "daemon/child.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sched.h>
#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <map>
#include <string_view>
#include <thread>
#include <utility>

#include "base/host_memory.h"
#include "base/key_value.h"
#include "base/log.h"
#include "base/sys.h"
#include "base/sys_process.h"

namespace kvcachefs {
namespace {

constexpr rlim_t kWantedDescriptors = 1 << 20;
// The number is more than a supervisor ever opens at once.
constexpr rlim_t kOfSupervisor = 256;
constexpr const char* kNotifierName = "(invalidator)";  // daemon/workers.cc
constexpr int kStateField = 3;                          // of stat, proc(5)
constexpr int kThreadsField = 20;
constexpr auto kLookPause = std::chrono::milliseconds(10);

struct ProcessStat {
  std::string name;  // in parentheses
  char state = 0;
  uint64_t threads = 0;  // of the whole process
};

std::optional<ProcessStat> stat_of(const std::string& directory) {
  const auto text = sys::read_text((directory + "/stat").c_str());
  const size_t name_begin = text ? text->find('(') : std::string::npos;
  if (name_begin == std::string::npos) return std::nullopt;
  const std::string_view state = stat_field(*text, kStateField);
  const auto threads = number_in<uint64_t>(stat_field(*text, kThreadsField));
  if (state.empty() || !threads) return std::nullopt;
  return ProcessStat{text->substr(name_begin, text->rfind(')') + 1 - name_begin), state.front(), *threads};
}

// True if SIGKILL is pending for the thread: what the thread does in the kernel now is the last thing that it
// does.
bool is_killed(const std::string& directory) {
  const auto text = sys::read_text((directory + "/status").c_str()).value_or("");
  std::string_view signals = line_value(text, "SigPnd");
  const auto pending = number_in<uint64_t>(take_word(signals), 16);
  return pending && (*pending >> (SIGKILL - 1) & 1) != 0;
}

std::string tasks_of(pid_t process) {
  return fmt::format("/proc/{}/task", process);
}

// The threads that wait where signals do not reach them: the name of each, and how often it has slept so far,
// which tells one wait from the next.
std::map<int, std::pair<std::string, std::string>> waits_of(pid_t process) {
  std::map<int, std::pair<std::string, std::string>> waits;
  for (const int number : sys::numbers_in(tasks_of(process)).value_or(std::vector<int>())) {
    const std::string thread = fmt::format("{}/{}", tasks_of(process), number);
    const auto stat = stat_of(thread);
    if (!stat || stat->state != 'D' || stat->name == kNotifierName) continue;
    const auto status = sys::read_text((thread + "/status").c_str()).value_or("");
    waits.emplace(number, std::pair(stat->name, line_value(status, "voluntary_ctxt_switches")));
  }
  return waits;
}

}  // namespace

void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlimit raised{kWantedDescriptors, std::max(limit.rlim_max, kWantedDescriptors)};
  if (setrlimit(RLIMIT_NOFILE, &raised) == 0) return;
  limit.rlim_cur = limit.rlim_max;  // without the right to raise the hard limit
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

uint64_t descriptor_limit() {
  rlimit limit{};
  (void)getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

pid_t fork_sharing_descriptors() {
  const auto child =
      static_cast<pid_t>(syscall(SYS_clone, CLONE_FILES | SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (child != 0) return child;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur -= std::min(kOfSupervisor, limit.rlim_cur / 4);
    (void)setrlimit(RLIMIT_NOFILE, &limit);
  }
  return 0;
}

void leave_shared_descriptors() {
  if (close_range(STDERR_FILENO + 1, UINT_MAX, CLOSE_RANGE_UNSHARE) == 0) return;
  // Before Linux 5.9, and where a filter forbids it, the table is copied.
  if (unshare(CLONE_FILES) == 0) closefrom(STDERR_FILENO + 1);
}

void go_before_the_supervisor() {
  const auto text = sys::read_text("/proc/self/oom_score_adj");
  std::string_view line = text ? std::string_view(*text) : std::string_view();
  if (const auto score = number_in<int>(take_word(line)); score && *score < 1000)
    (void)set_oom_score_adj(*score + 1);
}

bool has_ended_but_for_notifiers(pid_t child) {
  const std::string process = fmt::format("/proc/{}", child);
  const auto before = stat_of(process);
  // Because the first thread of a process stays as a zombie until the last thread has ended, most calls end
  // here.
  if (!before || before->state != 'Z') return false;
  const auto threads = sys::numbers_in(tasks_of(child));
  if (!threads) return false;
  for (const int number : *threads) {
    const std::string thread = fmt::format("{}/{}", tasks_of(child), number);
    const auto stat = stat_of(thread);
    if (!stat) return false;
    if (stat->state == 'Z' || stat->state == 'X') continue;
    if (stat->name != kNotifierName || stat->state != 'D' || !is_killed(thread)) return false;
  }
  // The list leaves out some threads if others end while it is read. No new thread begins in a process that
  // ends.
  const auto after = stat_of(process);
  return after && before->threads == threads->size() && after->threads == threads->size();
}

bool child_has_ended(pid_t child) {
  siginfo_t ended{};
  if (waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOHANG | WNOWAIT) != 0)
    return sys::last_error("waitid").code == ECHILD;
  return ended.si_pid == child || has_ended_but_for_notifiers(child);
}

bool waits_in_kernel(pid_t child) {
  const auto threads = sys::numbers_in(tasks_of(child));
  return !threads || std::ranges::any_of(*threads, [&](int number) {
    const auto stat = stat_of(fmt::format("{}/{}", tasks_of(child), number));
    return stat && stat->state == 'D';
  });
}

std::optional<std::string> hung_thread(pid_t child, std::chrono::milliseconds bound) {
  const auto end = std::chrono::steady_clock::now() + bound;
  auto waits = waits_of(child);
  while (!waits.empty() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(kLookPause);
    const auto now = waits_of(child);
    std::erase_if(waits, [&](const auto& wait) {
      const auto found = now.find(wait.first);
      return found == now.end() || found->second != wait.second;
    });
  }
  return waits.empty() ? std::nullopt : std::optional(waits.begin()->second.first);
}

void close_all_but(const std::set<int>& kept) {
  unsigned next = STDERR_FILENO + 1;
  // The ranges between kept descriptors are closed without a list of the open ones, because such a list may
  // be had only in part.
  const auto close_to = [&next](unsigned last) {
    if (next <= last && close_range(next, last, 0) != 0)
      log_error("descriptors {} to {} stay open: {}", next, last, sys::last_error("close_range").message);
    next = std::max(next, last + 2);
  };
  for (const int fd : kept) close_to(static_cast<unsigned>(std::max(fd, STDERR_FILENO)) - 1);
  close_to(INT_MAX);
}

}  // namespace kvcachefs
