// The rows of the side-by-side table, a function a group. Each mounts what it compares and adds to the
// report. Call from a process without other threads; throws BenchError.
#pragma once

#include "bench/places.h"
#include "bench/report.h"
#include "bench/timing.h"

namespace kvcachefs::bench {

struct Bench {
  const Scale& scale;
  const WorkDirectory& work;
  Report& report;
};

void read_rows(Bench& bench);         // reads, mmap scans, share of huge pages
void write_rows(Bench& bench);        // create + write + close + rename
void open_rows(Bench& bench);         // open + close and existence probes
void fill_rows(Bench& bench);         // four writers and a pool too small for them
void directory_rows(Bench& bench);    // a million entries in one directory
void trace_rows(Bench& bench);        // requests of a chat service
void spill_rows(Bench& bench);        // the seam to the disk, beside fio
void promote_rows(Bench& bench);      // cold entries through the mount, beside fio
void spill_speed_rows(Bench& bench);  // entries to the disk beside fio, and what reads notice of it
void allocator_rows(Bench& bench);    // space on a disk in use
void catalog_rows(Bench& bench);      // a million entries on a disk
void today_rows(Bench& bench);        // a pool with a disk beside a directory on it

}  // namespace kvcachefs::bench
