#include "tier/pool/pools.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "base/fault_point.h"
#include "base/log.h"
#include "base/size.h"
#include "base/sys_disk.h"

namespace kvcachefs {

Pools::Pools(Surroundings surroundings) : surroundings_(std::move(surroundings)), pools_(1) {}

std::shared_ptr<Pool> Pools::find(uint16_t number) const {
  ReaderLock lock(pools_mutex_);
  return number < pools_.size() ? pools_[number] : nullptr;
}

std::shared_ptr<Pool> Pools::find(std::string_view name) const {
  ReaderLock lock(pools_mutex_);
  for (const auto& pool : pools_)
    if (pool != nullptr && !pool->retired() && pool->name() == name) return pool;
  return nullptr;
}

std::vector<std::shared_ptr<Pool>> Pools::list() const {
  auto result = all();
  std::erase_if(result, [](const auto& pool) { return pool->retired(); });
  std::ranges::sort(result, {}, [](const auto& pool) -> const std::string& { return pool->name(); });
  return result;
}

std::vector<std::shared_ptr<Pool>> Pools::all() const {
  ReaderLock lock(pools_mutex_);
  std::vector<std::shared_ptr<Pool>> result;
  std::ranges::copy_if(pools_, std::back_inserter(result), [](const auto& pool) { return pool != nullptr; });
  return result;
}

uint64_t Pools::assigned_bytes() const {
  uint64_t total = 0;
  // A removed pool that is still in use has what is open of it, and does not grow any more.
  for (const auto& pool : all())
    total += pool->retired() ? pool->insight().usage().used_bytes : pool->settings().options().size_bytes;
  return total;
}

uint64_t Pools::left_beside(uint64_t assigned_bytes) const {
  return most_bytes() - std::min(assigned_bytes, most_bytes());
}

std::string Pools::more_than_memory(std::string_view name, uint64_t size_bytes, uint64_t others_bytes) const {
  return fmt::format(
      "pool {}: {} and the other pools' {} are more than the memory, {}, without the "
      "memory_reserve of {}",
      name, format_size(size_bytes), format_size(others_bytes), format_size(surroundings_.memory_bytes),
      format_size(surroundings_.reserve_bytes));
}

Result<std::shared_ptr<Pool>> Pools::create(const PoolOptions& options, Attaching how) {
  if (auto named = check_pool_name(options.name); !named) return pass(named);
  if (auto good = check_spill_options(options); !good) return pass(good);
  if (auto good = check_size_max(options); !good) return pass(good);
  MutexLock change(change_mutex_);
  if (find(options.name) != nullptr) return fail(EEXIST, fmt::format("pool {} exists", options.name));
  const uint64_t assigned = assigned_bytes();
  if (options.size_bytes > left_beside(assigned))
    return fail(ENOSPC, more_than_memory(options.name, options.size_bytes, assigned));
  // In turn, so that a number's next pool comes long after all that the kernel says of the one before.
  uint16_t number = last_number_;
  for (unsigned tries = 0; tries == 0 || find(number) != nullptr; ++tries) {
    if (tries == kMaxPools) return fail(ENOSPC, "there are too many pools");
    number = number % kMaxPools + 1;
  }
  last_number_ = number;
  auto pool = Pool::create(number, options, surroundings_of(options.name, number));
  if (!pool) return pool;
  if (!options.spill_path.empty())
    if (auto attached = attach_disk(*pool, options, how); !attached) return pass(attached);
  fault_point("pool made");
  put(number, *pool);
  return pool;
}

Pool::Surroundings Pools::surroundings_of(std::string_view name, uint16_t number) {
  Pool::Surroundings its = surroundings_.pool;
  its.access_log = &access_log_;
  // The number keeps a new pool's mount apart from that of a removed pool of the same name that is still in
  // use.
  its.arena_path = fmt::format("{}/{}.{}", surroundings_.directory, name, number);
  return its;
}

void Pools::put(uint16_t number, std::shared_ptr<Pool> pool) {
  WriterLock lock(pools_mutex_);
  if (number >= pools_.size()) pools_.resize(number + 1);
  pools_[number] = std::move(pool);
}

namespace {

Result<void> not_taken_over(std::string_view name, const Error& why) {
  return fail(why.code, fmt::format("pool {} cannot be taken over: {} ({})", name, why.message,
                                    sys::error_text(why.code)));
}

}  // namespace

Result<void> Pools::begin_adopting(uint16_t number, const PoolOptions& options) {
  MutexLock change(change_mutex_);
  auto pool = Pool::adopt(number, options, surroundings_of(options.name, number));
  if (!pool) return not_taken_over(options.name, pool.error());
  if (!options.spill_path.empty() && !(*pool)->retired()) (*pool)->recovery().disk().before_use().begin();
  // A pool of which not all is found is not given back: what is in it is for the next process.
  put(number, *pool);
  last_number_ = std::max(last_number_, number);
  auto begun = (*pool)->recovery().begin_adopting();
  return begun ? begun : not_taken_over(options.name, begun.error());
}

std::shared_ptr<Pool> Pools::take_disk(uint16_t number, const PoolOptions& options) {
  MutexLock change(change_mutex_);
  const auto pool = find(number);
  if (!pool->disk().before_use().lasts()) return nullptr;
  return open_disk_tier(*pool, options, Attaching::kAdopted) ? pool : nullptr;
}

Result<void> Pools::adopt(uint16_t number, const PoolOptions& options) {
  MutexLock change(change_mutex_);
  const auto pool = find(number);
  auto found = Pool::adopt_files(pool);
  // A takeover does not depend on a disk: what is in memory, and all other pools, need none.
  if (found && pool->disk().before_use().lasts()) {
    // A disk that was not to be had before the files were walked may be there by now.
    Result<void> attached;
    if (pool->disk().owned() == nullptr) attached = open_disk_tier(*pool, options, Attaching::kAdopted);
    if (attached) attached = pool->recovery().begin_attaching_adopted(options);
    if (!attached) found = pool->recovery().go_on_without_disk(options, attached.error());
  }
  if (!found) return not_taken_over(options.name, found.error());
  pool->recovery().all_found();
  return {};
}

uint64_t Pools::default_size_bytes() const {
  return std::max(left_beside(assigned_bytes()) / 4 / 4096 * 4096, kLeastDefaultBytes);
}

Result<std::shared_ptr<Pool>> Pools::create_default(std::string_view name, mode_t mode, uid_t uid,
                                                    gid_t gid) {
  PoolOptions options;
  options.name = name;
  options.size_bytes = default_size_bytes();
  options.mode = mode;
  options.uid = uid;
  options.gid = gid;
  return create(options);
}

Result<void> Pools::remove(std::string_view name) {
  MutexLock change(change_mutex_);
  auto pool = find(name);
  if (pool == nullptr) return fail(ENOENT);
  // Its names would come back with the disk.
  if (pool->disk().away() != nullptr)
    return fail(EBUSY, fmt::format("pool {}: its disk is away, and keeps what was removed", pool->name()));
  if (pool->disk().lacks_names())
    return fail(EBUSY, fmt::format("pool {}: what its disk has is still being brought back", pool->name()));
  if (pool->serves_from_disk())
    return fail(EBUSY, fmt::format("pool {}: a client reads an entry that only its disk has", pool->name()));
  auto retired = pool->retire();
  if (retired) surroundings_.pool.evictor->wake();
  return retired;
}

Result<void> Pools::attach_disk(const std::shared_ptr<Pool>& pool, const PoolOptions& options,
                                Attaching how) {
  if (!surroundings_.opens_may_wait)
    return fail(EOPNOTSUPP, fmt::format("pool {}: spill={} would block an open over io_uring", pool->name(),
                                        options.spill_path));
  if (ending_) return fail(ESHUTDOWN, fmt::format("pool {}: the daemon is about to end", pool->name()));
  for (const auto& other : list())
    if (other != pool)
      if (auto apart = check_spills_apart(options, other->settings().options()); !apart) return apart;
  auto attached = open_disk_tier(*pool, options, how);
  if (attached && disk_started_ && pool->disk().tier() != nullptr) disk_started_(pool);
  return attached;
}

Result<void> Pools::set_spill(const std::shared_ptr<Pool>& pool, const PoolOptions& wanted) {
  MutexLock change(change_mutex_);
  if (pool->disk().exists() || pool->disk().lacks_names())
    return fail(EBUSY,
                fmt::format("pool {}: it has a disk tier; another, or another size of it, can be given at "
                            "the next start",
                            pool->name()));
  if (auto good = check_spill_options(wanted); !good) return good;
  if (wanted.spill_path.empty()) return {};
  return attach_disk(pool, wanted, Attaching::kNew);
}

void Pools::on_disk_tier(std::function<void(const std::shared_ptr<Pool>&)> started) {
  MutexLock change(change_mutex_);
  disk_started_ = std::move(started);
  ending_ = !disk_started_;
  if (ending_) return;
  for (const auto& pool : list())
    if (pool->disk().tier() != nullptr) disk_started_(pool);
}

Result<void> Pools::resize(Pool& pool, uint64_t size_bytes, Authority authority) {
  MutexLock change(change_mutex_);
  const PoolOptions present = pool.settings().options();
  const uint64_t others = assigned_bytes() - present.size_bytes;
  if (size_bytes < kMinimumPoolBytes || size_bytes % 4096 != 0)
    return fail(EINVAL, fmt::format("pool {}: {} is no size for a pool", pool.name(), size_bytes));
  // To shrink a pool is the way out where a cgroup's limit has come down below the sizes.
  if (size_bytes > present.size_bytes && size_bytes > left_beside(others))
    return fail(EINVAL, more_than_memory(pool.name(), size_bytes, others));
  if (authority == Authority::kAdministrator) {
    auto resized = pool.settings().set_size(size_bytes);
    return resized ? pool.settings().set_size_max(size_bytes) : resized;
  }
  if (size_bytes > present.size_max_bytes)
    return fail(EPERM, fmt::format("pool {}: {} is more than its size_max, {}, which only the administrator "
                                   "raises (.kvcachefs/pools/{}/size_max)",
                                   pool.name(), format_size(size_bytes), format_size(present.size_max_bytes),
                                   pool.name()));
  return pool.settings().set_size(size_bytes);
}

Result<void> Pools::set_size_max(Pool& pool, uint64_t size_max_bytes) {
  MutexLock change(change_mutex_);
  if (size_max_bytes > most_bytes())
    return fail(EINVAL,
                fmt::format("pool {}: size_max {} is more than the memory, {}, without the "
                            "memory_reserve of {}",
                            pool.name(), format_size(size_max_bytes), format_size(surroundings_.memory_bytes),
                            format_size(surroundings_.reserve_bytes)));
  return pool.settings().set_size_max(size_max_bytes);
}

void Pools::reap() {
  // The lock is held until the pools are unmounted, because a new pool may get the number and the name, and
  // so the directory, of one of them. It is not waited for: making or resizing a pool, or attaching a disk,
  // may take many seconds, and this is the thread that evicts.
  if (!change_mutex_.try_lock()) return;
  const MutexLock change(change_mutex_, std::adopt_lock);
  std::vector<std::shared_ptr<Pool>> gone;
  {
    WriterLock lock(pools_mutex_);
    for (auto& pool : pools_) {
      // A use count of one says that no request is using the pool. None can begin, because the kernel knows
      // no inode of it.
      if (pool != nullptr && pool->retired() && pool.use_count() == 1 && pool->forgotten())
        gone.push_back(std::move(pool));
    }
  }
  // The options are written before the pools are unmounted: a successor would take a new pool there for one
  // of them.
  if (!gone.empty())
    if (auto written = surroundings_.pool.options_changed(); !written)
      log_error("{}", written.error().message);
}

}  // namespace kvcachefs
