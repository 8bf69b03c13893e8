// The memory that this process may use and what is available of it: the machine's, and the limits of the
// memory cgroups that the process is in (cgroups(7), v1 and v2). Any thread may read. What cannot be read
// limits nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace kvcachefs {

struct HostMemory {
  uint64_t total_bytes = 0;  // 0: unknown
  uint64_t available_bytes =
      0;  // what could be taken before somebody runs short: MemAvailable, proc_meminfo(5)
};

class HostMemoryReader {
 public:
  // The cgroups are those that the process is in now.
  HostMemoryReader() : HostMemoryReader("/proc") {}
  explicit HostMemoryReader(std::string proc);  // for a test: another directory like /proc

  HostMemory read() const;

 private:
  struct Group {
    std::string directory;
    bool unified = false;  // cgroups v2
  };
  static uint64_t limit_of(const Group& group);
  static uint64_t used_of(const Group& group);  // without what can be taken back

  const std::string proc_;
  std::vector<Group> groups_;  // the process's own, and those above it
};

// The least of the machine's memory and the limits of the process's cgroups.
uint64_t usable_memory_bytes();

// From -1000 (never) to 1000: how readily the kernel kills this process, and those that it starts, when
// memory runs out (proc_pid_oom_score_adj(5)). Less than it was takes CAP_SYS_RESOURCE: EACCES, and a
// sentence.
Result<void> set_oom_score_adj(int adjustment);

}  // namespace kvcachefs
