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

// The whole text; none if there is no file. What it says is done as root, so that others may not write to it.
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

// Of a pool without a disk tier the settings of one mean nothing: the configuration may have had one when
// they were set.
Result<void> put_values(PoolOptions& options, const KeptPool& kept, uint64_t memory_bytes) {
  for (const PoolSetting& setting : pool_settings()) {
    const auto value = kept.values.find(setting.key);
    if (value == kept.values.end() || (setting.needs_disk() && options.spill_path.empty())) continue;
    if (auto set = set_pool_option(options, setting.key, value->second, memory_bytes); !set)
      return fail(EINVAL, fmt::format("pool {}: {}", options.name, set.error().message));
  }
  return {};
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

Result<std::vector<PoolOptions>> KeptSettings::over(const Config& config, const KeptPools& kept,
                                                    uint64_t memory_bytes) {
  std::vector<PoolOptions> pools;
  for (const PoolOptions& configured : config.pools) {
    const auto its = kept.find(configured.name);
    PoolOptions options = configured;
    if (its != kept.end() && its->second.is_deleted) continue;
    if (its != kept.end())
      if (auto put = put_values(options, its->second, memory_bytes); !put) return pass(put);
    pools.push_back(std::move(options));
  }
  for (const auto& [name, its] : kept) {
    const bool is_configured =
        std::ranges::find(config.pools, name, &PoolOptions::name) != config.pools.end();
    if (!its.is_created || is_configured) continue;
    PoolOptions options;
    options.name = name;
    if (auto put = put_values(options, its, memory_bytes); !put) return pass(put);
    pools.push_back(std::move(options));
  }
  return pools;
}

void KeptSettings::tell(const Config& config, const KeptPools& kept) {
  for (const PoolOptions& pool : config.pools) {
    const auto its = kept.find(pool.name);
    if (its == kept.end()) continue;
    if (its->second.is_deleted)
      log_info("pool {}: was deleted: `kvcachefs create {}` makes it again", pool.name, pool.name);
    for (const auto& [key, value] : its->second.values)
      log_info("pool {}: {} is {}, as it was set: `kvcachefs reset {} {}` takes that back", pool.name, key,
               value, pool.name, key);
  }
  for (const auto& [name, its] : kept)
    for (const auto& [key, value] : its.unknown)
      log_warning("{}: {}unknown key '{}': it stays there, and has no effect", file_of(config),
                  name.empty() ? "" : fmt::format("pool {}: ", name), key);
}

Result<std::vector<PoolOptions>> KeptSettings::served(const Config& config, const PoolOrigins& origins,
                                                      uint64_t memory_bytes) {
  const std::string file = file_of(config);
  auto kept = read(file, memory_bytes);
  auto pools = kept ? over(config, *kept, memory_bytes) : pass(kept);
  if (!pools) return pools;
  Config whole = config;
  whole.pools = *pools;
  auto good = check_pools(whole, origins, memory_bytes);
  if (good) good = check_transport(whole, origins);
  if (good) return pools;
  if (kept->empty()) return pass(good);
  return fail(EINVAL,
              fmt::format("{} (with what {} has over the configuration)", good.error().message, file));
}

KeptSettings::KeptSettings(std::string file, const Config& config, KeptPools kept, uint64_t memory_bytes)
    : file_(std::move(file)), config_(config), memory_bytes_(memory_bytes), kept_(std::move(kept)) {
  for (const PoolOptions& pool : config.pools) configured_.emplace(pool.name, pool);
  MutexLock writing(write_mutex_);
  in_file_ = kept_;
  if (!file_.empty()) directory_ = open_directory(file_);
}

Result<std::vector<PoolOptions>> KeptSettings::served_pools() const {
  MutexLock lock(mutex_);
  return over(config_, kept_, memory_bytes_);
}

void KeptSettings::began(const Pools& pools) {
  MutexLock lock(mutex_);
  present_.clear();
  for (const auto& pool : pools.list()) {
    const PoolOptions& its = present_.insert_or_assign(pool->name(), options_of(*pool)).first->second;
    // One that came by configure(), to a process that died: what it has counts as configured.
    const auto kept = kept_.find(its.name);
    if (kept == kept_.end() || !kept->second.is_created) configured_.try_emplace(its.name, its);
  }
}

// Only what a request has changed is found here: what a pool changes by itself is no setting.
void KeptSettings::changed(const Pools& pools) {
  Version version;
  {
    MutexLock lock(mutex_);
    const KeptPools before = kept_;
    note_all(pools);
    // Another call may still be writing the same.
    if (kept_ == before && written_ == versions_) return;
    version = next_version();
  }
  write(version);
}

void KeptSettings::note_all(const Pools& pools) {
  Options now;
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
  if (its != kept_.end() && its->second.values.contains(key))
    return {Origin::kSet, written_ == versions_ && !file_.empty()};
  const PoolSetting& setting = *find_pool_setting(key);
  const bool is_default = setting.get(configured_now(present)) == setting.get(PoolOptions());
  return {is_default ? Origin::kDefault : Origin::kConfigured, true};
}

PoolOptions KeptSettings::configured(const PoolOptions& present) const {
  MutexLock lock(mutex_);
  return configured_now(present);
}

void KeptSettings::forget(const PoolOptions& present, std::string_view key) {
  Version version;
  {
    MutexLock lock(mutex_);
    take_back(present, key);
    version = next_version();
  }
  write(version);
}

void KeptSettings::take_back(const PoolOptions& present, std::string_view key) {
  const auto its = kept_.find(present.name);
  if (its == kept_.end()) return;
  const auto known = present_.find(present.name);
  const PoolOptions configured = configured_now(present);
  // What else has come back with it, as the size_max does with the size.
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

// A version that is older than one that was written by then is in that one.
void KeptSettings::write(const Version& version) {
  if (file_.empty()) return;
  MutexLock writing(write_mutex_);
  {
    MutexLock lock(mutex_);
    if (version.number < written_) return;
  }
  if (const auto replaced = replace_file(version.pools); !replaced)
    return log_error("{}: {}: what was changed of the pools is lost at the next start", file_,
                     reason_of(replaced.error()));
  MutexLock lock(mutex_);
  written_ = version.number;
}

// What another daemon or an editor has written since stays. The lock keeps another daemon from writing
// between the look and the replacement.
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
    return fail(ESTALE, "has changed since this daemon read or wrote it, and stays as it is");
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
