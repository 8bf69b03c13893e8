// How a pool hands its entries to the movers of bytes (tier/disk/residency.h), and what follows from the
// outcome: for the entry, for the catalog, and for the mark that a successor reads. Threads and failure: as
// there.
#pragma once

#include <vector>

#include "tier/disk/residency.h"
#include "tier/pool/copy_marks.h"
#include "tier/pool/reservations.h"
#include "tier/pool/tree.h"

namespace kvcachefs {

class PoolResidency final : public Residency, DiskPart {
 public:
  PoolResidency(const DiskPart& part, Reservations& reservations, CopyMarks& marks, Parked& parked,
                Inodes& inodes, Tree& tree)
      : DiskPart(part),
        reservations_(reservations),
        marks_(marks),
        parked_(parked),
        inodes_(inodes),
        tree_(tree) {}

  std::expected<SpillTask, Refusal> begin_spill(uint64_t ino, bool urgent) override;
  bool end_spill(const SpillTask& task, SpillOutcome outcome) override;
  void want_disk_room(uint64_t bytes) override { disk_.want_room(bytes); }
  Result<std::optional<PromoteTask>> begin_promote(uint64_t ino) override;
  void end_promote(const PromoteTask& task, const PromoteOutcome& outcome, bool asked_for) override;
  void waiters_told(uint64_t ino) override;
  std::vector<uint64_t> copied_entries() override;
  std::optional<CatalogContent> begin_verify(uint64_t ino) override;
  bool end_verify(uint64_t ino, const CatalogContent& content, Finding finding) override;
  Room& memory_room() override { return capacity_.room(); }
  bool is_of_one_over(uint64_t ino) override;
  uint64_t free_bytes(bool even_promised) const override { return capacity_.free_bytes(even_promised); }
  uint64_t memory_bytes() const override { return capacity_.size_bytes(); }
  uint64_t kept_from_orders_bytes() const override;
  void wake_evictor() override { surroundings_.evictor->wake(); }

 private:
  Result<std::optional<PromoteTask>> begin_verification(Entry& entry);
  void end_verification(const PromoteTask& task, const PromoteOutcome& outcome);
  bool take_copy(Entry& entry, const SpillTask& task, CatalogContent content, bool written);
  void report_bad_copy(const CatalogContent& content, Finding finding, const char* remedy);
  void report_refusal(const Error& error);

  Reservations& reservations_;
  CopyMarks& marks_;
  Parked& parked_;
  Inodes& inodes_;
  Tree& tree_;
};

}  // namespace kvcachefs
