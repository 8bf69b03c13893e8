// The Sampler looks several times a second whether every bound is kept: memory, entries, directories and disk
// of each pool, and memory and descriptors of the daemon. What is above a bound is written to the Record.
//
// sample() is called by one thread and waits for the mount; peaks() after its last call. Never fails.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "tests/soak/client.h"
#include "tests/soak/record.h"
#include "tests/support/mount.h"

namespace kvcachefs::soak {

class Sampler {
 public:
  Sampler(Record& record, const test::Mount& mount, const Place& place, const std::string& spill_file)
      : record_(record), mount_(mount), place_(place), spill_file_(spill_file) {}

  void sample();
  std::string peaks() const;

 private:
  using Stats = std::map<std::string, uint64_t>;
  struct Count {
    uint64_t count = 0, limit = 0;
  };

  struct Usage {
    uint64_t bytes = 0, inodes = 0;
  };

  Stats stats_of(const std::string& pool);
  Usage usage_of(const std::string& pool) const;
  void check_pool(const std::string& pool, const Stats& stats);
  void check_memory(const std::string& pool, uint64_t most_bytes);
  // A count may be above a limit that was lowered, but does not grow there. It may have grown before that.
  void check_count(const std::string& what, uint64_t count, uint64_t limit, uint64_t most);
  void check_disk(const Stats& stats);
  void check_daemon();
  void at_most(const std::string& what, uint64_t value, uint64_t bound);

  Record& record_;
  const test::Mount& mount_;
  const Place& place_;
  std::string spill_file_;
  std::map<std::string, Count> counts_;  // at the last sample
  struct Peak {
    uint64_t value = 0, bound = 0;
    double closest = 0;
  };
  std::map<std::string, Peak> peaks_;
  uint64_t samples_ = 0;
};

}  // namespace kvcachefs::soak
