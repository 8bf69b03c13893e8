#include "daemon/supervisor.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/host_memory.h"
#include "base/key_value.h"
#include "base/log.h"
#include "base/sys.h"
#include "base/sys_process.h"
#include "daemon/child.h"
#include "daemon/reconnection.h"
#include "daemon/stacks.h"
#include "daemon/takeover_watch.h"

namespace kvcachefs {
namespace {

// A child that dies so soon after it began to serve was likely killed by a request, and the next child gets
// the same request again.
constexpr uint64_t kShortLifeNs = 50'000'000;
constexpr auto kFirstPause = std::chrono::milliseconds(10);
constexpr auto kLongestPause = std::chrono::milliseconds(2560);
constexpr auto kReapPatience = std::chrono::milliseconds(100);
constexpr auto kDiskPatience = std::chrono::seconds(5);
constexpr int kLookEveryMs = 100;
// Connections that are aborted within this time of their beginning follow each other more and more slowly.
constexpr uint64_t kShortConnectionNs = 10'000'000'000;
constexpr int kExitGivenUp = 1;
constexpr int kLeastFailures = 10;     // tolerated however little time successors are given
constexpr int kMostFailuresOfNew = 3;  // children of a new program, before the program from before goes on

const sigset_t kHeededSignals = sys::signal_set({SIGTERM, SIGINT, SIGHUP});

// A successor needs each descriptor that is written down in Survivors.
std::set<int> needed_descriptors(Survivors& survivors) {
  std::set<int> needed{survivors.memory_fd()};
  if (const auto device = survivors.connection().device_fd()) needed.insert(*device);
  for (const auto& [place, inode] : survivors.kept_inodes().list()) needed.insert(inode.fd);
  return needed;
}

std::string how(std::optional<int> exit_status) {
  if (!exit_status) return "was killed";
  const int status = *exit_status;
  if (WIFSIGNALED(status)) return fmt::format("was killed by {}", strsignal(WTERMSIG(status)));
  return fmt::format("exited with {}", WEXITSTATUS(status));
}

bool left_with(int exit_status, const std::optional<int>& status) {
  return status && WIFEXITED(*status) && WEXITSTATUS(*status) == exit_status;
}

bool left_to_another(const std::optional<int>& status) {
  return left_with(kExitToBeFollowed, status) || left_with(kExitAborted, status);
}

class Supervisor {
 public:
  Supervisor(Survivors& survivors, Supervision supervision)
      : survivors_(survivors),
        supervision_(std::move(supervision)),
        signals_(signalfd(-1, &kHeededSignals, SFD_CLOEXEC | SFD_NONBLOCK)) {}
  Result<int> run();

 private:
  std::optional<int> wait_for_end();
  void heed_signals();
  void consider_upgrade();
  void look_after_child();
  void replace_hung_child(const char* what, std::chrono::seconds after);
  Result<void> start_child();
  void tell_child(int signal);
  bool begin_again(const std::optional<int>& status);
  bool has_failed_long_enough() const;
  bool is_hopeless(const std::optional<int>& status);
  bool renew_connection();
  void rest(std::chrono::milliseconds pause);
  void refuse_upgrade(const std::string& reason);
  std::set<int> handed_on() const;
  void upgrade();

