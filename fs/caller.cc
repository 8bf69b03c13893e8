#include "fs/caller.h"

#include <fcntl.h>
#include <linux/capability.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "base/key_value.h"
#include "base/sys.h"

namespace kvcachefs {
namespace {

constexpr int kStartTimeField = 22;
constexpr int kStartTimeBits = 20;  // of clock ticks of 10 ms: three hours

Result<UniqueFd> open_process(pid_t number) {
  return sys::open_at(AT_FDCWD, ("/proc/" + std::to_string(number)).c_str(), O_PATH | O_DIRECTORY);
}

using Identity = std::pair<dev_t, ino_t>;

std::optional<Identity> user_namespace_of(int directory) {
  auto namespaces = sys::open_at(directory, "ns", O_PATH | O_DIRECTORY);
  auto opened = namespaces ? sys::open_at(namespaces->get(), "user", O_RDONLY) : pass(namespaces);
  auto attributes = opened ? sys::stat_of(opened->get()) : pass(opened);
  if (!attributes) return std::nullopt;
  return Identity{attributes->st_dev, attributes->st_ino};
}

// The daemon's user namespace cannot change, because the daemon has several threads.
std::optional<Identity> own_user_namespace() {
  static const std::optional<Identity> own = [] {
    auto self = sys::open_at(AT_FDCWD, "/proc/self", O_PATH | O_DIRECTORY);
    return self ? user_namespace_of(self->get()) : std::nullopt;
  }();
  return own;
}

}  // namespace

Result<Caller> Caller::of(pid_t thread) {
  if (thread <= 0) return fail(ESRCH);
  auto directory = open_process(thread);
  if (!directory) return pass(directory);
  auto status = sys::read_text("status", directory->get());
  if (!status) return pass(status);
  return Caller(std::move(*directory), std::move(*status));
}

uid_t Caller::user_of(pid_t thread, uid_t told) {
  if (told != static_cast<uid_t>(-1)) return told;
  const auto caller = of(thread);
  return caller ? caller->user() : told;
}

bool Caller::may(int capability) const {
  std::string_view effective = line_value(status_, "CapEff");
  const auto set = number_in<uint64_t>(take_word(effective), 16);
  if (!set || (*set >> capability & 1) == 0) return false;
  const auto own = own_user_namespace();
  return own && user_namespace_of(directory_.get()) == own;
}

bool Caller::is_administrator() const {
  return may(CAP_SYS_ADMIN);
}

uid_t Caller::user() const {
  // The line has the real, effective and saved ids and the one for file-system calls.
  std::string_view users = line_value(status_, "Uid");
  for (int others = 0; others < 3; ++others) take_word(users);
  return number_in<uid_t>(take_word(users)).value_or(static_cast<uid_t>(-1));
}

bool Caller::in_group(gid_t group) const {
  // The line has the real, effective and saved ids and the one for file-system calls, which is the one that
  // counts.
  std::string_view own = line_value(status_, "Gid");
  for (int others = 0; others < 3; ++others) take_word(own);
  if (number_in<gid_t>(take_word(own)) == group) return true;
  std::string_view further = line_value(status_, "Groups");
  for (auto word = take_word(further); !word.empty(); word = take_word(further)) {
    if (number_in<gid_t>(word) == group) return true;
  }
  return false;
}

std::optional<pid_t> Caller::group() const {
  std::string_view group = line_value(status_, "Tgid");
  return number_in<pid_t>(take_word(group));
}

std::string Caller::groups() const {
  return std::string(line_value(status_, "Gid")).append(line_value(status_, "Groups"));
}

bool Caller::has_signal() const {
  const auto set = [this](std::string_view line) {
    std::string_view signals = line_value(status_, line);
    return number_in<uint64_t>(take_word(signals), 16).value_or(0);
  };
  return ((set("SigPnd") | set("ShdPnd")) & ~set("SigBlk")) != 0;
}

Result<uint64_t> Caller::process() const {
  const auto number = group();
  if (!number) return fail(ESRCH);
  auto leader = open_process(*number);
  if (!leader) return pass(leader);
  auto stat = sys::read_text("stat", leader->get());
  if (!stat) return pass(stat);
  const auto started = number_in<uint64_t>(stat_field(*stat, kStartTimeField));
  if (!started) return fail(ESRCH);
  constexpr uint64_t kMask = (uint64_t{1} << kStartTimeBits) - 1;
  return static_cast<uint64_t>(*number) << kStartTimeBits | (*started & kMask);
}

}  // namespace kvcachefs
