// PoolDisk is a pool's disk as the pool's other parts see it. A pool has no disk, or one that is away
// (tier/disk/away_disk.h), or a disk tier. A disk tier may be attached while the pool is served, and then
// stays. PoolDisk also decides which entries the spiller is asked to copy. Any thread; functions that take
// an Entry are called with its shard held. Never fails.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "tier/disk/away_disk.h"
#include "tier/disk/disk_tier.h"
#include "tier/pool/disk_before_use.h"
#include "tier/pool/opened.h"
#include "tier/pool/pool_part.h"
#include "tier/pool/restoring.h"

namespace kvcachefs {

class PoolDisk : PoolPart, public Restoring {
 public:
  explicit PoolDisk(const PoolPart& part) : PoolPart(part) {}

  DiskTier* tier() const { return tier_.load(std::memory_order_acquire); }
  AwayDisk* away() const { return away_; }
  bool exists() const { return tier() != nullptr || away() != nullptr; }
  // The tier for a caller that asks for the disk itself, or the refusal: EIO if it is away, else EOPNOTSUPP.
  Result<DiskTier*> needed() const;
  Durability durability() const { return durability_.load(std::memory_order_relaxed); }
  Durability exchange_durability(Durability durability);  // answers what it was
  Presence presence_of_cold() const;                      // of an entry whose content is on the disk alone

  // --- the way to it ---
  // A tier that is in use while names come back is only read from: what is free on the disk is known when all
  // contents are.
  bool takes_more() const;
  bool is_busy(uint64_t pressure_bytes) const;  // it is asked for nothing more to make room
  uint64_t backlog_bytes() const { return tier() == nullptr ? 0 : tier()->spiller.backlog_bytes(); }
  void publish(Entry& entry);
  void spill_by_itself(Entry& entry);  // without an order or an eviction, as `durability` says
  void queue_spill(Entry& entry, bool urgent = false,
                   bool again = false);  // `again`: also one that is queued
  bool is_admitted(Entry& entry);
  void want_room(uint64_t bytes);
  uint64_t take_wanted_bytes() { return wanted_bytes_.exchange(0); }

  // Tells the catalog of directories and other inodes without content. `with_links`: also of files with
  // several names, which is needed only for links made before the disk tier. After an error the catalog may
  // lack some of them.
  Result<void> tell_names(bool with_links);

  // --- its life ---
  DiskTier* owned() const { return owned_.get(); }  // also before it is used
  void own(std::unique_ptr<DiskTier> tier) { owned_ = std::move(tier); }
  void use();
  void is_away(std::unique_ptr<AwayDisk> away) {
    owned_away_ = std::move(away);
    away_ = owned_away_.get();
  }
  DiskBeforeUse& before_use() { return before_use_; }
  const DiskBeforeUse& before_use() const { return before_use_; }
  void drop();  // the owned tier, which is not in use

 private:
  bool wants_spill(const Entry& entry, bool again) const;

  std::unique_ptr<AwayDisk> owned_away_;
  std::atomic<AwayDisk*> away_{nullptr};
  std::unique_ptr<DiskTier> owned_;
  DiskBeforeUse before_use_;
  std::atomic<DiskTier*> tier_{nullptr};
  std::atomic<Durability> durability_{Durability::kNone};
  std::atomic<uint64_t> wanted_bytes_{0};
};

// What a part works on that knows of the pool's disk.
struct DiskPart : PoolPart {
  PoolDisk& disk_;
};

}  // namespace kvcachefs
