// Insight reports on a pool and its entries. Any thread; no lock is held over a system call on a file.
// Failure: ESTALE for an inode that is gone.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "alloc/placement.h"
#include "base/log_limit.h"
#include "tier/disk/spill_orders.h"
#include "tier/index/entry_index.h"
#include "tier/pool/lifetimes.h"
#include "tier/pool/numa_survey.h"
#include "tier/pool/pool_disk.h"
#include "tier/pool/pool_reports.h"

namespace kvcachefs {

class Insight : DiskPart {
 public:
  Insight(const DiskPart& part, Lifetimes& lifetimes) : DiskPart(part), lifetimes_(lifetimes) {}

  PoolUsage usage() const;
  SpillUsage spill_usage() const;
  std::vector<Shares::User> users() const;  // those with the most memory first
  ArenaUsage inode_usage() const { return arena_.usage(); }
  uint64_t cold_bytes() const { return entries_.sums().stored_bytes(Entry::Tier::kCold); }
  NumaSurvey& numa_survey() { return numa_survey_; }
  EntryIndex& index() { return index_; }
  // Calls EntryIndex::step(), and logs when the index becomes full and when it contains all entries again.
  // One thread.
  bool step_index();
  Lifetimes& lifetimes() { return lifetimes_; }
  // Looks at this many entries at most. If there are more, they stand for all of the pool's memory. A glance,
  // at NumaSurvey::kGlance of more entries, looks at the beginning of each.
  std::vector<NodeUsage> numa_usage(uint64_t most_entries);
  // The files of one shard. Shards are numbered from 0; the answer is empty past the last.
  static constexpr size_t kListingShards = EntryTable::kShards;
  std::vector<sys::Handle> entries_of(size_t shard);
  std::optional<EntryListing> listing_of(sys::Handle file);  // nullopt if it has left, or has no name
  Result<EntryFacts> facts(uint64_t ino);
  Result<std::string> path_of(uint64_t ino);  // below the pool's root; ENAMETOOLONG, ENOENT
  // The path of a name in a directory; the name alone where the directory has no path.
  std::string path_in(int directory, std::string_view name) const;
  AccessLog* read_log() const { return surroundings_.read_log(); }
  void report_full(bool told) const;  // `told`: the daemon answered ENOSPC; else the tmpfs may have

 private:
  std::vector<PlacedBytes> placement_of(EntryTable::Shard& shard, sys::Handle handle, uint64_t most_bytes);
  std::vector<sys::Handle> files_of(EntryTable::Shard& shard, uint64_t most, bool all);

  Lifetimes& lifetimes_;
  EntryIndex index_{arena_, entries_, [this] { surroundings_.still_at_it(); },
                    [this](const sys::Handle& entry, uint64_t kept_until_ms, uint64_t expires_ms) {
                      lifetimes_.describe(entry, kept_until_ms, expires_ms);
                    }};
  bool index_is_part_ = false;  // as the log said last
  LogLimit index_log_limit_;
  std::atomic<uint64_t> samples_{0};  // each takes other entries
  NumaSurvey numa_survey_{[this](uint64_t entries) { return numa_usage(entries); }};
};

}  // namespace kvcachefs
