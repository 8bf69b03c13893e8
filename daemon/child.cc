#include "daemon/child.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <sched.h>
#include <algorithm>
#include <charconv>
#include <climits>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/sys.h"

namespace kvcachefs {
namespace {

constexpr rlim_t kWantedDescriptors = 1 << 20;
// The number is more than a supervisor ever opens at once.
constexpr rlim_t kOfSupervisor = 256;
constexpr const char* kNotifierName = "(invalidator)";  // daemon/workers.cc
constexpr int kThreadsField = 20 - 3;                   // position of num_threads after the state: proc(5)

struct Stat {
  std::string name;  // in parentheses
  char state = 0;
  uint64_t threads = 0;  // of the whole process
};

std::optional<Stat> parse_stat(const std::string& text) {
  const size_t name_begin = text.find('(');
  const size_t name_end = text.rfind(") ");
  if (name_begin == std::string::npos || name_end == std::string::npos) return std::nullopt;
  Stat stat{.name = text.substr(name_begin, name_end + 1 - name_begin), .state = text[name_end + 2]};
  size_t at = name_end + 2;
  for (int field = 0; field < kThreadsField; ++field) {
    at = text.find(' ', at);
    if (at++ == std::string::npos) return std::nullopt;
  }
  const auto read = std::from_chars(text.data() + at, text.data() + text.size(), stat.threads);
  if (read.ec != std::errc{}) return std::nullopt;
  return stat;
}

std::optional<Stat> stat_of(const std::string& directory) {
  const auto text = sys::read_text((directory + "/stat").c_str());
  return text ? parse_stat(*text) : std::nullopt;
}

// True if SIGKILL is pending for the thread: what the thread does in the kernel now is the last thing that it
// does.
bool is_killed(const std::string& directory) {
  const auto text = sys::read_text((directory + "/status").c_str());
  if (!text) return false;
  constexpr std::string_view kPending = "\nSigPnd:\t";
  const size_t at = text->find(kPending);
  if (at == std::string::npos) return false;
  uint64_t pending = 0;
  const char* const digits = text->data() + at + kPending.size();
  const auto read = std::from_chars(digits, text->data() + text->size(), pending, 16);
  return read.ec == std::errc{} && (pending >> (SIGKILL - 1) & 1) != 0;
}

// The result is empty if the directory could not be read to the end.
std::optional<std::vector<std::string>> threads_of(pid_t process) {
  std::vector<std::string> threads;
  std::error_code error;
  std::filesystem::directory_iterator at(fmt::format("/proc/{}/task", process), error);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error))
    threads.push_back(at->path().string());
  if (error) return std::nullopt;
  return threads;
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

bool has_ended_but_for_notifiers(pid_t child) {
  const std::string process = fmt::format("/proc/{}", child);
  const auto before = stat_of(process);
  // Because the first thread of a process stays as a zombie until the last thread has ended, most calls end
  // here.
  if (!before || before->state != 'Z') return false;
  const auto threads = threads_of(child);
  if (!threads) return false;
  for (const std::string& thread : *threads) {
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

bool waits_in_kernel(pid_t child) {
  const auto threads = threads_of(child);
  return !threads || std::ranges::any_of(*threads, [](const std::string& thread) {
    const auto stat = stat_of(thread);
    return stat && stat->state == 'D';
  });
}

void close_all_but(const std::set<int>& kept) {
  unsigned next = STDERR_FILENO + 1;
  const auto close_below = [&next](unsigned end) {
    // The ranges between kept descriptors are closed without a list of the open ones, because such a list may
    // be had only in part.
    if (next < end && close_range(next, end - 1, 0) != 0)
      log_error("descriptors {} to {} stay open: {}", next, end - 1, sys::last_error("close_range").message);
    next = std::max(next, end + 1);
  };
  for (const int fd : kept) close_below(static_cast<unsigned>(std::max(fd, STDERR_FILENO)));
  if (close_range(next, UINT_MAX, 0) != 0)
    log_error("descriptors from {} on stay open: {}", next, sys::last_error("close_range").message);
}

}  // namespace kvcachefs
