// Lifetimes knows the leases of a pool, which keep an entry in the pool as a pin does, and the entries that
// expire. A client's lease (`pin=` in `.pool/match`) lasts for a time, or until the open that holds it is
// closed, if that is sooner. An entry's own lease comes from user.kv.ttl. Leases count against pinned_max,
// where an entry counts once. After a takeover or a restart the index reports the entries' own times again
// (tier/index/entry_index.h); a client's lease ends with the serving process.
//
// Any thread, without a shard: the lock here is held over shards. Failure: where pinned_max has no room there
// is no lease. 200 bytes for each entry that it knows.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "tier/pool/pool_disk.h"

namespace kvcachefs {

class Lifetimes : DiskPart {
 public:
  // The holder of a lease: an open of a control file. Its leases end with it.
  using Holder = uint64_t;
  static constexpr Holder kNobody = 0;  // it ends with its time alone
  // The leases that one holder may have, of 70 bytes each.
  static constexpr size_t kMostLeases = 4096;

  explicit Lifetimes(const DiskPart& part) : DiskPart(part) {}

  // Times are those of now_coarse_ms(). False: the entry is gone, or there is no room. One that is on the
  // disk alone is read into memory. Of several leases each has its time.
  bool lease(const sys::Handle& entry, uint64_t until_ms, Holder holder = kNobody) EXCLUDES(mutex_);
  void end_leases(Holder holder) EXCLUDES(mutex_);
  // The times that the entry's attributes give now replace the former ones; 0: none.
  void describe(const sys::Handle& entry, uint64_t kept_until_ms, uint64_t expires_ms) EXCLUDES(mutex_);

  // Ends the leases whose time has come; the work of the evictor.
  void step() EXCLUDES(mutex_) { step(now_coarse_ms()); }
  void step(uint64_t now_ms) EXCLUDES(mutex_);
  // The next entry that has expired. It is the caller's, who says if it is to be asked for again, and when.
  std::optional<sys::Handle> next_expired() EXCLUDES(mutex_);
  void not_yet(const sys::Handle& entry, uint64_t again_ms) EXCLUDES(mutex_);
  size_t entries() const EXCLUDES(mutex_);  // that it knows

 private:
  struct Lease {
    Holder holder;
    uint64_t until_ms;
  };
  static constexpr Holder kItself = UINT64_MAX;
  struct Times {
    uint32_t generation = 0;
    uint64_t expires_ms = 0;  // 0: it does not
    uint64_t due_ms = 0;      // its place in due_; 0: none
    std::vector<Lease> leases = {};
  };

  Times& times_of(const sys::Handle& entry) REQUIRES(mutex_);
  void put(Times& times, Lease lease) REQUIRES(mutex_);
  // Takes out what is not to be kept, and the entry if nothing is left of it.
  void settle(uint64_t ino, const auto& ends) REQUIRES(mutex_);
  bool hold(const sys::Handle& handle) REQUIRES(mutex_);
  void let_go(const sys::Handle& handle) REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::unordered_map<uint64_t, Times> times_ GUARDED_BY(mutex_);
  std::set<std::pair<uint64_t, uint64_t>> due_ GUARDED_BY(mutex_);  // when, and which
  std::unordered_map<Holder, std::unordered_set<uint64_t>> held_ GUARDED_BY(mutex_);
  std::vector<sys::Handle> expired_ GUARDED_BY(mutex_);
};

}  // namespace kvcachefs
