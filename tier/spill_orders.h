// What is asked of a pool's disk tier while it serves, and what the tier tells of itself; the text form of
// .pool/spill. Any thread. Fails with EINVAL and a sentence; the options are then unchanged.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "tier/pool_options.h"

namespace kvcachefs {

// `PATH SIZE` (or `PATH` for all of a device), and in further lines `spill_unit=`, `catalog=` or
// `spill_force=`; `none` clears them all. A size alone keeps the path. The last word is taken for the size if
// it is one.
Result<void> set_spill_order(PoolOptions& options, std::string_view text);
// What set_spill_order turns into the same. Only what differs from the defaults gets a line of its own.
std::string spill_order_text(const PoolOptions& options);
// The first line of that: `PATH SIZE`, `PATH` or `none`.
std::string spill_place_text(const PoolOptions& options);

// No two pools may have the same file, device or catalog.
Result<void> check_spills_apart(const PoolOptions& pool, const PoolOptions& other);

// The catalog's setting that says which disk it is of: the UUID of its superblock, 16 bytes.
inline constexpr std::string_view kSpillUuidSetting = "spill.uuid";
// What the first disk of a catalog is to be made with: it is here before the disk has it, so that a start
// that was cut short in between knows the disk again.
inline constexpr std::string_view kNewSpillUuidSetting = "spill.uuid.new";

// Below what any NVMe reads beside its other work, so that opens hardly notice.
inline constexpr uint64_t kDefaultScrubBytesPerSecond = uint64_t{200} << 20;

// One name of .pool/prefetch: relative to the pool, higher first.
struct PrefetchOrder {
  std::string name;
  int priority = 0;
};

// Since the pool was made, but for `queued`.
struct PrefetchProgress {
  uint64_t queued = 0;   // waiting or under way
  uint64_t done = 0;     // in memory, whether they were brought there or were there
  uint64_t failed = 0;   // no such entry, or it could not be read
  uint64_t dropped = 0;  // the queue was full, or there was no memory for it
  uint64_t bytes = 0;    // read from disk
};

// Of the scrub that runs, or ran last.
struct ScrubProgress {
  bool running = false;
  uint64_t entries_done = 0;
  uint64_t entries_total = 0;
  uint64_t bytes = 0;
  uint64_t damaged = 0;
  uint64_t unreadable = 0;         // the disk gave an error: nothing is known of them
  bool stopped_by_errors = false;  // too many of these in a row
};

struct SpillUsage {
  uint64_t size_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t largest_free_run_bytes = 0;
  // By state, tier/entry.h.
  uint64_t dirty_entries = 0;
  uint64_t dirty_bytes = 0;
  uint64_t clean_entries = 0;
  uint64_t clean_bytes = 0;
  uint64_t cold_entries = 0;
  uint64_t cold_bytes = 0;
  bool failed = false;  // it gets nothing more until the pool starts again
  bool away = false;    // it cannot be had, and is tried again
};

}  // namespace kvcachefs
