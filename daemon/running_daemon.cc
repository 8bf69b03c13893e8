#include "daemon/running_daemon.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <set>
#include <string_view>

#include "base/key_value.h"
#include "base/mountinfo.h"
#include "base/sys.h"
#include "base/sys_process.h"

namespace kvcachefs {
namespace {

constexpr std::string_view kDeviceFile = "/dev/fuse";
constexpr std::string_view kConnection = "fuse_connection";  // in the fdinfo of that file, since Linux 6.8
constexpr size_t kMostNamed = 3;

std::vector<int> numbers_in(const std::string& directory) {
  return sys::numbers_in(directory).value_or(std::vector<int>());
}

std::string of_process(pid_t process, std::string_view what) {
  return fmt::format("/proc/{}/{}", process, what);
}

// Non-printing characters are replaced, because other users choose the names of their processes.
std::string command_of(pid_t process) {
  std::string name = sys::read_text(of_process(process, "comm").c_str()).value_or("?\n");
  if (name.ends_with('\n')) name.pop_back();
  std::ranges::replace_if(
      name, [](char c) { return c < ' ' || c > '~'; }, '?');
  return name;
}

std::optional<RunningDaemon> daemon_in(pid_t process, const std::string& directory,
                                       const sys::FileIdentity& its) {
  RunningDaemon daemon{.pid = process, .device_fd = -1, .device = {}};
  bool has_directory = false;
  for (const int fd : numbers_in(of_process(process, "fd"))) {
    const std::string link = of_process(process, fmt::format("fd/{}", fd));
    const auto text = sys::read_link(AT_FDCWD, link.c_str());
    if (!text) continue;
    if (!has_directory && *text == directory) {
      // The identity is compared too, because another mount namespace may have a directory of the same name.
      const auto identity = sys::identity_of(link);
      has_directory = identity && *identity == its;
    } else if (daemon.device_fd < 0 && *text == kDeviceFile) {
      daemon.device_fd = fd;
      daemon.device = device_of_connection(process, fd);
    }
    if (has_directory && daemon.device_fd >= 0) return daemon;
  }
  return std::nullopt;
}

bool uses(pid_t process, const std::string& device) {
  const auto leads_there = [&](std::string_view what) {
    const auto found = sys::identity_of(of_process(process, what));
    return found && found->device == device;
  };
  return leads_there("cwd") || leads_there("root") ||
         std::ranges::any_of(numbers_in(of_process(process, "fd")),
                             [&](int fd) { return leads_there(fmt::format("fd/{}", fd)); });
}

}  // namespace

std::string device_of_connection(pid_t process, int fd) {
  const auto text = sys::read_text(of_process(process, fmt::format("fdinfo/{}", fd)).c_str()).value_or("");
  std::string_view connection = line_value(text, kConnection);
  return connection.empty() ? "" : fmt::format("0:{}", take_word(connection));
}

Result<RunningDaemon> find_daemon(const std::string& directory) {
  const auto its = sys::identity_of(directory);
  if (!its) return fail(ESRCH);
  for (const pid_t process : numbers_in("/proc")) {
    // systemd has the same files open in its store of a service's descriptors (daemon/service_manager.h).
    if (command_of(process) == "systemd") continue;
    if (auto daemon = daemon_in(process, directory, *its)) return *daemon;
  }
  return fail(ESRCH);
}

std::string device_served_by(pid_t process) {
  for (const int fd : numbers_in(of_process(process, "fd"))) {
    const auto text = sys::read_link(AT_FDCWD, of_process(process, fmt::format("fd/{}", fd)).c_str());
    if (!text || *text != kDeviceFile) continue;
    if (std::string device = device_of_connection(process, fd); !device.empty()) return device;
  }
  return "";
}

std::vector<Holder> holders_of(const std::string& device) {
  std::vector<Holder> holders;
  if (device.empty()) return holders;
  // Mounts of one peer group are unmounted together, and the slaves of that group with them.
  std::set<std::string> groups;
  for (const MountPoint& mount : read_mounts().value_or(std::vector<MountPoint>()))
    if (mount.device == device && !mount.peer_group.empty()) groups.insert(mount.peer_group);
  const auto stays = [&](const MountPoint& mount) {
    return mount.device == device && !groups.contains(mount.peer_group) &&
           !groups.contains(mount.master_group);
  };
  std::set<std::string> seen{sys::read_link(AT_FDCWD, "/proc/self/ns/mnt").value_or("")};
  for (const pid_t process : numbers_in("/proc")) {
    const auto mount_namespace = sys::read_link(AT_FDCWD, of_process(process, "ns/mnt").c_str());
    if (!mount_namespace) continue;
    const bool has_mount =
        seen.insert(*mount_namespace).second &&
        std::ranges::any_of(read_mounts(of_process(process, "mountinfo")).value_or(std::vector<MountPoint>()),
                            stays);
    if (has_mount || uses(process, device)) holders.push_back({process, command_of(process), has_mount});
  }
  return holders;
}

std::string text_of(const std::vector<Holder>& holders) {
  std::vector<std::string> named;
  for (const Holder& holder : holders) {
    if (named.size() == kMostNamed) break;
    named.push_back(fmt::format("process {} ({})", holder.pid, holder.command));
  }
  std::string text = fmt::format("{}", fmt::join(named, ", "));
  if (holders.size() > named.size()) text += fmt::format(" and {} more", holders.size() - named.size());
  return text;
}

}  // namespace kvcachefs
