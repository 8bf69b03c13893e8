// The pools of a mount, by number (the top 16 bits of a nodeid) and by name. Any thread. Creating and
// removing pools is serialised; finding one takes a shared lock and a reference. Failure: errno with a
// sentence for the log.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "tier/pool/open_disk_tier.h"
#include "tier/pool/pool.h"

namespace kvcachefs {

class Pools {
 public:
  // Numbers fit in 15 bits: the 16th tells control files apart (fs/nodeid.h).
  static constexpr uint16_t kMaxPools = 0x7fff;
  static constexpr uint64_t kLeastDefaultBytes = uint64_t{16} << 20;

  struct Surroundings {
    std::string directory;       // where the pools' tmpfs are mounted, one directory each
    uint64_t memory_bytes = 0;   // to which a size in percent refers
    uint64_t reserve_bytes = 0;  // of it, which the sizes of all pools together have to leave
    bool opens_may_wait = true;  // false: no pool may have a disk tier
    Pool::Surroundings pool;     // each pool's, but for its path
  };
  explicit Pools(Surroundings surroundings);

  std::shared_ptr<Pool> find(uint16_t number) const;
  std::shared_ptr<Pool> find(std::string_view name) const;
  std::vector<std::shared_ptr<Pool>> list() const;  // by name
  // Also those that were removed and not yet reaped; by number.
  std::vector<std::shared_ptr<Pool>> all() const;

  Result<std::shared_ptr<Pool>> create(const PoolOptions& options, Attaching how = Attaching::kNew);
  // Pool::adopt, under the number that the pool had, and what is to follow for each of them: its other files,
  // and its disk. After an error this process must not serve, nor end otherwise than without destructors.
  Result<void> begin_adopting(uint16_t number, const PoolOptions& options);
  // The pool, if its disk can be had before adopt(), which tries it again.
  std::shared_ptr<Pool> take_disk(uint16_t number, const PoolOptions& options);
  Result<void> adopt(uint16_t number, const PoolOptions& options);
  uint64_t default_size_bytes() const;  // a quarter of the memory that no pool has yet
  // A pool with the defaults.
  Result<std::shared_ptr<Pool>> create_default(std::string_view name, mode_t mode, uid_t uid, gid_t gid);
  // ENOTEMPTY unless its tree is empty. EBUSY while its disk is away or what it has is being brought back, or
  // while a client reads an entry from it. The caller waits for DiskRequests::when_committed() first: else
  // the disk may still have what was removed.
  Result<void> remove(std::string_view name);
  // EINVAL beyond the memory; EPERM for an owner beyond size_max. An administrator's size becomes size_max,
  // too.
  Result<void> resize(Pool& pool, uint64_t size_bytes, Authority authority);
  Result<void> set_size_max(Pool& pool, uint64_t size_max_bytes);  // EINVAL beyond memory or below the size
  // Attaches a disk tier to a pool that serves; `wanted` is as .pool/spill gives it. EBUSY if the pool has
  // one.
  Result<void> set_spill(const std::shared_ptr<Pool>& pool, const PoolOptions& wanted);
  // `started` is called for each pool that has a disk tier, now and when one gets it. An empty function says
  // that the daemon ends: from then on no pool gets a disk tier (ESHUTDOWN), because no thread would serve
  // it.
  void on_disk_tier(std::function<void(const std::shared_ptr<Pool>&)> started);
  uint64_t memory_bytes() const { return surroundings_.memory_bytes; }
  AccessLog& access_log() { return access_log_; }

  // Destroys removed pools that the kernel has forgotten.
  void reap();

 private:
  uint64_t assigned_bytes() const;
  uint64_t most_bytes() const { return surroundings_.memory_bytes - surroundings_.reserve_bytes; }
  uint64_t left_beside(uint64_t assigned_bytes) const;
  std::string more_than_memory(std::string_view name, uint64_t size_bytes, uint64_t others_bytes) const;
  Pool::Surroundings surroundings_of(std::string_view name, uint16_t number);
  void put(uint16_t number, std::shared_ptr<Pool> pool);
  Result<void> attach_disk(const std::shared_ptr<Pool>& pool, const PoolOptions& options, Attaching how)
      REQUIRES(change_mutex_);

  const Surroundings surroundings_;
  AccessLog access_log_;  // of all pools
  Mutex change_mutex_ ACQUIRED_BEFORE(pools_mutex_);
  std::function<void(const std::shared_ptr<Pool>&)> disk_started_ GUARDED_BY(change_mutex_);
  bool ending_ GUARDED_BY(change_mutex_) = false;
  uint16_t last_number_ GUARDED_BY(change_mutex_) = 0;
  mutable SharedMutex pools_mutex_;
  // [0] unused: number 0 is the mount's root.
  std::vector<std::shared_ptr<Pool>> pools_ GUARDED_BY(pools_mutex_);
};

}  // namespace kvcachefs
