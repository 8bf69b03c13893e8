#include "base/sys_process.h"

#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "base/key_value.h"
#include "base/sys.h"

namespace kvcachefs::sys {

constexpr long kPidfdSendSignal = 424;  // Linux 5.1
constexpr long kPidfdGetfd = 438;       // Linux 5.6; the headers of Debian 11 are older

Result<std::vector<int>> numbers_in(const std::string& directory) {
  std::vector<int> numbers;
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error))
    if (const auto number = number_in<int>(at->path().filename().native())) numbers.push_back(*number);
  if (error) return fail(error.value());
  std::ranges::sort(numbers);
  return numbers;
}

sigset_t signal_set(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  return set;
}

bool has_pending(std::initializer_list<int> signals) {
  sigset_t pending;
  return sigpending(&pending) == 0 &&
         std::ranges::any_of(signals, [&](int signal) { return sigismember(&pending, signal) == 1; });
}

Result<void> take_own_mounts() {
  if (unshare(CLONE_NEWNS) != 0) return fail(errno);
  return mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
}

Result<UniqueFd> open_process(pid_t process) {
  return owned(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
}

Result<UniqueFd> copy_descriptor_of(pid_t process, int fd) {
  auto opened = open_process(process);
  if (!opened) return opened;
  return owned(static_cast<int>(syscall(kPidfdGetfd, opened->get(), fd, 0)));
}

Result<void> send_signal_to(int process, int signal) {
  if (syscall(kPidfdSendSignal, process, signal, nullptr, 0) != 0) return fail(errno);
  return {};
}

bool has_ended(int process) {
  pollfd event{process, POLLIN, 0};
  return poll(&event, 1, 0) > 0 && (event.revents & POLLIN) != 0;
}

Result<FileIdentity> identity_of(const std::string& path) {
  struct statx found {};
  if (statx(AT_FDCWD, path.c_str(), AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, STATX_INO, &found) != 0)
    return fail(errno);
  return FileIdentity{std::to_string(found.stx_dev_major) + ":" + std::to_string(found.stx_dev_minor),
                      found.stx_ino};
}

std::optional<gid_t> group_number(const std::string& text) {
  if (const auto number = number_in<gid_t>(text); number && *number != static_cast<gid_t>(-1)) return number;
  std::vector<char> strings(size_t{1} << 16);  // a group has as many members as it has
  group found{};
  group* result = nullptr;
  while (::getgrnam_r(text.c_str(), &found, strings.data(), strings.size(), &result) == ERANGE)
    strings.resize(strings.size() * 2);
  if (result == nullptr) return std::nullopt;
  return found.gr_gid;
}

}  // namespace kvcachefs::sys
