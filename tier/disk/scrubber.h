// The scrubber reads the copies that a pool has on its disk and compares checksums, slowly, so that damage is
// found while the entry is still in memory. Any thread may call start(), stop(), progress() and wake(), which
// only queue; step() belongs to one thread, which waits for the disk there. Failure: a copy that is damaged
// or cannot be read is reported to the pool (Residency::end_verify), which decides what to do, and is counted
// here. After kErrorsInARow unreadable copies in a row the scrub stops, because the disk fails rather than
// the copies.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "tier/block_io.h"
#include "tier/catalog/content_verifier.h"
#include "tier/disk/residency.h"
#include "tier/disk/spill_orders.h"
#include "tier/disk/spill_store.h"

namespace kvcachefs {

class Scrubber {
 public:
  // Few and small requests: the reads of an open wait behind these at the disk.
  static constexpr unsigned kDepth = 4;

  Scrubber(SpillStore& store, Residency& residency, std::unique_ptr<BlockChannel> channel)
      : store_(store), residency_(residency), channel_(std::move(channel)) {}

  // start() starts a scrub of all entries at this rate at most; EBUSY while one runs. It counts as running
  // from this call on.
  Result<void> start(uint64_t rate_bytes_per_s) EXCLUDES(mutex_);
  void stop() EXCLUDES(mutex_);
  ScrubProgress progress() const EXCLUDES(mutex_);

  // One round: asks the disk for what the rate allows now, waits at most `at_most` for it or for an order.
  void step(std::chrono::milliseconds at_most) EXCLUDES(mutex_);
  void wake() { channel_->wake(); }
  void close() EXCLUDES(mutex_);  // after the last step()

 private:
  struct Copy {
    uint64_t ino;
    CatalogContent content;
  };

  bool take_order() EXCLUDES(mutex_);  // true: there is a copy to verify
  void next_copy() EXCLUDES(mutex_);
  void end_copy(const ContentVerifier::Verdict& verdict) EXCLUDES(mutex_);
  void abandon();
  void refill();
  std::chrono::milliseconds until_allowed() const;

  SpillStore& store_;
  Residency& residency_;
  const std::unique_ptr<BlockChannel> channel_;

  mutable Mutex mutex_;
  uint64_t order_ GUARDED_BY(mutex_) = 0;  // the number of starts and stops
  uint64_t rate_bytes_per_s_ GUARDED_BY(mutex_) = 0;
  ScrubProgress progress_ GUARDED_BY(mutex_);

  // The stepping thread's own members.
  uint64_t following_ = 0;  // the order that it carries out
  uint64_t rate_ = 0;
  std::vector<uint64_t> left_;  // inodes, the next one last
  std::optional<Copy> copy_;
  unsigned errors_in_a_row_ = 0;
  std::unique_ptr<ContentVerifier> verifier_;  // of the present order
  int64_t allowed_bytes_ = 0;                  // negative where the last piece exceeded the allowance
  uint64_t refilled_ns_ = 0;
};

}  // namespace kvcachefs
