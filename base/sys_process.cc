#include "base/sys_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>

namespace kvcachefs::sys {
namespace {

constexpr long kPidfdSendSignal = 424;  // Linux 5.1
constexpr long kPidfdGetfd = 438;       // Linux 5.6; the headers of Debian 11 are older

std::unexpected<Error> failed() {
  return std::unexpected<Error>(Error{errno, {}});
}

}  // namespace

Result<UniqueFd> open_process(pid_t process) {
  const auto fd = static_cast<int>(syscall(SYS_pidfd_open, process, 0));
  if (fd < 0) return failed();
  return UniqueFd(fd);
}

Result<UniqueFd> copy_descriptor_of(pid_t process, int fd) {
  auto opened = open_process(process);
  if (!opened) return opened;
  const auto copy = static_cast<int>(syscall(kPidfdGetfd, opened->get(), fd, 0));
  if (copy < 0) return failed();
  return UniqueFd(copy);
}

Result<void> send_signal_to(int process, int signal) {
  if (syscall(kPidfdSendSignal, process, signal, nullptr, 0) != 0) return failed();
  return {};
}

bool has_ended(int process) {
  pollfd event{process, POLLIN, 0};
  return poll(&event, 1, 0) > 0 && (event.revents & POLLIN) != 0;
}

Result<FileIdentity> identity_of(const std::string& path) {
  struct statx found {};
  if (statx(AT_FDCWD, path.c_str(), AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, STATX_INO, &found) != 0)
    return failed();
  return FileIdentity{std::to_string(found.stx_dev_major) + ":" + std::to_string(found.stx_dev_minor),
                      found.stx_ino};
}

Result<std::string> magic_text(const std::string& magic_link) {
  std::array<char, PATH_MAX> text{};
  const ssize_t size = readlink(magic_link.c_str(), text.data(), text.size());
  if (size < 0) return failed();
  return std::string(text.data(), static_cast<size_t>(size));
}

}  // namespace kvcachefs::sys
