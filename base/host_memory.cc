#include "base/host_memory.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

#include "base/key_value.h"
#include "base/mountinfo.h"
#include "base/sys.h"
#include "base/sys_disk.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kNoLimit = UINT64_MAX;

// A file that is one number. `max` (v2) is no limit, and so is what cannot be read.
uint64_t number_in_file(const std::string& path, uint64_t otherwise) {
  const auto text = sys::read_text(path.c_str());
  if (!text) return otherwise;
  std::string_view line = *text;
  return number_in<uint64_t>(take_word(line)).value_or(otherwise);
}

// Of /proc/meminfo, which counts in units of 1024 bytes.
std::optional<uint64_t> meminfo_bytes(std::string_view text, std::string_view key) {
  std::string_view value = line_value(text, key);
  const auto number = number_in<uint64_t>(take_word(value));
  if (!number) return std::nullopt;
  return *number * 1024;
}

uint64_t statistic(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    std::string_view line = take_part(text, '\n');
    if (take_word(line) == name) return number_in<uint64_t>(take_word(line)).value_or(0);
  }
  return 0;
}

// Where the controller's hierarchy is mounted, and the path of the process's group in it.
struct Place {
  std::string mount;
  std::string path;
};

// The mount may show a part of the hierarchy alone, from `root` on: a container without a cgroup namespace
// has such a one (cgroup_namespaces(7)).
Place place_of(const MountPoint& mount, std::string_view path) {
  if (path.starts_with("/..")) path = {};  // outside of what the process's cgroup namespace shows
  if (mount.root != "/") {
    if (path.starts_with(mount.root))
      path.remove_prefix(mount.root.size());
    else
      path = {};
  }
  if (path == "/") path = {};
  return {mount.directory, std::string(path)};
}

bool has_word(std::string_view list, std::string_view word) {
  while (!list.empty())
    if (take_part(list, ',') == word) return true;
  return false;
}

// The lines of /proc/PID/cgroup: number:controllers:path, with the number 0 and no controllers for v2.
std::map<bool, std::string> group_paths(std::string_view text) {
  std::map<bool, std::string> paths;
  while (!text.empty()) {
    std::string_view path = take_part(text, '\n');
    (void)take_part(path, ':');
    const std::string_view controllers = take_part(path, ':');
    if (controllers.empty()) paths[true] = path;
    if (has_word(controllers, "memory")) paths[false] = path;
  }
  return paths;
}

}  // namespace

HostMemoryReader::HostMemoryReader(std::string proc) : proc_(std::move(proc)) {
  const auto text = sys::read_text((proc_ + "/self/cgroup").c_str());
  const auto mounts = read_mounts(proc_ + "/self/mountinfo");
  if (!text || !mounts) return;
  for (const auto& [unified, path] : group_paths(*text)) {
    const auto mount = std::ranges::find_if(*mounts, [&](const MountPoint& each) {
      return unified ? each.type == "cgroup2" : each.type == "cgroup" && has_word(each.options, "memory");
    });
    if (mount == mounts->end()) continue;
    Place place = place_of(*mount, path);
    for (;; place.path.resize(place.path.rfind('/'))) {
      groups_.push_back({place.mount + place.path, unified});
      if (place.path.empty()) break;
    }
  }
}

uint64_t HostMemoryReader::limit_of(const Group& group) {
  const auto number = [&](const char* name) { return number_in_file(group.directory + name, kNoLimit); };
  if (!group.unified) return number("/memory.limit_in_bytes");
  return std::min(number("/memory.max"), number("/memory.high"));
}

// Pages of files can be taken back; those of a tmpfs are counted with anonymous memory there.
uint64_t HostMemoryReader::used_of(const Group& group) {
  uint64_t used =
      number_in_file(group.directory + (group.unified ? "/memory.current" : "/memory.usage_in_bytes"), 0);
  const auto stat = sys::read_text((group.directory + "/memory.stat").c_str());
  for (const char* name : {"inactive_file", "active_file", "slab_reclaimable"}) {
    if (!stat) break;
    used -= std::min(used, statistic(*stat, group.unified ? name : std::string("total_") + name));
  }
  return used;
}

HostMemory HostMemoryReader::read() const {
  HostMemory machine{.total_bytes = sys::memory_bytes()};
  machine.available_bytes = machine.total_bytes;
  if (const auto text = sys::read_text((proc_ + "/meminfo").c_str())) {
    machine.total_bytes = meminfo_bytes(*text, "MemTotal").value_or(machine.total_bytes);
    machine.available_bytes = meminfo_bytes(*text, "MemAvailable").value_or(machine.available_bytes);
  }
  HostMemory least = machine;
  for (const Group& group : groups_) {
    const uint64_t limit = limit_of(group);
    if (limit >= machine.total_bytes) continue;
    least.total_bytes = std::min(least.total_bytes, limit);
    least.available_bytes = std::min(least.available_bytes, limit - std::min(limit, used_of(group)));
  }
  return least;
}

uint64_t usable_memory_bytes() {
  return HostMemoryReader().read().total_bytes;
}

Result<void> set_oom_score_adj(int adjustment) {
  auto file = sys::open_at(AT_FDCWD, "/proc/self/oom_score_adj", O_WRONLY);
  const auto written = file ? sys::write_at(file->get(), std::to_string(adjustment), 0) : pass(file);
  if (written) return {};
  return fail(written.error().code,
              fmt::format("oom_score_adj={}: {}", adjustment, sys::error_text(written.error().code)));
}

}  // namespace kvcachefs
