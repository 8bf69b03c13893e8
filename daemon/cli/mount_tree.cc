#include "daemon/cli/mount_tree.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/key_value.h"
#include "base/size.h"
#include "base/sys.h"
#include "base/sys_disk.h"
#include "daemon/cli/empty_directory.h"
#include "tier/disk/spill_orders.h"
#include "tier/pool_options.h"

namespace kvcachefs {
namespace {

std::unexpected<Error> failed(int code, std::string_view what) {
  return fail(code, fmt::format("{}: {}", what, sys::error_text(code)));
}

Result<std::string> read_file(const std::filesystem::path& path) {
  Result<std::string> text = sys::read_text(path.c_str());
  while (text && text->ends_with('\n')) text->pop_back();
  return text;
}

Result<StatsReading> parsed(Result<std::string> text) {
  if (!text) return pass(text);
  return StatsReading::parse(*text);
}

Result<UniqueFd> open_to_write(const std::filesystem::path& path) {
  Result<UniqueFd> file = sys::open_at(AT_FDCWD, path.c_str(), O_WRONLY);
  if (!file) return failed(file.error().code, path.native());
  return file;
}

// A value is written with one write(2), because a control file takes each write as one order. Where a file
// takes less, as of many records, and then fails, only a further write tells why.
Result<void> write_file(const std::filesystem::path& path, Result<UniqueFd> file, std::string_view value) {
  if (!file) return pass(file);
  for (size_t at = 0; at < value.size();) {
    const std::string_view left = value.substr(at);
    Result<size_t> written = sys::write_at(file->get(), std::span(left.data(), left.size()), at);
    if (!written || *written == 0) return failed(written ? EIO : written.error().code, path.native());
    at += *written;
  }
  return {};
}

}  // namespace

StatsReading StatsReading::parse(std::string_view text) {
  StatsReading stats;
  while (!text.empty()) {
    const std::string_view line = take_part(text, '\n');
    std::string_view value = line;
    const std::string_view name = take_part(value, ' ');
    if (name.size() < line.size()) stats.values_[std::string(name)] = value;
  }
  return stats;
}

std::string StatsReading::text(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? std::string() : found->second;
}

uint64_t StatsReading::number(std::string_view name) const {
  return parse_number(text(name)).value_or(0);
}

Result<void> MountTree::check() const {
  Result<std::string> version = read_daemon_file("version");
  if (!version) return fail(version.error().code, fmt::format("{} is not a kvcachefs mount", root_.native()));
  return {};
}

bool MountTree::has_pool(std::string_view pool) const {
  std::error_code error;
  return check_pool_name(pool) && std::filesystem::is_directory(pool_path(pool), error);
}

Result<std::vector<std::string>> MountTree::pools() const {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(root_, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().native();
    if (has_pool(name)) names.push_back(std::move(name));
  }
  if (error) return failed(error.value(), root_.native());
  std::ranges::sort(names);
  return names;
}

Result<std::string> MountTree::read_daemon_file(std::string_view file) const {
  return read_file(root_ / ".kvcachefs" / file);
}

Result<void> MountTree::write_daemon_file(std::string_view file, std::string_view value) const {
  const std::filesystem::path path = root_ / ".kvcachefs" / file;
  auto written = write_file(path, open_to_write(path), value);
  if (written || written.error().code == ENOENT) return written;
  return fail(written.error().code, fmt::format("{}: {}; the daemon's log says more", value,
                                                sys::error_text(written.error().code)));
}

Result<std::string> MountTree::read_control(std::string_view pool, std::string_view file) const {
  if (!has_pool(pool)) return fail(ENOENT, fmt::format("there is no pool '{}'", pool));
  return read_file(pool_path(pool) / ".pool" / file);
}

Result<std::string> MountTree::ask(std::string_view pool, std::string_view file,
                                   std::string_view query) const {
  if (!has_pool(pool)) return fail(ENOENT, fmt::format("there is no pool '{}'", pool));
  const std::filesystem::path path = pool_path(pool) / ".pool" / file;
  auto opened = sys::open_at(AT_FDCWD, path.c_str(), O_RDWR);
  if (!opened) return failed(opened.error().code, path.native());
  auto written = sys::write_at(opened->get(), query, 0);
  if (!written) return failed(written.error().code, path.native());
  std::string answer;
  for (std::array<char, 64 << 10> piece{};;) {
    const auto bytes = sys::read_at(opened->get(), piece, answer.size());
    if (!bytes) return failed(bytes.error().code, path.native());
    if (*bytes == 0) return answer;
    answer.append(piece.data(), *bytes);
  }
}

Result<void> MountTree::write_records(std::string_view pool, std::string_view records) const {
  if (!has_pool(pool)) return fail(ENOENT, fmt::format("there is no pool '{}'", pool));
  const std::filesystem::path path = pool_path(pool) / ".pool" / "index";
  return write_file(path, open_to_write(path), records);
}

Result<void> MountTree::write_control(std::string_view pool, std::string_view file,
                                      std::string_view value) const {
  if (!has_pool(pool)) return fail(ENOENT, fmt::format("there is no pool '{}'", pool));
  std::filesystem::path path = root_ / ".kvcachefs" / "pools" / pool / file;
  Result<UniqueFd> opened = open_to_write(path);
  if (!opened && !is_daemon_gone(opened.error().code)) {
    // The pool owner's file is tried if the administrator's has no such file, if the caller is no
    // administrator, or if the daemon is older.
    path = pool_path(pool) / ".pool" / file;
    opened = open_to_write(path);
  }
  Result<void> written = write_file(path, std::move(opened), value);
  if (written || written.error().code == ENOENT || is_daemon_gone(written.error().code)) return written;
  const std::string order = fmt::format("pool {}: {}={}", pool, file, value.substr(0, value.find('\n')));
  const int code = written.error().code;
  if (code == EINVAL) return fail(code, fmt::format("{} is refused; the daemon's log says why", order));
  if (code == EPERM || code == EACCES) {
    return fail(code,
                fmt::format("{}: {}; it takes the pool's owner within the administrator's limits, or an "
                            "administrator: CAP_SYS_ADMIN on the host",
                            order, sys::error_text(code)));
  }
  // The errno cannot say everything that may be wrong with a disk.
  if (file == kSpillFile || code == EOPNOTSUPP) {
    return fail(code, fmt::format("{}: {}; the daemon's log says more", order, sys::error_text(code)));
  }
  return written;
}

Result<std::string> MountTree::read_setting(std::string_view pool, std::string_view key) const {
  const PoolSetting* setting = find_pool_setting(key);
  if (setting == nullptr || !setting->is_shown()) return fail(EINVAL, fmt::format("{} is not shown", key));
  Result<std::string> text = read_control(pool, setting->file);
  if (!text) return text;
  if (setting->file != kSpillFile) {
    // The learned size in `auto 2M` is not part of the setting.
    return text->substr(0, text->find(' '));
  }
  PoolOptions options;
  if (Result<void> set = set_spill_order(options, *text); !set) return pass(set);
  return pool_option_text(options, key);
}

Result<void> MountTree::order_spill(std::string_view pool, const GivenSettings& settings) const {
  Result<std::string> present = read_control(pool, kSpillFile);
  if (!present) return pass(present);
  PoolOptions options;
  if (Result<void> set = set_spill_order(options, *present); !set) return set;
  for (const auto& [key, value] : settings) {
    const PoolSetting* setting = find_pool_setting(key);
    if (setting == nullptr || setting->file != kSpillFile) continue;
    if (Result<void> set = set_pool_option(options, key, value, 0); !set) return set;
  }
  if (Result<void> good = check_spill_options(options); !good) return good;
  return write_control(pool, kSpillFile, spill_order_text(options));
}

Result<void> MountTree::write_settings(std::string_view pool, const GivenSettings& settings) const {
  enum class Turn { kFirst, kSecond, kSpill, kLast };
  const auto turn_of = [](std::string_view key) {
    const PoolSetting* setting = find_pool_setting(key);
    // The size goes first, because an entry size beyond the pool's size at that moment is refused.
    if (key == "size" || setting == nullptr || !setting->is_live()) return Turn::kFirst;
    if (setting->file == kSpillFile) return Turn::kSpill;
    // Settings that only a disk tier has are written after the tier is made.
    return setting->needs_disk() ? Turn::kLast : Turn::kSecond;
  };
  for (const Turn turn : {Turn::kFirst, Turn::kSecond, Turn::kSpill, Turn::kLast}) {
    for (const auto& [key, value] : settings) {
      if (turn_of(key) != turn) continue;
      Result<void> made = turn == Turn::kSpill ? order_spill(pool, settings) : make_setting(pool, key, value);
      if (!made) return made;
      if (turn == Turn::kSpill) break;  // one order has all of them
    }
  }
  return {};
}

Result<StatsReading> MountTree::daemon_stats(std::string_view file) const {
  return parsed(read_daemon_file(file));
}

Result<StatsReading> MountTree::pool_stats(std::string_view pool, std::string_view file) const {
  return parsed(read_control(pool, file));
}

Result<void> MountTree::make_setting(std::string_view pool, std::string_view key,
                                     std::string_view value) const {
  const PoolSetting* setting = find_pool_setting(key);
  if (setting != nullptr && setting->is_live()) return write_control(pool, setting->file, value);
  // The remaining settings are attributes of the pool's root directory. The caller has checked the value, so
  // the memory that a percentage refers to does not matter.
  PoolOptions options;
  if (Result<void> set = set_pool_option(options, key, value, 0); !set) return set;
  const std::filesystem::path path = pool_path(pool);
  Result<UniqueFd> directory = sys::open_at(AT_FDCWD, path.c_str(), O_RDONLY | O_DIRECTORY);
  if (!directory) return failed(directory.error().code, path.native());
  constexpr auto kUnchanged = static_cast<uid_t>(-1);
  Result<void> made = key == "mode"  ? sys::change_mode(directory->get(), options.mode)
                      : key == "uid" ? sys::change_owner(directory->get(), options.uid, kUnchanged)
                                     : sys::change_owner(directory->get(), kUnchanged, options.gid);
  if (!made) return failed(made.error().code, fmt::format("pool {}: {}={}", pool, key, value));
  return {};
}

Result<void> MountTree::create_pool(std::string_view pool, const GivenSettings& settings) const {
  const std::filesystem::path path = pool_path(pool);
  Result<void> made = sys::make_directory_at(AT_FDCWD, path.c_str(), 0777);
  if (!made && made.error().code == EEXIST) return fail(EEXIST, fmt::format("pool '{}' exists", pool));
  if (!made) return failed(made.error().code, fmt::format("pool '{}' cannot be created", pool));
  // The default mode goes first, so that the settings decide who may use the pool, not the umask of the
  // process that creates it. A mode among the settings replaces the default.
  GivenSettings all = settings;
  all.insert(all.begin(), {"mode", pool_option_text(PoolOptions{}, "mode")});
  Result<void> set = write_settings(pool, all);
  if (!set) (void)sys::remove_directory(path.c_str());
  return set;
}

Result<void> MountTree::delete_pool(std::string_view pool, bool with_content) const {
  if (!has_pool(pool)) return fail(ENOENT, fmt::format("there is no pool '{}'", pool));
  const std::filesystem::path path = pool_path(pool);
  if (with_content) {
    Result<UniqueFd> directory = sys::open_at(AT_FDCWD, path.c_str(), O_RDONLY | O_DIRECTORY);
    if (!directory) return failed(directory.error().code, path.native());
    Result<void> emptied = empty_directory(directory->get());
    if (!emptied) return failed(emptied.error().code, path.native());
  }
  Result<void> removed = sys::remove_directory(path.c_str());
  if (!removed && removed.error().code == ENOTEMPTY) {
    return fail(ENOTEMPTY, fmt::format("pool '{}' has content (--force removes it too)", pool));
  }
  // EINTR also stands for the reason where a removal took effect and was not written down.
  if (!removed && removed.error().code == EINTR && !has_pool(pool))
    return fail(EINTR, fmt::format("pool '{}' is deleted, but this is not written down (the daemon's log "
                                   "says why): the daemon's next start makes it again",
                                   pool));
  if (!removed) return failed(removed.error().code, fmt::format("pool '{}' cannot be deleted", pool));
  return {};
}

}  // namespace kvcachefs
