// A pool with a disk tier for the rows: brought into the states that they begin with, and read by many
// clients at once. One thread (read_whole() has threads of its own, gone at its return); throws BenchError.
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
    std::string options = "prefetch=off";  // what is in flight is then what the clients have
  };
  SpillPool(const Bench& bench, const DiskDirectory& disk, const std::string& name, const Shape& shape);

  const Kvcachefs& mount() const { return mount_; }
  std::string directory() const { return mount_.directory(); }
  void set_durability(const std::string& word) const;
  bool is_clean() const;
  // Until all is on the disk and in the catalog.
  void wait_until_clean() const;
  // Until that many entries are on the disk alone.
  void make_cold(uint64_t entries) const;

 private:
  Kvcachefs mount_;
};

// `clients` threads that each open, read as a whole and close one entry after the other, `prefix` and a
// number; all numbers below `entries` once. Bytes a second.
struct ReadJob {
  std::string directory;
  std::string prefix;
  uint64_t entries = 0;
  uint64_t entry_bytes = 0;
  unsigned clients = 0;
  bool shuffled = false;
};
double read_whole(const ReadJob& job);

// A file in `memory` for FioJob::pages, with all its pages: fio itself would map one of no length.
std::string make_pages(const Tmpfs& memory, uint64_t bytes);

// Disk rows take seconds a round; beyond five the medians moved by less than the disk itself does.
inline unsigned disk_rounds(const Scale& scale) {
  return scale.rounds < 5 ? scale.rounds : 5;
}

}  // namespace kvcachefs::bench
