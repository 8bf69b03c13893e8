// Reads what a pool has on its disk and compares checksums, slowly, so that rot is found while there is
// another copy. start(), stop(), progress() and wake() are for any thread and only queue; step() is for one,
// which waits for the disk there. Failure: a copy that is damaged or cannot be read is told to the pool
// (Residency::end_verify), which knows what to do about it, and counted here; after some in a row that cannot
// be read it stops, since it is the disk that fails and not they.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "tier/block_io.h"
#include "tier/content_verifier.h"
#include "tier/residency.h"
#include "tier/spill_orders.h"
#include "tier/spill_store.h"

namespace kvcachefs {

class Scrubber {
 public:
  // Few and small: what an open reads meanwhile waits behind these at the disk.
  static constexpr unsigned kDepth = 4;

  Scrubber(SpillStore& store, Residency& residency, std::unique_ptr<BlockChannel> channel);
  ~Scrubber();
  Scrubber(const Scrubber&) = delete;
  Scrubber& operator=(const Scrubber&) = delete;

  // Over all entries, at most so fast; EBUSY while one runs. It does from this call on.
  Result<void> start(uint64_t rate_bytes_per_s) EXCLUDES(mutex_);
  void stop() EXCLUDES(mutex_);
  ScrubProgress progress() const EXCLUDES(mutex_);

  // One round: asks the disk for what may be read now, waits at most so long for it or for an order.
  void step(std::chrono::milliseconds at_most) EXCLUDES(mutex_);
  void wake() { channel_->wake(); }
  void close() EXCLUDES(mutex_);  // after the last step()

 private:
  struct Copy {
    uint64_t ino;
    CatalogContent content;
  };

  bool take_order() EXCLUDES(mutex_);  // true: there is something to scrub
  void next_copy() EXCLUDES(mutex_);
  void end_copy(const ContentVerifier::Verdict& verdict) EXCLUDES(mutex_);
  void abandon();
  void refill();
  std::chrono::milliseconds until_allowed() const;

  SpillStore& store_;
  Residency& residency_;
  const std::unique_ptr<BlockChannel> channel_;

  mutable Mutex mutex_;
  uint64_t order_ GUARDED_BY(mutex_) = 0;  // counts the starts and stops
  uint64_t rate_bytes_per_s_ GUARDED_BY(mutex_) = 0;
  ScrubProgress progress_ GUARDED_BY(mutex_);

  // The stepping thread's own.
  uint64_t following_ = 0;  // the order that it carries out
  uint64_t rate_ = 0;
  std::vector<uint64_t> left_;  // inodes, the next one last
  std::optional<Copy> copy_;
  unsigned errors_in_a_row_ = 0;
  std::unique_ptr<ContentVerifier> verifier_;  // of this order
  int64_t allowed_bytes_ = 0;                  // may be less than nothing: the last piece went beyond it
  uint64_t refilled_ns_ = 0;
};

}  // namespace kvcachefs
