#include "daemon/kept_settings.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <utility>

#include "base/fault_point.h"
#include "base/log.h"
#include "base/sys.h"
#include "base/sys_disk.h"
#include "daemon/runtime_dir.h"

namespace kvcachefs {
namespace {

// An order that is given once, and no setting.
constexpr std::string_view kOrder = "spill_force";
constexpr uint64_t kMostBytes = 64 << 20;  // the most pools that there can be, each with 2 KiB
constexpr auto kLockPatience = std::chrono::seconds(1);

std::string directory_of(const std::string& file) {
  return file.substr(0, file.rfind('/'));
}

std::string name_of(const std::string& file) {
  return file.substr(file.rfind('/') + 1);
}

// The directory stays open: a mount over its path, which may be one of this daemon, does not hide it.
Result<UniqueFd> open_directory(const std::string& file) {
  const std::string directory = directory_of(file);
  if (auto made = sys::make_directories(directory, 0700); !made) return pass(made);
  return sys::open_at(AT_FDCWD, directory.c_str(), O_RDONLY | O_DIRECTORY);
}

// Returns the whole text, or nullopt if there is no file. The daemon obeys the text as root, so no other user
// may be able to write to the file.
Result<std::optional<std::string>> read_text(int directory, const std::string& name) {
  auto fd = sys::open_at(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!fd && fd.error().code == ENOENT) return std::nullopt;
  if (!fd && fd.error().code == ELOOP) return fail(EINVAL, "is a symbolic link");
  if (!fd) return pass(fd);
  const auto attributes = sys::stat_of(fd->get());
  if (!attributes) return fail(attributes.error().code);
  if (!S_ISREG(attributes->st_mode)) return fail(EINVAL, "is no file");
  if (attributes->st_uid != geteuid() || (attributes->st_mode & 022) != 0)
    return fail(EPERM, "another user may write to it");
  if (static_cast<uint64_t>(attributes->st_size) > kMostBytes)
    return fail(EFBIG, "is larger than what the daemon writes");
  if (const int refused = injected_error("read the settings"); refused != 0) return fail(refused);
  std::string text(static_cast<size_t>(attributes->st_size), '\0');
  const auto count = sys::read_at(fd->get(), text, 0);
  if (!count) return fail(count.error().code);
  if (*count != text.size()) return fail(EIO);
  return text;
}

std::string reason_of(const Error& error) {
  return error.message.empty() ? sys::error_text(error.code) : error.message;
}

// None if there is no file.
Result<std::optional<KeptPools>> read_in(int directory, const std::string& file, uint64_t memory_bytes) {
  const auto text = read_text(directory, name_of(file));
  if (!text) return fail(text.error().code, fmt::format("{}: {}", file, reason_of(text.error())));
  if (!*text) return std::nullopt;
  return parse_kept_pools(file, **text, memory_bytes);
}

// The options, with the attributes that clients have given the pool's root.
PoolOptions options_of(Pool& pool) {
  PoolOptions options = pool.settings().options();
  if (const auto root = pool.inodes().attributes(pool.root_ino())) {
    options.mode = root->st_mode & 07777;
    options.uid = root->st_uid;
    options.gid = root->st_gid;
  }
  options.spill_force = false;
  return options;
}

}  // namespace

std::string KeptSettings::file_of(const Config& config) {
  if (config.state_dir.empty()) return {};
  return fmt::format("{}/{}.settings", config.state_dir.native(), escape_path(config.mountpoint.native()));
}

Result<KeptPools> KeptSettings::read(const std::string& file, uint64_t memory_bytes) {
  if (file.empty()) return KeptPools();
  const std::string directory = directory_of(file);
  const auto opened = sys::open_at(AT_FDCWD, directory.c_str(), O_RDONLY | O_DIRECTORY);
  if (!opened && opened.error().code == ENOENT) return KeptPools();
  if (!opened) return fail(opened.error().code, fmt::format("{}: {}", directory, reason_of(opened.error())));
  if (auto ours = check_is_ours(directory); !ours) return pass(ours);
  auto kept = read_in(opened->get(), file, memory_bytes);
  return kept ? Result<KeptPools>(kept->value_or(KeptPools())) : pass(kept);
}

KeptSettings::KeptSettings(std::string file, const Config& config, Result<KeptPools> kept,
                           uint64_t memory_bytes)
    : file_(std::move(file)),
      config_(config),
      memory_bytes_(memory_bytes),
      unreadable_(kept ? std::nullopt : std::optional(kept.error())),
      kept_(std::move(kept).value_or(KeptPools())) {
  for (const PoolOptions& pool : config.pools) configured_.emplace(pool.name, pool);
  written_.kept = kept_;
  MutexLock writing(write_mutex_);
  in_file_ = kept_;
  if (!file_.empty()) directory_ = open_directory(file_);
}

Result<std::vector<PoolOptions>> KeptSettings::served_pools() const {
  MutexLock lock(mutex_);
  return over(config_, kept_, memory_bytes_);
}

void KeptSettings::began(const Pools& pools) {
  PoolNotes notes;
  for (const auto& pool : pools.list()) notes.written.insert_or_assign(pool->name(), options_of(*pool));
  took_over(pools, std::move(notes));
}

void KeptSettings::took_over(const Pools& pools, std::optional<PoolNotes> notes) {
  if (!notes) return began(pools);
  MutexLock lock(mutex_);
  configured_.merge(notes->configured);
  // A pool that an upgrade's configuration has no more, and that no client has created.
  for (const auto& [name, options] : notes->written)
    if (const auto kept = kept_.find(name); kept == kept_.end() || !kept->second.is_created)
      configured_.try_emplace(name, options);
  written_.present = present_ = std::move(notes->written);
  const KeptPools before = kept_;
  note_all(pools);
  if (kept_ == before)
    written_.present = present_;
  else
    ++versions_;
}

bool KeptSettings::is_in_configuration(std::string_view name) const {
  return std::ranges::find(config_.pools, name, &PoolOptions::name) != config_.pools.end();
}

PoolNotes KeptSettings::notes() const {
  MutexLock lock(mutex_);
  PoolNotes notes{written_.present, configured_};
  std::erase_if(notes.configured, [&](const auto& pool) { return is_in_configuration(pool.first); });
  return notes;
}

bool KeptSettings::is_written() const {
  MutexLock lock(mutex_);
  return written_.number == versions_;
}

Result<void> KeptSettings::may_change() {
  Version version;
  {
    MutexLock lock(mutex_);
    version = {versions_, kept_, present_};
  }
  return write(version);
}

// Only what a request has changed is found here: what a pool changes by itself is no setting.
Result<void> KeptSettings::changed(const Pools& pools) {
  Version version;
  {
    MutexLock lock(mutex_);
    const KeptPools before = kept_;
    note_all(pools);
    // Another call may still be writing the same.
    if (kept_ == before && written_.number == versions_) {
      written_.present = present_;
      return {};
    }
    version = next_version();
  }
  return write_change(version);
}

void KeptSettings::note_all(const Pools& pools) {
  OptionsByPool now;
  for (const auto& pool : pools.list()) now.insert_or_assign(pool->name(), options_of(*pool));
  for (const auto& [name, options] : now) {
    if (const auto known = present_.find(name); known != present_.end()) {
      note_changes(known->second, options);
      continue;
    }
    KeptPool& made = kept_[name];
    made.is_created = !configured_.contains(name);
    made.is_deleted = false;
    note_changes(configured_now(options), options);
  }
  for (const auto& [name, options] : present_) {
    if (now.contains(name)) continue;
    if (configured_.contains(name))
      kept_[name] = {.is_created = false, .is_deleted = true, .values = {}};
    else
      kept_.erase(name);
  }
  present_ = std::move(now);
  std::erase_if(kept_, [](const auto& pool) { return pool.second.is_nothing(); });
}

void KeptSettings::note_changes(const PoolOptions& before, const PoolOptions& now) {
  for (const PoolSetting& setting : pool_settings()) {
    const std::string value = setting.get(now);
    if (setting.key != kOrder && value != setting.get(before) && !value.empty())
      kept_[now.name].values.insert_or_assign(std::string(setting.key), value);
  }
}

PoolOptions KeptSettings::configured_now(const PoolOptions& present) const {
  const auto found = configured_.find(present.name);
  PoolOptions options = found == configured_.end() ? PoolOptions() : found->second;
  options.name = present.name;
  if (options.size_max_bytes == 0) options.size_max_bytes = options.size_bytes;
  return options;
}

SettingOrigins::Answer KeptSettings::origin(const PoolOptions& present, std::string_view key) const {
  MutexLock lock(mutex_);
  const auto its = kept_.find(present.name);
  if (its != kept_.end())
    if (const auto value = its->second.values.find(key); value != its->second.values.end())
      return {Origin::kSet, is_value_written(present.name, key, value->second)};
  const PoolSetting& setting = *find_pool_setting(key);
  const bool is_default = setting.get(configured_now(present)) == setting.get(PoolOptions());
  return {is_default ? Origin::kDefault : Origin::kConfigured, true};
}

// After a failed write the file contains the older version. Without a file write() succeeds and writes
// nothing.
bool KeptSettings::is_value_written(std::string_view pool, std::string_view key,
                                    const std::string& value) const {
  const auto its = written_.kept.find(pool);
  if (file_.empty() || its == written_.kept.end()) return false;
  const auto written = its->second.values.find(key);
  return written != its->second.values.end() && written->second == value;
}

PoolOptions KeptSettings::configured(const PoolOptions& present) const {
  MutexLock lock(mutex_);
  return configured_now(present);
}

Result<void> KeptSettings::forget(const PoolOptions& present, std::string_view key) {
  Version version;
  {
    MutexLock lock(mutex_);
    take_back(present, key);
    version = next_version();
  }
  return write_change(version);
}

void KeptSettings::take_back(const PoolOptions& present, std::string_view key) {
  const auto its = kept_.find(present.name);
  if (its == kept_.end()) return;
  const auto known = present_.find(present.name);
  const PoolOptions configured = configured_now(present);
  // Another setting may have come back with this one, as size_max does with size.
  for (const PoolSetting& setting : pool_settings()) {
    const std::string value = setting.get(present);
    const bool has_changed = known != present_.end() && value != setting.get(known->second);
    if (has_changed && value == setting.get(configured)) its->second.values.erase(std::string(setting.key));
  }
  if (const auto value = its->second.values.find(key); value != its->second.values.end())
    its->second.values.erase(value);
  if (known != present_.end()) {
    const PoolOptions attributes = std::exchange(known->second, present);
    known->second.mode = attributes.mode;
    known->second.uid = attributes.uid;
    known->second.gid = attributes.gid;
    known->second.spill_force = false;
  }
  if (its->second.is_nothing()) kept_.erase(its);
}

Result<PoolOptions> KeptSettings::configure(const PoolOptions& configured) {
  MutexLock lock(mutex_);
  PoolOptions options = configured;
  const auto its = kept_.find(configured.name);
  if (its != kept_.end()) {
    if (auto put = put_values(options, its->second, memory_bytes_); !put) return pass(put);
    its->second.is_created = its->second.is_deleted = false;
  }
  configured_.insert_or_assign(configured.name, configured);
  return options;
}

// A configured pool that is missing was deleted.
void KeptSettings::not_made(std::string_view name) {
  MutexLock lock(mutex_);
  if (is_in_configuration(name))
    kept_[std::string(name)].is_deleted = true;
  else if (const auto its = configured_.find(name); its != configured_.end())
    configured_.erase(its);
}

// A version that is older than one that was written by then is in that one.
Result<void> KeptSettings::write(const Version& version) {
  if (unreadable_) return fail(unreadable_->code, unreadable_->message);
  MutexLock writing(write_mutex_);
  {
    MutexLock lock(mutex_);
    if (version.number < written_.number) return {};
  }
  if (const auto replaced = file_.empty() ? Result<void>() : replace_file(version.kept); !replaced)
    return fail(replaced.error().code, fmt::format("{}: {}", file_, reason_of(replaced.error())));
  MutexLock lock(mutex_);
  written_ = version;
  return {};
}

Result<void> KeptSettings::write_change(const Version& version) {
  auto written = write(version);
  if (!written)
    log_error("{}: what was changed of the pools is lost at the next start", written.error().message);
  return written;
}

// If another daemon or an editor has written the file since, it stays as it is. The lock keeps another daemon
// from writing between the look and the replacement.
Result<void> KeptSettings::replace_file(const KeptPools& pools) {
  fault_point("settings to be written");
  if (!directory_) directory_ = open_directory(file_);
  if (!directory_) return fail(directory_.error().code);
  auto locked = sys::open_at(directory_->get(), ".", O_RDONLY | O_DIRECTORY);
  if (!locked) return pass(locked);
  if (auto alone = sys::lock_whole(locked->get(), kLockPatience); !alone) return alone;
  auto there = read_in(directory_->get(), file_, memory_bytes_);
  if (!there) return pass(there);
  if (*there && **there != in_file_)
    return fail(EBUSY, "has changed since this daemon read or wrote it, and stays as it is");
  const std::string text = format_kept_pools(pools);
  if (text.size() > kMostBytes) return fail(EFBIG);
  // A value that this version does not know may be nested in the file as it may not be on one line.
  if (auto good = parse_kept_pools(file_, text, memory_bytes_); !good)
    return fail(EINVAL, "cannot be written so that it could be read: " + good.error().message);
  if (auto done = sys::replace_file(directory_->get(), name_of(file_), text, 0600); !done) return done;
  in_file_ = pools;
  fault_point("settings replaced");
  return sys::sync_whole(directory_->get());
}

}  // namespace kvcachefs
