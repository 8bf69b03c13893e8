// The parts that a pool has because it has a disk tier. They are made before anything uses them and stay
// until the pool goes. Threads and failure: as each part says; workers run the parts by the steps of
// daemon/workers.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/log_limit.h"
#include "tier/disk/catalog_names.h"
#include "tier/disk/promoter.h"
#include "tier/disk/scrubber.h"
#include "tier/disk/spill_store.h"
#include "tier/disk/spiller.h"
#include "tier/entries/admission.h"
#include "tier/entries/entry_observer.h"
#include "tier/entries/successors.h"

namespace kvcachefs {

struct DiskTier final : EntryObserver {
  DiskTier(std::unique_ptr<SpillStore> its_store, std::unique_ptr<BlockChannel> spill_channel,
           std::unique_ptr<BlockChannel> scrub_channel, Residency& residency, const MemoryArena& arena,
           const PoolOptions& options, bool marks)
      : path(options.spill_path),
        store(std::move(its_store)),
        names(*store, arena, marks),
        spiller(*store, residency, std::move(spill_channel)),
        promoter(*store, residency),
        scrubber(*store, residency, std::move(scrub_channel)),
        admission(options.admission) {}

  void opened(const Entry& entry, bool, uint64_t) override { admission.seen(entry.disk.name_hash); }
  void published(const Entry& entry) override { admission.seen(entry.disk.name_hash); }
  void removed(const Entry& entry, RemovalReason) override {
    names.gone(entry);
    successors.removed(entry.policy.ino);
    // The content's extents come back with the transaction that drops the last name.
    if (const CatalogContent* const copy = entry.disk.copy()) store->expect_back(copy->extents);
  }

  // wake() ends the present waits of all the tier's threads.
  void wake() {
    spiller.wake();
    promoter.wake();
    scrubber.wake();
    store->log().wake();
  }
  // close() is called after the tier's threads have ended. It answers every waiter, and any that comes later,
  // with ESHUTDOWN. Because the kernel may still know its inodes, even a removed pool gets requests.
  void close() {
    spiller.close();
    promoter.close();
    for (const auto& lane : lanes) lane->close();
    scrubber.close();
    store->log().close();
  }

  const std::string path;
  const std::unique_ptr<SpillStore> store;
  CatalogNames names;
  Spiller spiller;
  Promoter promoter;
  Scrubber scrubber;
  std::vector<std::unique_ptr<PromoterLane>> lanes;
  AdmissionFilter admission;
  Successors successors;
  // These limit the log, because a disk that fails does so in every request, thousands a second.
  struct {
    LogLimit read, write, damage;
  } errors;
};

}  // namespace kvcachefs
