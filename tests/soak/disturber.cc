#include "tests/soak/disturber.h"

#include <signal.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "tests/support/files.h"
#include "tests/support/program.h"

namespace kvcachefs::soak {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;
// What the serving process says when it ends because a disk that a takeover could not have can be had again.
constexpr const char* kHandsOver = "ends, and another takes over, with the disk";
constexpr uint64_t kLongestSeconds = 150;  // however many takeovers there were meanwhile
constexpr uint64_t kLateSeconds = 5;  // beyond what a call may take: then the soak does not wait for its end

size_t count_of(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size()) ++count;
  return count;
}

std::string stacks_of(pid_t pid) {
  std::string all;
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  if (!test::exists(tasks)) return "no process " + std::to_string(pid);
  for (const std::string& task : test::list(tasks)) {
    std::string stack;
    (void)test::load(tasks + "/" + task + "/stack", &stack);
    all += task + ": " + stack.substr(0, stack.find('\n', 120)) + "\n";
  }
  return all;
}

// The lines of a log without their numbers, and how often each came.
std::string lines_of(const std::string& log) {
  std::map<std::string, uint64_t> counts;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    std::string text;
    for (const char c : line)
      if (c < '0' || c > '9')
        text += c;
      else if (!text.ends_with('#'))
        text += '#';
    ++counts[text.substr(0, 200)];
  }
  std::string all;
  for (const auto& [line, count] : counts) all += "  " + std::to_string(count) + " x " + line + "\n";
  return all;
}

}  // namespace

Disturber::Disturber(Record& record, const test::Mount& mount, uint64_t seconds, uint64_t seed)
    : record_(record),
      mount_(mount),
      pause_ns_(std::clamp<uint64_t>(seconds / 12, 3, 60) * kSecondNs),
      random_(seed),
      next_ns_(monotonic_ns() + any_pause_ns()),
      serving_(mount.serving_pid()) {}

uint64_t Disturber::any_pause_ns() {
  return pause_ns_ / 2 + random_.below(pause_ns_);
}

void Disturber::step() {
  look_for_hangs();
  look_after_server();
  if (serving_ == 0 || monotonic_ns() < next_ns_) return;
  if ((kills_ + upgrades_) % 2 == 0)
    kill();
  else
    upgrade();
  next_ns_ = monotonic_ns() + any_pause_ns();
}

void Disturber::look_for_hangs() {
  for (int number = 0; number <= kClients; ++number) {
    const ClientState& its = record_.client(number);
    const CallKind& kind = kind_of(static_cast<Call>(its.call.load()));
    const uint64_t most_ns = (static_cast<uint64_t>(kind.most_seconds) + kLateSeconds) * kSecondNs;
    const uint64_t begun_ns = its.call_begun_ns;
    const bool waits_too_long = begun_ns != 0 && monotonic_ns() > begun_ns + kLongestSeconds * kSecondNs;
    if (record_.waits_ns(number) < most_ns && !waits_too_long) continue;
    record_.fail("HANG: client " + std::to_string(number) + " in `" + its.action.load() + "`: " + kind.name,
                 true);
    std::fprintf(stderr, "the serving process:\n%s", stacks_of(mount_.serving_pid()).c_str());
  }
}

void Disturber::look_after_server() {
  const pid_t now = mount_.serving_pid();
  if (now == serving_ || now == 0) return;
  if (serving_ == 0 && now == replaced_) return;
  if (serving_ != 0 && handovers_ == count_of(mount_.log(), kHandsOver))
    record_.fail("DEATH: the serving process " + std::to_string(serving_) + " has ended by itself", true);
  handovers_ = count_of(mount_.log(), kHandsOver);
  serving_ = now;
  record_.takeover_ended();
}

void Disturber::kill() {
  replaced_ = serving_;
  serving_ = 0;
  ++kills_;
  (void)::kill(replaced_, SIGKILL);
}

void Disturber::upgrade() {
  replaced_ = serving_;
  serving_ = 0;
  ++upgrades_;
  const auto outcome = test::run({"kvcachefs", "--mount", mount_.root(), "upgrade"});
  if (outcome.exit_code != 0) record_.fail("no upgrade: " + outcome.error, false);
}

void Disturber::check_end() {
  const auto stats = test::parse_stats(test::read_file(mount_.root() + "/.kvcachefs/stats"));
  const std::string generation = stats.at("generation");
  const std::string log = mount_.log();
  const size_t deaths = count_of(log, ": another takes over");
  handovers_ = count_of(log, kHandsOver);
  if (generation != std::to_string(kills_ + upgrades_ + handovers_) || deaths != kills_)
    record_.fail("DEATH: generation " + generation + " and " + std::to_string(deaths) +
                     " deaths in the log, of " + std::to_string(kills_) + " kills and " +
                     std::to_string(upgrades_) + " upgrades",
                 false);
  for (const char* const sign : {"has not got on", "no upgrade", "given up", "error", "<2>", "<1>", "<0>"})
    if (log.find(sign) != std::string::npos)
      record_.fail(std::string("the log has `") + sign + "`: " + log.substr(log.find(sign), 200), false);
}

std::string Disturber::summary() const {
  return std::to_string(kills_) + " kills, " + std::to_string(upgrades_) + " upgrades, " +
         std::to_string(handovers_) + " ends for a disk that was away; the log:\n" + lines_of(mount_.log());
}

}  // namespace kvcachefs::soak
