// The supervisor's children, which serve one after the other: whether the present one does, gets on, and may
// have a successor, and how upgrades ended. Any thread. Never fails; without a supervisor nothing is kept.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvcachefs {

class Children {
 public:
  static constexpr size_t kMostReasonBytes = 512;

  struct Shared {
    std::atomic<uint32_t> forbidden;
    std::atomic<uint64_t> serving_since_ns, last_beat_ns;
    std::atomic<uint32_t> upgrades_done, upgrades_refused;
    std::array<char, kMostReasonBytes> refusal;  // ends with a zero
  };

  explicit Children(Shared* shared) : shared_(shared) {}  // none: without a supervisor

  void beginning() {  // the next child is about to be started
    ending();
    beat(kBeatToCome);
  }
  bool is_beginning() const {  // a child was started and neither serves yet nor ends
    return serving_since_ns() == 0 && last_beat_ns() == kBeatToCome;
  }
  void serving(uint64_t since_ns) {  // the child has taken over and serves
    beat(since_ns);
    if (shared_ != nullptr) shared_->serving_since_ns = since_ns;
  }
  uint64_t serving_since_ns() const {  // 0: the child does not serve yet, or serves no more
    return shared_ != nullptr ? shared_->serving_since_ns.load() : 0;
  }
  void ending() {  // the child has been asked to end, which may take long
    if (shared_ != nullptr) shared_->serving_since_ns = 0;
  }
  void beat(uint64_t at_ns) {  // at this time all threads of the child were making progress
    if (shared_ != nullptr) shared_->last_beat_ns = at_ns;
  }
  uint64_t last_beat_ns() const { return shared_ != nullptr ? shared_->last_beat_ns.load() : 0; }
  // A child that dies from now on is not replaced: its successor would lack something (a disk tier, a copy's
  // mark), or the requests, which the kernel gives to no other process (before Linux 6.9).
  void forbid_succession() { forbid(kLacksState); }
  void forbid_resending() { forbid(kLacksRequests); }
  bool may_succeed() const { return shared_ != nullptr && shared_->forbidden == 0; }
  bool does_kernel_forbid() const { return shared_ != nullptr && shared_->forbidden == kLacksRequests; }
  // True if only the requests would be lacking: they end with their connection.
  bool may_succeed_with_another_connection() const {
    return shared_ != nullptr && (shared_->forbidden & kLacksState) == 0;
  }
  void connection_ended() { shared_->forbidden &= ~uint32_t{kLacksRequests}; }

  // The supervisor notes how an upgrade ended; the process that asked for it reads that.
  struct Upgrades {
    uint32_t done = 0;
    uint32_t refused = 0;
    std::string reason;  // why the last refused upgrade was refused
  };
  void upgraded() { ++shared_->upgrades_done; }
  void upgrade_refused(std::string_view reason) {
    shared_->refusal[reason.copy(shared_->refusal.data(), kMostReasonBytes - 1)] = '\0';
    ++shared_->upgrades_refused;
  }
  Upgrades upgrades() const {
    if (shared_ == nullptr) return {};
    return {shared_->upgrades_done, shared_->upgrades_refused, shared_->refusal.data()};
  }

 private:
  static constexpr uint64_t kBeatToCome = UINT64_MAX;
  enum Lack : uint32_t { kLacksState = 1, kLacksRequests = 2 };
  void forbid(Lack lack) {
    if (shared_ != nullptr) shared_->forbidden |= lack;
  }

  Shared* const shared_;
};

}  // namespace kvcachefs
