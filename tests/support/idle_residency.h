// A residency that has no entry and much memory. Tests override what they need. Any thread; never fails.
#pragma once

#include "tier/disk/residency.h"

namespace kvcachefs::test {

class IdleResidency : public Residency {
 public:
  std::expected<SpillTask, Refusal> begin_spill(uint64_t, bool) override {
    return std::unexpected(Refusal::kNever);
  }
  bool end_spill(const SpillTask&, SpillOutcome) override { return true; }
  void want_disk_room(uint64_t) override {}
  Result<std::optional<PromoteTask>> begin_promote(uint64_t) override { return std::nullopt; }
  void end_promote(const PromoteTask&, const PromoteOutcome&, bool) override {}
  void waiters_told(uint64_t) override {}
  std::vector<uint64_t> copied_entries() override { return {}; }
  std::optional<CatalogContent> begin_verify(uint64_t) override { return std::nullopt; }
  bool end_verify(uint64_t, const CatalogContent&, Finding) override { return false; }
  Room& memory_room() override { return room_; }
  uint64_t free_bytes(bool) const override { return UINT64_MAX; }
  uint64_t memory_bytes() const override { return uint64_t{1} << 30; }
  void wake_evictor() override {}

 private:
  Room room_;
};

}  // namespace kvcachefs::test
