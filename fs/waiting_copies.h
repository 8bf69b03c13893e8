// The bound for what requests that wait for room keep a copy of, above all the bytes of WRITEs, in the whole
// process. Any thread; never waits. Failure: take() is empty when the bound is reached.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>

namespace kvcachefs {

class WaitingCopies {
 public:
  // A 64th of the host's memory, but at least 64 writes of 1 MiB, and at most 1024. Where more wait, those
  // wait in the threads that took them.
  static constexpr uint64_t kLeastBound = uint64_t{64} << 20, kMostBound = uint64_t{1} << 30;
  explicit WaitingCopies(uint64_t memory_bytes)
      : bound_bytes_(std::clamp(memory_bytes / 64, kLeastBound, kMostBound)) {}

  // A Share of the bound is given back when it ends.
  class Share {
   public:
    Share(std::atomic<uint64_t>& taken, uint64_t bytes) : taken_(&taken), bytes_(bytes) {}
    Share(Share&& other) noexcept : taken_(std::exchange(other.taken_, nullptr)), bytes_(other.bytes_) {}
    Share& operator=(Share&&) = delete;
    ~Share() {
      if (taken_ != nullptr) *taken_ -= bytes_;
    }

   private:
    std::atomic<uint64_t>* taken_;
    uint64_t bytes_;
  };

  std::optional<Share> take(uint64_t bytes) {
    std::optional<Share> share(std::in_place, taken_bytes_, bytes);
    if ((taken_bytes_ += bytes) > bound_bytes_) share.reset();
    return share;
  }

 private:
  const uint64_t bound_bytes_;
  std::atomic<uint64_t> taken_bytes_{0};
};

}  // namespace kvcachefs
