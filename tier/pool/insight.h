// What a pool tells of itself and of its entries. Any thread; no lock is held over a system call on a file.
// Failure: ESTALE for an inode that is gone.
#pragma once

#include <vector>

#include "tier/disk/spill_orders.h"
#include "tier/pool/numa_survey.h"
#include "tier/pool/pool_disk.h"
#include "tier/pool/pool_reports.h"

namespace kvcachefs {

class Insight : DiskPart {
 public:
  explicit Insight(const DiskPart& part) : DiskPart(part) {}

  PoolUsage usage() const;
  SpillUsage spill_usage() const;
  std::vector<Shares::User> users() const;  // those with the most memory first
  ArenaUsage inode_usage() const { return arena_.usage(); }
  uint64_t cold_bytes() const { return entries_.sums().stored_bytes(Entry::Tier::kCold); }
  NumaSurvey& numa_survey() { return numa_survey_; }
  // Looks at this many entries at most, 44 us each. If there are more, the figures are those of a sample, by
  // the memory that the entries have.
  std::vector<NodeUsage> numa_usage(uint64_t most_entries);
  // Entries of one shard. Shards are numbered from 0; the answer is empty past the last.
  static constexpr size_t kListingShards = EntryTable::kShards;
  std::vector<EntryListing> list_entries(size_t shard);
  Result<EntryFacts> facts(uint64_t ino);
  void report_full(bool told) const;  // `told`: the daemon answered ENOSPC; else the tmpfs may have

 private:
  NumaSurvey numa_survey_{[this] { return numa_usage(NumaSurvey::kFewEntries); }};
};

}  // namespace kvcachefs
