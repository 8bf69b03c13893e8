// The statistics of a pool: one table, in the order of `.pool/stats`, from which the text, the JSON and the
// Prometheus form are made. A new counter is a member in tier/counters.h and a row here.
// Thread safety: constants and pure functions, any thread. Failure: none.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "tier/counters.h"
#include "tier/disk/spill_orders.h"
#include "tier/pool/pool_reports.h"

namespace kvcachefs {

// A PoolReading is all that the statistics are taken from.
struct PoolReading {
  const PoolUsage& usage;
  const SpillUsage& spill;
  const PoolCounters& counters;
  uint64_t expected_entry_bytes = 0;
  uint64_t huge_bytes = 0;
  std::string policy;
  std::string io_mode;
};

struct PoolStat {
  using Counter = std::atomic<uint64_t> PoolCounters::*;
  using Word = std::string PoolReading::*;

  std::variant<Counter, Word, uint64_t PoolUsage::*, uint64_t PoolReading::*, uint64_t SpillUsage::*,
               bool SpillUsage::*>
      member;
  std::string_view name;
  std::string_view help;  // a sentence for Prometheus; a word has none

  constexpr bool is_counter() const { return std::holds_alternative<Counter>(member); }
  constexpr bool is_word() const { return std::holds_alternative<Word>(member); }
  // True for what is not counted but measured now, of the pool's memory and its entries.
  constexpr bool is_memory_gauge() const {
    return std::holds_alternative<uint64_t PoolUsage::*>(member) ||
           std::holds_alternative<uint64_t PoolReading::*>(member);
  }
};

inline constexpr PoolStat kPoolStats[] = {
    {&PoolUsage::size_bytes, "size_bytes", "Memory the pool may use."},
    {&PoolUsage::limit_bytes, "limit_bytes",
     "Memory the pool may use now: less than its size while the host is short of memory."},
    {&PoolUsage::used_bytes, "used_bytes", "Memory in use."},
    {&PoolUsage::free_bytes, "free_bytes", "Memory not in use."},
    {&PoolUsage::evictable_bytes, "evictable_bytes", "Memory that eviction could free."},
    {&PoolUsage::pinned_bytes, "pinned_bytes", "Memory of pinned entries."},
    {&PoolUsage::pinned_max_bytes, "pinned_max_bytes", "Memory that may be pinned."},
    {&PoolUsage::entries, "entries", "Entries."},
    {&PoolUsage::max_entries, "max_entries", "Entries that the pool may have; 0 if there is no limit."},
    {&PoolUsage::open_entries, "open_entries", "Entries that a process has open."},
    {&PoolUsage::directories, "directories", "Directories."},
    {&PoolUsage::max_directories, "max_directories",
     "Directories that the pool may have; 0 if there is no limit."},
    {&PoolUsage::users, "users", "Users who have something in the pool."},
    {&PoolUsage::users_over, "users_over", "Users who have more than their share: theirs leaves first."},
    {&PoolUsage::user_share_bytes, "user_share_bytes", "Memory of a user's share; 0: users have none."},
    {&PoolUsage::indexed_entries, "indexed_entries", "Entries with metadata in the index."},
    {&PoolUsage::indexed_blocks, "indexed_blocks", "Blocks of tokens in the index."},
    {&PoolUsage::index_bytes, "index_bytes", "Memory of the index, at most a 32nd of the pool's size."},
    {&PoolUsage::index_refused, "index_refused",
     "How often since the daemon's start the index had no room for an entry."},
    {&PoolUsage::index_missing, "index_missing",
     "Entries that the index has no room for now; 16,385 means that many or more."},
    {&PoolReading::policy, "policy", {}},
    {&PoolCounters::opens_hit, "opens_hit", "Opens of an entry that was there."},
    {&PoolCounters::lookups_missed, "lookups_missed",
     "Lookups of a name that was not there and that the kernel did not remember as missing."},
    {&PoolCounters::creates, "creates", "Entries created."},
    {&PoolCounters::removes, "removes", "Entries deleted or replaced by their users."},
    {&PoolCounters::evictions, "evictions", "Memory copies dropped of entries that have another."},
    {&PoolCounters::discards, "discards", "Entries whose last copy was dropped."},
    {&PoolCounters::expired, "expired", "Of these, entries whose user.kv.expires had come."},
    {&PoolCounters::group_discards, "group_discards",
     "Of these, entries that left with another of their user.kv.group."},
    {&PoolCounters::discarded_bytes, "discarded_bytes", "Bytes of dropped last copies."},
    {&PoolCounters::directories_reclaimed, "directories_reclaimed",
     "Empty directories removed for their inodes."},
    {&PoolCounters::reservations, "reservations", "Claims of memory made before an entry was created."},
    {&PoolCounters::reservation_waits, "reservation_waits", "Claims that had to wait for eviction."},
    {&PoolCounters::reservation_wait_ns, "reservation_wait_ns", "Time that claims waited."},
    {&PoolCounters::reservation_failures, "reservation_failures", "Claims that found no memory."},
    {&PoolCounters::no_space_errors, "no_space_errors",
     "Times that a client was told ENOSPC, or met the end of the memory."},
    {&PoolCounters::evict_orders, "evict_orders", "Evictions ordered by hand."},
    {&PoolCounters::gave_way_bytes, "gave_way_bytes",
     "Bytes that the pool was to evict because the host was short of memory."},
    {&PoolReading::expected_entry_bytes, "entry_size_bytes", "Expected size of a new entry."},
    {&PoolReading::huge_bytes, "huge_bytes", "Memory in huge pages."},

    // The disk tier's.
    {&SpillUsage::size_bytes, "spill_size_bytes", "Disk space the pool may use."},
    {&SpillUsage::used_bytes, "spill_used_bytes", "Disk space in use."},
    {&SpillUsage::free_bytes, "spill_free_bytes", "Disk space not in use."},
    {&SpillUsage::largest_free_run_bytes, "spill_largest_free_run_bytes",
     "A large piece of free disk space: a quarter of the largest or more."},
    {&SpillUsage::dirty_entries, "dirty_entries", "Entries in memory only."},
    {&SpillUsage::dirty_bytes, "dirty_bytes", "Bytes of entries in memory only."},
    {&SpillUsage::clean_entries, "clean_entries", "Entries in memory and on disk."},
    {&SpillUsage::clean_bytes, "clean_bytes", "Bytes of entries in memory and on disk."},
    {&SpillUsage::cold_entries, "cold_entries", "Entries on disk only."},
    {&SpillUsage::cold_bytes, "cold_bytes", "Bytes of entries on disk only."},
    {&PoolCounters::spills, "spills", "Entries written to disk."},
    {&PoolCounters::spilled_bytes, "spilled_bytes", "Bytes of entries written to disk."},
    {&PoolCounters::spill_errors, "spill_errors", "Writes to disk that failed."},
    {&PoolCounters::spills_not_made, "spills_not_made",
     "Entries that the disk has no room for, or that cannot be on it, and that stay in memory."},
    {&PoolCounters::promotes, "promotes", "Entries read back into memory."},
    {&PoolCounters::promoted_bytes, "promoted_bytes", "Bytes of entries read back into memory."},
    {&PoolCounters::promote_errors, "promote_errors", "Reads from disk that failed."},
    {&PoolCounters::promote_waits, "promote_waits", "Opens that waited for the disk."},
    {&PoolCounters::served_from_disk, "served_from_disk",
     "Opens that found no memory for the entry and read the disk."},
    {&PoolCounters::checksum_errors, "checksum_errors",
     "Entries whose bytes on disk were not those that were written."},
    {&PoolCounters::damaged_discards, "damaged_discards",
     "Entries dropped because their copy on disk was damaged or missing."},
    {&PoolCounters::disk_discards, "disk_discards", "Entries dropped because the disk tier was full."},
    {&PoolCounters::overrun_discards, "overrun_discards",
     "Entries dropped because the disk was slower than the writers."},
    {&PoolCounters::admitted_bytes, "admitted_bytes", "Bytes that were let onto the disk."},
    {&PoolCounters::refused_bytes, "refused_bytes", "Bytes that admission kept from the disk."},
    {&PoolCounters::prefetch_useful, "prefetch_useful", "Entries promoted ahead of an open that came."},
    {&PoolCounters::prefetch_wasted, "prefetch_wasted",
     "Entries promoted ahead of an open that did not come."},
    {&PoolCounters::catalog_commits, "catalog_commits", "Transactions of the catalog."},
    {&PoolCounters::catalog_errors, "catalog_errors", "Transactions of the catalog that failed."},
    {&SpillUsage::failed, "disk_failed", "1 if the disk tier gets nothing more until the pool starts again."},
    {&SpillUsage::away, "disk_away", "1 while the pool is served without its disk, which is tried again."},
    {&SpillUsage::restoring, "disk_restoring",
     "1 while what the disk has is being brought back after a start."},
    {&PoolReading::io_mode, "io_mode", {}},
};

struct PoolHistogram {
  Histogram PoolCounters::*member;
  std::string_view name;
  std::string_view help;
};

// Prometheus alone is told of these.
inline constexpr PoolHistogram kPoolHistograms[] = {
    {&PoolCounters::open_ns, "open_ns", "Time the daemon took to answer an open."},
    {&PoolCounters::create_ns, "create_ns", "Time the daemon took to answer a create."},
    {&PoolCounters::promote_ns, "promote_ns", "Time from asking for an entry to having it in memory."},
    {&PoolCounters::spill_ns, "spill_ns",
     "Time from beginning to copy an entry to the disk to having it there."},
};

}  // namespace kvcachefs
