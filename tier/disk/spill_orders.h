// The orders that a pool's disk tier gets while it serves, and the reports that the tier gives; the text form
// of .pool/spill. Any thread. Failure: EINVAL and a sentence; the options are then unchanged.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "tier/pool_options.h"

namespace kvcachefs {

// An order is `PATH SIZE` (or `PATH` for all of a device), and in further lines `spill_unit=`, `catalog=` or
// `spill_force=`; `none` clears them all. A size alone keeps the path. If the last word is a size, it is
// taken for the size.
Result<void> set_spill_order(PoolOptions& options, std::string_view text);
// The text that set_spill_order() turns into the same options. Only an option that differs from its default
// gets a line.
std::string spill_order_text(const PoolOptions& options);
// The first line of that text: `PATH SIZE`, `PATH` or `none`.
std::string spill_place_text(const PoolOptions& options);

// No two pools may have the same file, device or catalog.
Result<void> check_spills_apart(const PoolOptions& pool, const PoolOptions& other);

// The catalog's setting that names its disk: the UUID of the disk's superblock, 16 bytes.
inline constexpr std::string_view kSpillUuidSetting = "spill.uuid";
// The setting with the UUID that a catalog's first disk is to get. The catalog has it before the disk does,
// so a start that was cut short in between recognises the disk.
inline constexpr std::string_view kNewSpillUuidSetting = "spill.uuid.new";

// Below what any NVMe reads beside its other work, so opens hardly notice it.
inline constexpr uint64_t kDefaultScrubBytesPerSecond = uint64_t{200} << 20;

// One line of .pool/prefetch. The name is relative to the pool; higher priorities come first.
struct PrefetchOrder {
  std::string name;
  int priority = 0;
};

// Counts from the making of the pool, except `queued`.
struct PrefetchProgress {
  uint64_t queued = 0;   // waiting or under way
  uint64_t done = 0;     // in memory, read from the disk or already there
  uint64_t failed = 0;   // no such entry, or it could not be read
  uint64_t dropped = 0;  // the queue was full, or there was no memory for it
  uint64_t bytes = 0;    // read from the disk, for opens too
};

// The scrub that runs, or ran last.
struct ScrubProgress {
  bool running = false;
  uint64_t entries_done = 0;
  uint64_t entries_total = 0;
  uint64_t bytes = 0;
  uint64_t damaged = 0;
  uint64_t unreadable = 0;         // the disk gave an error: nothing is known of their bytes
  bool stopped_by_errors = false;  // too many errors in a row
};

struct SpillUsage {
  uint64_t size_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t largest_free_run_bytes = 0;
  // Entries by state (tier/entries/entry.h).
  uint64_t dirty_entries = 0;
  uint64_t dirty_bytes = 0;
  uint64_t clean_entries = 0;
  uint64_t clean_bytes = 0;
  uint64_t cold_entries = 0;
  uint64_t cold_bytes = 0;
  bool failed = false;     // the disk gets nothing more until the pool starts again
  bool away = false;       // the disk cannot be opened, and is tried again
  bool restoring = false;  // what the disk has is being brought back
};

}  // namespace kvcachefs
