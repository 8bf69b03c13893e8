// A channel of FaultyDisk (tests/support/faulty_disk.h), which alone makes channels. Threads and failures are
// those of FaultyDisk.
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
  void fail_all();  // requires disk_.mutex_, which the analysis cannot see in the disk's call

  FaultyDisk& disk_;
  const unsigned depth_;
  // disk_.mutex_ guards the following members.
  std::vector<BlockRequest> at_disk_;
  std::deque<BlockRequest> queued_;
  std::vector<BlockCompletion> ready_;  // completions of requests that the disk did not carry out
  bool woken_ = false;
};

}  // namespace kvcachefs::test
