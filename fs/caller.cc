#include "fs/caller.h"

#include <fcntl.h>
#include <linux/capability.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <optional>
#include <utility>

#include "base/sys.h"

namespace kvcachefs {
namespace {

constexpr int kStartTimeBits = 20;  // of clock ticks of 10 ms: three hours

Result<UniqueFd> open_process(pid_t number) {
  return sys::open_at(AT_FDCWD, ("/proc/" + std::to_string(number)).c_str(), O_PATH | O_DIRECTORY);
}

// A file is read to its end, because the line with a process's groups can have any length.
Result<std::string> read_in(int directory, const char* name) {
  auto file = sys::open_at(directory, name, O_RDONLY);
  if (!file) return pass(file);
  std::string text;
  std::array<std::byte, 4096> piece;
  for (;;) {
    auto got = sys::read_some(file->get(), piece);
    if (!got) return pass(got);
    if (*got == 0) return text;
    text.append(reinterpret_cast<const char*>(piece.data()), *got);
  }
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

std::string_view next_word(std::string_view& text) {
  const size_t from = text.find_first_not_of(" \t");
  if (from == std::string_view::npos) return text = {};
  text.remove_prefix(from);
  const std::string_view word = text.substr(0, text.find_first_of(" \t"));
  text.remove_prefix(word.size());
  return word;
}

template <class Number>
std::optional<Number> number_of(std::string_view word, int base = 10) {
  Number number{};
  const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), number, base);
  if (word.empty() || code != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return number;
}

// The start time is field 22 of proc(5)'s stat; the second field, the program's name, may have anything in
// it.
std::optional<uint64_t> start_time(std::string_view stat) {
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string_view::npos) return std::nullopt;
  stat.remove_prefix(name_end + 1);
  for (int field = 3; field < 22; ++field) next_word(stat);
  return number_of<uint64_t>(next_word(stat));
}

}  // namespace

Result<Caller> Caller::of(pid_t thread) {
  if (thread <= 0) return fail(ESRCH);
  auto directory = open_process(thread);
  if (!directory) return pass(directory);
  auto status = read_in(directory->get(), "status");
  if (!status) return pass(status);
  return Caller(std::move(*directory), std::move(*status));
}

std::string_view Caller::line(std::string_view key) const {
  const std::string text = "\n" + std::string(key) + ":";
  const size_t at = status_.find(text);
  if (at == std::string::npos) return {};
  const size_t from = at + text.size();
  return std::string_view(status_).substr(from, status_.find('\n', from) - from);
}

bool Caller::may(int capability) const {
  std::string_view effective = line("CapEff");
  const auto set = number_of<uint64_t>(next_word(effective), 16);
  if (!set || (*set >> capability & 1) == 0) return false;
  const auto own = own_user_namespace();
  return own && user_namespace_of(directory_.get()) == own;
}

bool Caller::is_administrator() const {
  return may(CAP_SYS_ADMIN);
}

uid_t Caller::user() const {
  // The line has the real, effective and saved ids and the one for file-system calls.
  std::string_view users = line("Uid");
  for (int others = 0; others < 3; ++others) next_word(users);
  return number_of<uid_t>(next_word(users)).value_or(static_cast<uid_t>(-1));
}

bool Caller::in_group(gid_t group) const {
  // The line has the real, effective and saved ids and the one for file-system calls, which is the one that
  // counts.
  std::string_view own = line("Gid");
  for (int others = 0; others < 3; ++others) next_word(own);
  if (number_of<gid_t>(next_word(own)) == group) return true;
  std::string_view further = line("Groups");
  for (auto word = next_word(further); !word.empty(); word = next_word(further)) {
    if (number_of<gid_t>(word) == group) return true;
  }
  return false;
}

Result<uint64_t> Caller::process() const {
  std::string_view group = line("Tgid");
  const auto number = number_of<pid_t>(next_word(group));
  if (!number) return fail(ESRCH);
  auto leader = open_process(*number);
  if (!leader) return pass(leader);
  auto stat = read_in(leader->get(), "stat");
  if (!stat) return pass(stat);
  const auto started = start_time(*stat);
  if (!started) return fail(ESRCH);
  constexpr uint64_t kMask = (uint64_t{1} << kStartTimeBits) - 1;
  return static_cast<uint64_t>(*number) << kStartTimeBits | (*started & kMask);
}

}  // namespace kvcachefs
