// The settings of a pool that can change while it serves: what they are, and what a change of one means for
// the pool's parts. Any thread. Failure: a sentence that names the pool; the setting stays as it was.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/mutex.h"
#include "tier/pool/disk_requests.h"
#include "tier/pool/evictor.h"
#include "tier/pool/prefetcher.h"
#include "tier/pool_options.h"

namespace kvcachefs {

class Settings : DiskPart {
 public:
  Settings(const DiskPart& part, const PoolOptions& options, Prefetcher& prefetcher,
           DiskRequests& disk_requests, Evictor& evictor)
      : DiskPart(part),
        prefetcher_(prefetcher),
        disk_requests_(disk_requests),
        evictor_(evictor),
        options_(options) {
    // size_max_bytes is also 0 in options that a version without this limit has left.
    if (options_.size_max_bytes == 0) options_.size_max_bytes = options_.size_bytes;
    evictor_.set_leaf_first(options_.leaf_first);
  }

  // The orders to the pool: a change of a setting, and what else is written to its control files. They may
  // take half a minute, and are carried out one after the other.
  WaitingLane& orders() { return orders_; }
  // What any user may write there, which keeps no order waiting.
  WaitingLane& records() { return records_; }
  PoolOptions options() const EXCLUDES(mutex_);
  // A smaller size evicts the excess. EBUSY: too much cannot be evicted, or names are still to come back, and
  // the size stays as it was.
  Result<void> set_size(uint64_t size_bytes) EXCLUDES(mutex_);
  Result<void> set_size_max(uint64_t size_max_bytes) EXCLUDES(mutex_);  // EINVAL below the size
  Result<void> set_policy(std::string_view name) EXCLUDES(mutex_);
  Result<void> set_watermarks(Watermarks watermarks) EXCLUDES(mutex_);
  Result<void> set_entry_size(uint64_t entry_size_bytes) EXCLUDES(mutex_);
  // EPERM for an owner that raises it.
  Result<void> set_pinned_max(unsigned percent, Authority authority) EXCLUDES(mutex_);
  // A limit below what there is takes effect over time.
  Result<void> set_max_entries(uint64_t most) EXCLUDES(mutex_);
  Result<void> set_max_directories(uint64_t most) EXCLUDES(mutex_);
  Result<void> set_user_share(unsigned percent) EXCLUDES(mutex_);
  Result<void> set_max_xattr_bytes(uint64_t most) EXCLUDES(mutex_);  // what is there already stays
  Result<void> set_max_xattrs(uint64_t most) EXCLUDES(mutex_);
  Result<void> set_leaf_first(bool on) EXCLUDES(mutex_);
  Result<void> set_durability(Durability durability) EXCLUDES(mutex_);
  Result<void> set_admission(Admission admission) EXCLUDES(mutex_);
  Result<void> set_auto_prefetch(bool on) EXCLUDES(mutex_);
  // The pool has this disk, or is about to get it (name_disk).
  void name_disk(const PoolOptions& spill) EXCLUDES(mutex_);
  void use_disk(const PoolOptions& spill) EXCLUDES(mutex_);

 private:
  Result<void> set_most(NameLimit& limit, uint64_t PoolOptions::*option, uint64_t most) EXCLUDES(mutex_);
  uint64_t least_size() const;  // that the pool's names need

  Prefetcher& prefetcher_;
  DiskRequests& disk_requests_;
  Evictor& evictor_;
  WaitingLane orders_{1}, records_{1};
  mutable Mutex mutex_;
  PoolOptions options_ GUARDED_BY(mutex_);
};

}  // namespace kvcachefs
