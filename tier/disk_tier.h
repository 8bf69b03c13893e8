// All that a pool has because it has a disk tier. Made before anything uses it, and there until the pool
// goes. Threads and failure: as its parts say; run by the steps of tier/pool.h that workers call.
#pragma once

#include <memory>
#include <vector>

#include "base/log_limit.h"
#include "tier/admission.h"
#include "tier/catalog_names.h"
#include "tier/promoter.h"
#include "tier/scrubber.h"
#include "tier/spill_store.h"
#include "tier/spiller.h"
#include "tier/successors.h"

namespace kvcachefs {

struct DiskTier {
  DiskTier(std::unique_ptr<SpillStore> its_store, std::unique_ptr<BlockChannel> spill_channel,
           std::unique_ptr<BlockChannel> scrub_channel, Residency& residency, const MemoryArena& arena,
           Admission admission_kind, bool marks)
      : store(std::move(its_store)),
        names(*store, arena, marks),
        spiller(*store, residency, std::move(spill_channel)),
        promoter(*store, residency),
        scrubber(*store, residency, std::move(scrub_channel)),
        admission(admission_kind) {}

  // Ends the waits of all its threads once.
  void wake() {
    spiller.wake();
    promoter.wake();
    scrubber.wake();
    store->log().wake();
  }
  // After its threads have ended: answers who still waits, and from then on whoever comes, with ESHUTDOWN. A
  // removed pool has requests until the kernel has forgotten its inodes.
  void close() {
    spiller.close();
    promoter.close();
    for (const auto& lane : lanes) lane->close();
    scrubber.close();
    store->log().close();
  }

  const std::unique_ptr<SpillStore> store;
  CatalogNames names;
  Spiller spiller;
  Promoter promoter;
  Scrubber scrubber;
  std::vector<std::unique_ptr<PromoterLane>> lanes;
  AdmissionFilter admission;
  Successors successors;
  // A disk that fails does so in every request, thousands a second.
  struct {
    LogLimit read, write, damage;
  } errors;
};

}  // namespace kvcachefs
