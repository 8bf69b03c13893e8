#include "base/mountinfo.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "base/key_value.h"
#include "base/sys.h"

namespace kvcachefs {
namespace {

constexpr std::string_view kShared = "shared:";
constexpr std::string_view kMaster = "master:";

bool octal(char c) {
  return c >= '0' && c <= '7';
}

}  // namespace

std::string unescape_octal(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size() && text[i + 1] <= '3' && octal(text[i + 1]) &&
        octal(text[i + 2]) && octal(text[i + 3])) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::vector<MountPoint> parse_mountinfo(std::string_view text) {
  std::vector<MountPoint> mounts;
  while (!text.empty()) {
    std::string_view line = take_part(text, '\n');
    // id parent device root directory options [optional fields...] - type source super-options
    std::vector<std::string_view> fields;
    while (!line.empty()) fields.push_back(take_part(line, ' '));
    if (fields.size() < 9) continue;
    const auto dash = std::find(fields.begin() + 6, fields.end(), "-");
    if (fields.end() - dash < 3) continue;
    MountPoint& mount =
        mounts.emplace_back(std::string(fields[2]), unescape_octal(fields[3]), unescape_octal(fields[4]),
                            std::string(fields[5]), unescape_octal(dash[1]), unescape_octal(dash[2]));
    for (auto field = fields.begin() + 6; field != dash; ++field) {
      if (field->starts_with(kShared)) mount.peer_group = field->substr(kShared.size());
      if (field->starts_with(kMaster)) mount.master_group = field->substr(kMaster.size());
    }
  }
  return mounts;
}

Result<std::vector<MountPoint>> read_mounts(const std::string& file) {
  auto text = sys::read_text(file.c_str());
  if (!text) return pass(text);
  return parse_mountinfo(*text);
}

const MountPoint* find_mount(const std::vector<MountPoint>& mounts, std::string_view directory) {
  const auto found = std::find_if(mounts.rbegin(), mounts.rend(),
                                  [&](const MountPoint& mount) { return mount.directory == directory; });
  return found == mounts.rend() ? nullptr : &*found;
}

std::vector<std::string> find_kvcachefs_roots(const std::vector<MountPoint>& mounts) {
  std::vector<std::string> roots;
  std::set<std::string> devices;
  for (const MountPoint& mount : mounts) {
    if (mount.type != kFileSystemType || mount.root != "/") continue;
    // Another mount hides this one: a path does not lead to it.
    if (find_mount(mounts, mount.directory) != &mount) continue;
    if (devices.insert(mount.device).second) roots.push_back(mount.directory);
  }
  return roots;
}

bool is_daemon_gone(int code) {
  return code == ENOTCONN || code == ECONNABORTED || code == ECANCELED;
}

bool is_dead_mount(const std::string& directory) {
  std::error_code error;
  (void)std::filesystem::space(directory, error);
  return is_daemon_gone(error.value());
}

Result<std::filesystem::path> resolve_mount_point(std::string_view text) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(text, error);
  std::filesystem::path resolved = std::filesystem::canonical(path, error);
  if (!error) return resolved;
  if (is_daemon_gone(error.value())) {
    const std::filesystem::path plain = path.has_filename() ? path : path.parent_path();
    resolved = std::filesystem::canonical(plain.parent_path(), error);
    if (!error) return resolved / plain.filename();
  }
  return fail(error.value(), fmt::format("{}: {}", text, error.message()));
}

}  // namespace kvcachefs