  Survivors& survivors_;
  Supervision supervision_;
  const UniqueFd signals_;
  pid_t child_ = -1;
  bool has_served_ = false;
  bool asked_to_end_ = false;
  bool upgrade_wanted_ = false;
  bool upgrading_ = false;
  bool hung_ = false;
  TakeoverWatch takeover_;
  int deaths_ = 0;
  int killings_ = 0;
  int failures_ = 0;  // successors in a row of which none came to serve
  uint64_t failing_since_ns_ = 0;
  int aborts_ = 0;  // in a row
  uint64_t connected_ns_ = 0;
};

Result<int> Supervisor::run() {
  for (;;) {
    if (auto started = start_child(); !started) return pass(started);
    const std::optional<int> status = wait_for_end();
    while (waitpid(-1, nullptr, WNOHANG) > 0) continue;  // reaps earlier children
    child_ = -1;
    const bool connected = survivors_.connection().device_fd().has_value();
    // The child exits by itself if it was asked to, if the file system was unmounted, or if it could not even
    // begin.
    if (status && WIFEXITED(*status) && (WEXITSTATUS(*status) == 0 || !connected))
      return WEXITSTATUS(*status);
    if (!begin_again(status)) {
      // A child that was asked to end and was killed before it had ended counts as ended.
      const bool killed = !status || (WIFSIGNALED(*status) && WTERMSIG(*status) == SIGKILL);
      return asked_to_end_ && (killed || left_to_another(status)) ? 0 : kExitGivenUp;
    }
  }
}

// A machine that is short of memory or of processes for a moment delays the start by a moment.
Result<void> Supervisor::start_child() {
  for (auto pause = kFirstPause;; pause = std::min(pause * 2, kLongestPause)) {
    std::fflush(nullptr);
    // The heartbeat of the last child is reset: with it the new child would be taken for hung before its
    // first own beat.
    survivors_.children().beginning();
    const pid_t supervisor = getpid();
    child_ = fork_sharing_descriptors();
    if (child_ == 0) {
      prctl(PR_SET_NAME, "kvcachefsd");
      go_before_the_supervisor();
      std::exit(supervision_.serve(supervisor));
    }
    if (child_ > 0) {
      takeover_.begins(child_);
      if (asked_to_end_) tell_child(SIGTERM);
      return {};
    }
    auto failed = sys::last_error("clone");
    if (!survivors_.connection().device_fd()) return std::unexpected(std::move(failed));
    if (failing_since_ns_ == 0) failing_since_ns_ = now_ns();
    if (asked_to_end_ || has_failed_long_enough()) {
      supervision_.give_up("no process can be started: " + failed.message);
      return std::unexpected(std::move(failed));
    }
    log_error("no process can be started to serve: {}", failed.message);
    rest(pause);
    if (upgrading_) upgrade();
  }
}

void Supervisor::tell_child(int signal) {
  if (child_ > 0) (void)::kill(child_, signal);
}

// False: there is no connection that the next child could go on with or end in order.
bool Supervisor::renew_connection() {
  if (!supervision_.needs_connection()) {
    aborts_ = 0;
    return true;
  }
  aborts_ = now_ns() - connected_ns_ < kShortConnectionNs ? aborts_ + 1 : 1;
  auto connected = supervision_.connect();
  if (!connected) log_error("no new connection: {}", connected.error().message);
  const bool has_another = connected.value_or(false);
  if (has_another) connected_ns_ = now_ns();
  return has_another || survivors_.children().may_succeed();
}

// No process serves requests during the pause.
void Supervisor::rest(std::chrono::milliseconds pause) {
  const auto end = std::chrono::steady_clock::now() + pause;
  while (!asked_to_end_ && !upgrading_) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (left.count() <= 0) return;
    pollfd event{signals_.get(), POLLIN, 0};
    (void)poll(&event, 1, std::min(static_cast<int>(left.count()), kLookEveryMs));
    heed_signals();
    if (has_served_) supervision_.gets_on();
  }
}

// The result says how the child ended, in waitpid's terms; it is empty for a child that is dead except for
// threads that cannot be killed. Only the kernel's own report counts as an end: a failure to open or read
// something proves nothing.
std::optional<int> Supervisor::wait_for_end() {
  // If no pidfd can be opened, waitpid() alone tells of the end.
  const UniqueFd ended(static_cast<int>(syscall(SYS_pidfd_open, child_, 0)));
  bool only_notifiers_left = false;
  for (auto waited = kFirstPause * 0; waited < kReapPatience;) {
    pollfd events[] = {{ended.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
    (void)poll(events, 2, only_notifiers_left ? static_cast<int>(kFirstPause.count()) : kLookEveryMs);
    heed_signals();
    int status = 0;
    const pid_t reaped = waitpid(child_, &status, WNOHANG);
    if (reaped == child_) return status;
    if (reaped < 0 && (events[0].revents & POLLIN) != 0) return std::nullopt;  // reaped elsewhere
    only_notifiers_left = has_ended_but_for_notifiers(child_);
    if (only_notifiers_left)
      waited += kFirstPause;
    else
      look_after_child();
  }
  return std::nullopt;
}

void Supervisor::heed_signals() {
  signalfd_siginfo signal{};
  while (read(signals_.get(), &signal, sizeof signal) == sizeof signal) {
    if (signal.ssi_signo != SIGHUP) {
      asked_to_end_ = true;
      supervision_.stop_binding();
      tell_child(static_cast<int>(signal.ssi_signo));
    } else {
      upgrade_wanted_ = true;
    }
  }
  if (upgrade_wanted_ && !asked_to_end_) consider_upgrade();
}

// If the child dies meanwhile, the next one comes first, and then the question is put again.
void Supervisor::consider_upgrade() {
  const auto interrupted = [this] {
    return sys::has_pending({SIGTERM, SIGINT}) || (child_ > 0 && child_has_ended(child_));
  };
  if (survivors_.children().does_kernel_forbid()) {
    refuse_upgrade(
        "before Linux 6.9 the kernel gives the requests of a process to no other: stop and start instead");
  } else if (!survivors_.children().may_succeed()) {
    refuse_upgrade("what is served cannot be handed over; stop and start instead");
  } else if (const auto hung = hung_thread(child_, kDiskPatience)) {
    // Killed, the child would not end, and requests to all pools would wait for that.
    refuse_upgrade(
        fmt::format("the thread {} of the serving process has waited in the kernel for {} s, for "
                    "a disk or for memory, and could not be replaced before that ends",
                    *hung, kDiskPatience.count()));
  } else if (auto able = supervision_.can_upgrade(interrupted); !able) {
    if (able.error().code == EINTR) return;
    refuse_upgrade(able.error().message);
  } else {
    log_info("upgrading");
    upgrading_ = true;
    // The child is killed without a warning, because a successor of a killed child goes on unnoticed by
    // clients.
    tell_child(SIGKILL);
  }
  upgrade_wanted_ = false;
}

void Supervisor::look_after_child() {
  const uint64_t serving_since_ns = survivors_.children().serving_since_ns();
  const bool outlived = supervision_.outlives_connection();
  const std::chrono::seconds after = outlived ? kEndPatience : supervision_.hang_after;
  if (serving_since_ns == 0) {
    if (has_served_) supervision_.gets_on();
    // A child that is ending has its own time limits.
    // A first start is not watched either: no client waits for it, and it may be stopped.
    if (survivors_.children().is_beginning() && survivors_.connection().device_fd() &&
        (outlived || takeover_.hangs(after)) && !hung_)
      replace_hung_child("the process that takes over", after);
    return;
  }
  if (!std::exchange(has_served_, true)) supervision_.served();
  supervision_.bind_mounts();
  const uint64_t request_ns = survivors_.requests().oldest_ns();
  const uint64_t beat_ns = survivors_.children().last_beat_ns();
  // Requests and beats from before the child served do not count: they may have waited for a disk, and the
  // takeover has time limits of its own.
  const uint64_t since_ns =
      std::max(request_ns == 0 ? beat_ns : std::min(request_ns, beat_ns), serving_since_ns);
  const std::chrono::nanoseconds since(now_ns() - std::min(since_ns, now_ns()));
  if (!outlived && (supervision_.hang_after.count() == 0 || since < supervision_.hang_after))
    supervision_.gets_on();
  else if (!hung_)
    replace_hung_child("the serving process", after);
}

void Supervisor::replace_hung_child(const char* what, std::chrono::seconds after) {
  log_error("{} has not got on for {} s", what, after.count());
  // A child that hung may have done so by chance. Where two in a row hang, the third does without what their
  // threads were reading.
  log_stacks(child_, survivors_.children().is_beginning() && failures_ > 0);
  hung_ = true;
  (void)::kill(child_, SIGKILL);
}

bool Supervisor::has_failed_long_enough() const {
  return std::chrono::nanoseconds(now_ns() - failing_since_ns_) >= supervision_.give_up_after;
}

// Deaths count only for children that came to serve: their end was likely caused by a request. A child that
// did not come to serve may find things better the next time, and has cost only time.
bool Supervisor::is_hopeless(const std::optional<int>& status) {
  const uint64_t serving_since_ns = survivors_.children().serving_since_ns();
  if (serving_since_ns > 0) failures_ = 0, failing_since_ns_ = 0;
  if (serving_since_ns > 0 && now_ns() - serving_since_ns > kShortLifeNs) deaths_ = killings_ = 0;
  if (left_with(kExitToBeFollowed, status)) return false;
  if (serving_since_ns == 0) {
    if (failing_since_ns_ == 0) failing_since_ns_ = now_ns();
    return ++failures_ >= kLeastFailures && has_failed_long_enough();
  }
  if (left_with(kExitAborted, status)) return false;
  const bool killed = !hung_ && (!status || (WIFSIGNALED(*status) && WTERMSIG(*status) == SIGKILL));
  ++(killed ? killings_ : deaths_);
  return deaths_ >= kMostDeaths || killings_ >= kMostKillings;
}

bool Supervisor::begin_again(const std::optional<int>& status) {
  const std::string who = hung_ && survivors_.children().is_beginning() ? "the process that was to take over"
                                                                        : "the serving process";
  const std::string reason = fmt::format("{} {}", who, hung_ ? "hung" : how(status));
  const bool hopeless = is_hopeless(status);
  hung_ = false;
  if (supervision_.stand_in && failures_ >= kMostFailuresOfNew && !asked_to_end_) {
    log_error("{}: the program from before goes on", reason);
    std::_Exit(kExitGivenUp);
  }
  const auto give_up = [&](const std::string& why) {
    supervision_.give_up(why);
    return false;
  };
  // A child that was asked to end as it left to another has not heard of it: the next one ends in order.
  const auto is_over = [&] { return asked_to_end_ && !left_to_another(status); };
  if (hopeless) return give_up(fmt::format("{}, {} times in a row", reason, deaths_ + killings_ + failures_));
  if (is_over() || !survivors_.connection().device_fd() ||
      !survivors_.children().may_succeed_with_another_connection() || !renew_connection())
    return give_up(reason);
  // Descriptors are closed before an upgrade too, because the exec does not close all of them (LMDB's).
  std::set<int> kept = handed_on();
  kept.insert({signals_.get(), supervision_.stand_in.fd()});
  close_all_but(kept);
  supervision_.followed(left_with(kExitToBeFollowed, status));
  if (!left_to_another(status) && !upgrading_) log_error("{}: another takes over", reason);
  if (const int row = std::max({deaths_, failures_, aborts_}); row > 1) {
    const std::chrono::milliseconds pause = kFirstPause * (1 << std::min(row - 2, 8));
    if (failures_ > kLeastFailures)
      log_error("{} could not take over in {} s: the next begins in {} ms", failures_,
                (now_ns() - failing_since_ns_) / 1'000'000'000, std::min(pause, kLongestPause).count());
    rest(std::min(pause, kLongestPause));
  }
  if (is_over()) return give_up(reason);
  if (upgrading_) upgrade();
  return true;
}

void Supervisor::refuse_upgrade(const std::string& reason) {
  log_error("no upgrade: {}", reason);
  survivors_.children().upgrade_refused(reason);
}

std::set<int> Supervisor::handed_on() const {
  std::set<int> needed = needed_descriptors(survivors_);
  needed.insert(supervision_.own_descriptors.begin(), supervision_.own_descriptors.end());
  return needed;
}

void Supervisor::upgrade() {
  upgrading_ = false;
  supervision_.stand_in.dismiss();
  survivors_.children().ending();
  const std::set<int> needed = handed_on();
  auto [line, is_stand_in] = begin_standing_in(survivors_, supervision_.hang_after);
  if (!is_stand_in) {
    auto failed = supervision_.upgrade({needed.begin(), needed.end()}, line.fd());
    line.dismiss();
    return refuse_upgrade(failed.error().message);
  }
  refuse_upgrade("the new program ended before it served; the program from before goes on");
  if (survivors_.children().may_succeed()) return;
  supervision_.give_up("what is served cannot be handed over");
  std::exit(kExitGivenUp);
}

}  // namespace

Result<int> supervise(Survivors& survivors, Supervision supervision) {
  prctl(PR_SET_NAME, "kvcachefs-super");
  sigprocmask(SIG_BLOCK, &kHeededSignals, nullptr);
  (void)std::signal(SIGCHLD, SIG_DFL);  // an inherited SIG_IGN would leave nothing to wait for
  return Supervisor(survivors, std::move(supervision)).run();
}

}  // namespace kvcachefs
