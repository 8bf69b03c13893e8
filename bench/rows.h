// The rows of the side-by-side table, one function for each group. Each function mounts what it compares and
// adds its rows to the report. The calling process must have no other threads; throws BenchError.
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
void daemon_io_rows(Bench& bench);    // stores, reads and maps where the daemon moves the bytes
void open_rows(Bench& bench);         // open + close and existence probes
void fill_rows(Bench& bench);         // four writers and a pool too small for them
void waiting_rows(Bench& bench);      // opens beside another pool whose writers wait
void query_rows(Bench& bench);        // opens and stores beside another pool whose index is queried
void directory_rows(Bench& bench);    // a million entries in one directory
void trace_rows(Bench& bench);        // requests of a chat service
void spill_rows(Bench& bench);        // block I/O of the disk tier, beside fio
void promote_rows(Bench& bench);      // cold entries through the mount, beside fio
void spill_speed_rows(Bench& bench);  // the speed of spilling beside fio, and its effect on reads
void allocator_rows(Bench& bench);    // finding and freeing space on a disk in use
void catalog_rows(Bench& bench);      // a million entries on a disk
void today_rows(Bench& bench);        // a pool with a disk tier beside a directory on that disk
void match_rows(Bench& bench);        // which entries hold what a prompt needs

}  // namespace kvcachefs::bench
