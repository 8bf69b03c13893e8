// A pool with a disk tier for the rows: it is brought into the states that the rows begin with, and read by
// many clients at once. One thread (read_whole() has threads of its own, which end before it returns); throws
// BenchError.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/fio.h"
#include "bench/rows.h"

namespace kvcachefs::bench {

class SpillPool {
 public:
  struct Shape {
    uint64_t memory_bytes = 0;
    uint64_t disk_bytes = 0;
    std::string options = "prefetch=off";  // then only what clients read is in flight
  };
  SpillPool(const Bench& bench, const DiskDirectory& disk, const std::string& name, const Shape& shape);

  const Kvcachefs& mount() const { return mount_; }
  std::string directory() const { return mount_.directory(); }
  void set_durability(const std::string& word) const;
  bool is_clean() const;
  // The call returns when all entries are on the disk and in the catalog.
  void wait_until_clean() const;
  // The call returns when so many entries are on the disk alone.
  void make_cold(uint64_t entries) const;

 private:
  Kvcachefs mount_;
};

// A ReadJob has `clients` threads, each of which opens, reads as a whole and closes one entry after the
// other. The entries are `prefix` and a number; each number below `entries` is read once. read_whole() gives
// bytes a second.
struct ReadJob {
  std::string directory;
  std::string prefix;
  uint64_t entries = 0;
  uint64_t entry_bytes = 0;
  unsigned clients = 0;
  bool shuffled = false;
};
double read_whole(const ReadJob& job);

// The call makes a file in `memory` for FioJob::pages, with all its pages: fio itself would map a file
// without length.
std::string make_pages(const Tmpfs& memory, uint64_t bytes);

// Disk rows take seconds a round; with more than five rounds the medians moved by less than the disk itself
// does.
inline unsigned disk_rounds(const Scale& scale) {
  return scale.rounds < 5 ? scale.rounds : 5;
}

}  // namespace kvcachefs::bench
