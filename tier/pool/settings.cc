#include "tier/pool/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/clock.h"
#include "base/size.h"

namespace kvcachefs {

constexpr uint64_t kResizeWaitNs = 10'000'000'000;
constexpr auto kShrinkTellingTime = std::chrono::milliseconds(50);

PoolOptions Settings::options() const {
  MutexLock lock(mutex_);
  return options_;
}

Result<void> Settings::set_size(uint64_t size_bytes) {
  const uint64_t before = capacity_.size_bytes();
  if (size_bytes == before) return {};
  if (const uint64_t least = least_size(); size_bytes < std::min(least, before))
    return fail(EBUSY, fmt::format("pool {}: its names need a size of {}", name_, format_size_exact(least)));
  if (size_bytes < before && disk_.lacks_names())
    return fail(EBUSY,
                fmt::format("pool {}: names of its disk are still to come back, which need room", name_));
  if (size_bytes > before) {
    if (auto resized = arena_.resize(size_bytes); !resized) return resized;
    capacity_.limit().set_size(size_bytes);
  } else {
    // New bytes may arrive while old ones leave: evict and try, until it fits or nothing more will go.
    capacity_.limit().set_size(size_bytes);
    const uint64_t deadline_ns = now_ns() + kResizeWaitNs;
    for (;;) {
      const EvictResult evicted = evictor_.shrink_to(size_bytes, deadline_ns);
      auto resized = arena_.resize(size_bytes);
      if (resized) break;
      if (resized.error().code != EINVAL || evicted.entries == 0 || now_ns() > deadline_ns) {
        capacity_.limit().set_size(before);
        return fail(EBUSY,
                    fmt::format("pool {}: {} are pinned or in use, more than the size {} asked for", name_,
                                format_size(arena_.usage().used_bytes()), format_size(size_bytes)));
      }
    }
  }
  entries_.shares().set_memory(arena_.usage());
  surroundings_.listener->wait_until_told(kShrinkTellingTime);
  MutexLock lock(mutex_);
  options_.size_bytes = size_bytes;
  return {};
}

// Without a disk the names of entries leave with their memory.
uint64_t Settings::least_size() const {
  const uint64_t names = arena_.usage().used_inodes();
  const uint64_t leaving = disk_.exists() ? 0 : std::min(names, entries_.sums().files());
  return least_size_for_inodes(names - leaving);
}

Result<void> Settings::set_policy(std::string_view name) {
  if (auto known = check_policy_name(name); !known) return known;
  entries_.candidates().set_policy(name);
  MutexLock lock(mutex_);
  options_.policy = name;
  return {};
}

Result<void> Settings::set_watermarks(Watermarks watermarks) {
  {
    MutexLock lock(mutex_);
    options_.watermarks = watermarks;
  }
  capacity_.limit().set_watermarks(watermarks);
  surroundings_.evictor->wake();
  return {};
}

Result<void> Settings::set_entry_size(uint64_t entry_size_bytes) {
  MutexLock lock(mutex_);
  if (entry_size_bytes > options_.size_bytes)
    return fail(EINVAL, fmt::format("pool {}: an entry of {} does not fit into {}", name_,
                                    format_size(entry_size_bytes), format_size(options_.size_bytes)));
  options_.entry_size_bytes = entry_size_bytes;
  capacity_.set_entry_size(entry_size_bytes);
  return {};
}

Result<void> Settings::set_size_max(uint64_t size_max_bytes) {
  MutexLock lock(mutex_);
  PoolOptions wanted = options_;
  wanted.size_max_bytes = size_max_bytes;
  if (auto good = check_size_max(wanted); !good)
    return fail(EINVAL, fmt::format("pool {}: {}", name_, good.error().message));
  options_.size_max_bytes = size_max_bytes;
  return {};
}

Result<void> Settings::set_pinned_max(unsigned percent, Authority authority) {
  MutexLock lock(mutex_);
  if (percent > options_.pinned_max_percent && authority != Authority::kAdministrator)
    return fail(EPERM, fmt::format("pool {}: pinned_max {}% is more than {}%, which only the administrator "
                                   "raises (.kvcachefs/pools/{}/pinned_max)",
                                   name_, percent, options_.pinned_max_percent, name_));
  options_.pinned_max_percent = percent;
  capacity_.limit().set_pinned_max(percent);
  return {};
}

Result<void> Settings::set_max_entries(uint64_t most) {
  entries_.shares().set_most_entries(most);
  return set_most(limits_.entries, &PoolOptions::max_entries, most);
}

Result<void> Settings::set_max_directories(uint64_t most) {
  return set_most(limits_.directories, &PoolOptions::max_directories, most);
}

Result<void> Settings::set_max_xattr_bytes(uint64_t most) {
  MutexLock lock(mutex_);
  limits_.xattr_bytes = options_.max_xattr_bytes = most;
  return {};
}

Result<void> Settings::set_max_xattrs(uint64_t most) {
  MutexLock lock(mutex_);
  limits_.xattrs = options_.max_xattrs = most;
  return {};
}

Result<void> Settings::set_most(NameLimit& limit, uint64_t PoolOptions::*option, uint64_t most) {
  {
    MutexLock lock(mutex_);
    options_.*option = most;
    limit.set(most);
  }
  surroundings_.evictor->wake();
  return {};
}

Result<void> Settings::set_user_share(unsigned percent) {
  {
    MutexLock lock(mutex_);
    options_.user_share_percent = percent;
  }
  entries_.shares().set_share(percent);
  surroundings_.evictor->wake();
  return {};
}

Result<void> Settings::set_leaf_first(bool on) {
  evictor_.set_leaf_first(on);
  MutexLock lock(mutex_);
  options_.leaf_first = on;
  return {};
}

Result<void> Settings::set_durability(Durability durability) {
  if (auto tier = disk_.needed(); !tier) return pass(tier);
  {
    MutexLock lock(mutex_);
    options_.durability = durability;
  }
  // Without durability the catalog has not been told of inodes without content.
  Result<void> told;
  if (disk_.exchange_durability(durability) == Durability::kNone && durability != Durability::kNone)
    told = disk_.tell_names(false);
  disk_requests_.spill_all();
  return told;
}

Result<void> Settings::set_admission(Admission admission) {
  auto tier = disk_.needed();
  if (!tier) return pass(tier);
  (*tier)->admission.set_kind(admission);
  MutexLock lock(mutex_);
  options_.admission = admission;
  return {};
}

Result<void> Settings::set_auto_prefetch(bool on) {
  prefetcher_.set_auto(on);
  MutexLock lock(mutex_);
  options_.prefetch = on;
  return {};
}

void Settings::name_disk(const PoolOptions& spill) {
  MutexLock lock(mutex_);
  options_.spill_path = spill.spill_path;
  options_.spill_size_bytes = spill.spill_size_bytes;
  options_.spill_unit_bytes =
      disk_.owned() != nullptr ? disk_.owned()->store->unit_bytes() : spill.spill_unit_bytes;
  options_.catalog_path = spill.catalog_path;
  options_.durability = spill.durability;
  options_.admission = spill.admission;
  options_.prefetch = spill.prefetch;
}

void Settings::use_disk(const PoolOptions& spill) {
  (void)disk_.exchange_durability(durability_of(spill));
  prefetcher_.set_auto(spill.prefetch);
  name_disk(spill);
}

}  // namespace kvcachefs
