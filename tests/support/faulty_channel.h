// A channel of the disk in tests/support/faulty_disk.h; made by it alone. Threads and failures as there.
#pragma once

#include <deque>
#include <vector>

#include "tests/support/faulty_disk.h"

namespace kvcachefs::test {

class FaultyChannel final : public BlockChannel {
 public:
  FaultyChannel(FaultyDisk& disk, unsigned depth) : disk_(disk), depth_(depth) {}
  ~FaultyChannel() override;

  void submit(std::span<const BlockRequest> requests) override;
  size_t reap(std::vector<BlockCompletion>& out, std::chrono::milliseconds at_most) override;
  size_t in_flight() const override;
  void wake() override;

 private:
  friend class FaultyDisk;
  void hand_over() REQUIRES(disk_.mutex_);
  void work(std::vector<BlockCompletion>& out) REQUIRES(disk_.mutex_);
  void fail_all();  // with disk_.mutex_ held, which the analysis cannot see where the disk calls

  FaultyDisk& disk_;
  const unsigned depth_;
  // All guarded by disk_.mutex_.
  std::vector<BlockRequest> at_disk_;
  std::deque<BlockRequest> queued_;
  std::vector<BlockCompletion> ready_;  // those that failed without the disk's doing
  bool woken_ = false;
};

}  // namespace kvcachefs::test
