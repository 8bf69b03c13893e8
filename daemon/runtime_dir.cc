#include "daemon/runtime_dir.h"

#include <fmt/format.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ranges>
#include <sstream>

#include "base/log.h"
#include "base/mountinfo.h"
#include "base/progress.h"
#include "base/sys.h"
#include "base/sys_disk.h"

namespace kvcachefs {
namespace {

constexpr auto kDirectoryLockPatience = std::chrono::seconds(1);

Result<void> unmount_below(const std::string& directory, const std::vector<std::string>& kept = {}) {
  auto mounts = read_mounts();
  if (!mounts) return pass(mounts);
  for (const MountPoint& mount : std::views::reverse(*mounts)) {
    if (!mount.directory.starts_with(directory + "/")) continue;
    if (std::ranges::find(kept, mount.directory) != kept.end()) continue;
    count_step();
    log_info("{}: cleaning up the memory of a daemon that died", mount.directory);
    if (auto done = sys::unmount(mount.directory.c_str(), MNT_DETACH); !done) return done;
    (void)sys::remove_directory(mount.directory.c_str());
  }
  return {};
}

}  // namespace

// The escape is like systemd's for paths: `/mnt/kv` is `mnt-kv`, and each byte that a name may not hold, a
// dash included, is `\xHH`.
std::string escape_path(const std::string& path) {
  std::string result;
  for (const char c : path.substr(std::min(path.find_first_not_of('/'), path.size()))) {
    const bool stays = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (c == '/')
      result += '-';
    else if (stays || c == '_' || c == '.')
      result += c;
    else
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return result.empty() ? "-" : result;
}

// The check matters because a user who can write to the directory could put another directory, or a link, in
// the daemon's way.
Result<void> check_is_ours(const std::string& directory) {
  auto opened = sys::open_at(AT_FDCWD, directory.c_str(), O_PATH | O_DIRECTORY);
  if (!opened) return pass(opened);
  auto attributes = sys::stat_of(opened->get());
  if (!attributes) return pass(attributes);
  const bool others_write = (attributes->st_mode & 022) != 0 && (attributes->st_mode & S_ISVTX) == 0;
  if (attributes->st_uid == geteuid() && !others_write) return {};
  return fail(EPERM,
              directory + ": another user may write to it: no place for what the daemon mounts and keeps");
}

std::string RuntimeDir::directory_of(const std::string& runtime_dir, const std::string& mountpoint) {
  return runtime_dir + "/" + escape_path(mountpoint) + ".mount";
}

RuntimeDir RuntimeDir::keep(const std::string& runtime_dir, const std::string& mountpoint, int lock_fd) {
  return {directory_of(runtime_dir, mountpoint), UniqueFd(lock_fd)};
}

std::string RuntimeDir::runtime_dir_of(int lock_fd, const std::string& otherwise) {
  const auto place = sys::read_link(AT_FDCWD, fmt::format("/proc/self/fd/{}", lock_fd).c_str());
  return place && place->starts_with('/') ? place->substr(0, place->rfind('/')) : otherwise;
}

Result<RuntimeDir> RuntimeDir::claim(const std::string& runtime_dir, const std::string& mountpoint) {
  if (auto made = sys::make_directories(runtime_dir, 0700); !made) return pass(made);
  const std::string directory = directory_of(runtime_dir, mountpoint);
  if (auto made = sys::make_directories(directory, 0700); !made) return pass(made);
  for (const std::string& each : {runtime_dir, directory})
    if (auto ours = check_is_ours(each); !ours) return pass(ours);
  auto lock = sys::open_at(AT_FDCWD, directory.c_str(), O_RDONLY | O_DIRECTORY);
  if (!lock) return pass(lock);
  // A daemon that was killed a moment ago holds the lock until its last thread is gone.
  if (!sys::lock_whole(lock->get(), kDirectoryLockPatience))
    return fail(EBUSY, mountpoint + ": another kvcachefsd serves there");
  if (auto cleaned = unmount_below(directory); !cleaned) return pass(cleaned);
  RuntimeDir claimed(directory, std::move(*lock));
  claimed.forget_stale_mounts();
  return claimed;
}

void RuntimeDir::clean_up(const std::vector<std::string>& kept) const {
  if (auto cleaned = unmount_below(directory_, kept); !cleaned) log_error("{}", cleaned.error().message);
}

void RuntimeDir::note_pools_without_disk(const std::vector<std::string>& names) const {
  if (names.empty()) return (void)sys::unlink_at(AT_FDCWD, note().c_str(), 0);
  std::string text;
  for (const std::string& name : names) text += name + "\n";
  auto file = sys::open_at(AT_FDCWD, note().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
  if (!file || !sys::write_at(file->get(), text, 0))
    log_warning("{} cannot be written: an upgrade may be refused for the disks of these pools", note());
}

std::vector<std::string> RuntimeDir::pools_without_disk() const {
  std::vector<std::string> names;
  std::istringstream lines(sys::read_text(note().c_str()).value_or(""));
  for (std::string name; std::getline(lines, name);) names.push_back(name);
  return names;
}

void RuntimeDir::note_stale_mounts(const std::string& device) const {
  std::string text = sys::read_text(stale_note().c_str()).value_or("");
  std::istringstream lines(sys::read_text("/proc/self/mountinfo").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string id, parent, of_device;
    words >> id >> parent >> of_device;
    if (of_device == device) text += line + "\n";
  }
  auto directory = sys::open_at(AT_FDCWD, directory_.c_str(), O_RDONLY | O_DIRECTORY);
  auto noted = directory ? sys::replace_file(directory->get(), "stale_mounts", text, 0600) : pass(directory);
  if (!noted) log_error("{} cannot be written: no mount is bound again", stale_note());
}

bool RuntimeDir::has_stale_mounts() const {
  return sys::stat_at(AT_FDCWD, stale_note().c_str()).has_value();
}

Result<std::vector<MountPoint>> RuntimeDir::stale_mounts() const {
  return read_mounts(stale_note());
}

void RuntimeDir::forget_stale_mounts() const {
  (void)sys::unlink_at(AT_FDCWD, stale_note().c_str(), 0);
}

RuntimeDir::~RuntimeDir() {
  if (!lock_) return;
  note_pools_without_disk({});
  forget_stale_mounts();
  (void)sys::unlink_at(AT_FDCWD, deadly_reads().c_str(), 0);
  (void)sys::remove_directory(directory_.c_str());
}

}  // namespace kvcachefs
