// The parts of ControlFiles that describe the daemon for the files in .kvcachefs, that check the
// administrator who writes them, and that keep the table of opens.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string_view>
#include <utility>

#include "base/fstab.h"
#include "base/key_value.h"
#include "fs/control/access_log_reader.h"
#include "fs/control_files.h"
#include "fs/control_handles.h"
#include "fs/server.h"

namespace kvcachefs {

void ControlFiles::describe(const ServerInfo& info) {
  auto described = std::make_shared<ControlledServer>();
  described->info = info;
  described->upgrades = [&survivors = survivors_] { return survivors.children().upgrades(); };
  described->pool_count = [&pools = pools_] { return pools.list().size(); };
  described->pool_reports = [&pools = pools_, io_mode = info.io_mode] {
    return report_pools(pools, io_mode);
  };
  described->configure = [&pools = pools_, origins = origins_](std::string_view spec) -> Result<void> {
    auto configured = parse_pool_spec(spec, pools.memory_bytes());
    bool is_sized = false;
    for (std::string_view pairs = spec.substr(std::min(spec.find(':') + 1, spec.size())); !pairs.empty();)
      is_sized |= take_part(pairs, ',').starts_with("size=");
    if (configured && !is_sized) configured->size_bytes = pools.default_size_bytes();
    // The configuration of an existing pool stays as it is.
    if (configured && pools.find(configured->name) != nullptr) return fail(EEXIST);
    auto wanted = configured && origins != nullptr ? origins->configure(*configured) : std::move(configured);
    if (!wanted) return pass(wanted);
    auto mounted = check_disks_are_mounted(wanted->name, wanted->spill_path, wanted->catalog_path);
    auto made = mounted ? pools.create(*wanted) : pass(mounted);
    if (!made && origins != nullptr) origins->not_made(wanted->name);
    return made ? Result<void>() : pass(made);
  };
  described->access_log = [&pools = pools_] { return AccessLogReader::open(pools); };
  MutexLock lock(mutex_);
  server_ = std::move(described);
}

std::shared_ptr<const ControlledServer> ControlFiles::server() const {
  MutexLock lock(mutex_);
  return server_;
}

Result<void> ControlFiles::check_administrator(const Request& request, std::string_view name,
                                               uint64_t handle) const {
  auto administrator = need_administrator(request);
  if (!administrator) return pass(administrator);
  auto process = administrator->process();
  if (process && is_opened_by(*process, handle)) return {};
  return fail(EPERM,
              fmt::format("{} of .kvcachefs: only the process that opened the file may write to it", name));
}

void ControlFiles::give_back_open(uid_t user) {
  MutexLock lock(mutex_);
  const auto opens = opens_of_user_.find(user);
  if (--opens->second == 0) opens_of_user_.erase(opens);
}

void ControlFiles::forget_open(uint64_t handle) {
  decltype(open_files_)::node_type closed;  // destroyed without the lock, because its leases end with it
  {
    MutexLock lock(mutex_);
    closed = open_files_.extract(handle);
  }
  if (closed && closed.mapped()->user) give_back_open(*closed.mapped()->user);
}

std::shared_ptr<ControlFiles::OpenFile> ControlFiles::known_open(const fuse_file_info* file) {
  MutexLock lock(mutex_);
  const auto found = open_files_.find(file->fh);
  return found == open_files_.end() ? nullptr : found->second;
}

}  // namespace kvcachefs
