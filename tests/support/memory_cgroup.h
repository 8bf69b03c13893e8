// A memory cgroup of a test's own, of either version (cgroups(7)), below the one that the test is in. One
// thread; the constructor throws std::runtime_error.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <string>

namespace kvcachefs::test {

class MemoryCgroup {
 public:
  // Why there can be none here; empty if there can.
  static std::string lacking();

  explicit MemoryCgroup(uint64_t limit_bytes);
  // Ends the processes that are still in it.
  ~MemoryCgroup();
  MemoryCgroup(const MemoryCgroup&) = delete;
  MemoryCgroup& operator=(const MemoryCgroup&) = delete;

  bool set_limit(uint64_t bytes);
  uint64_t used_bytes() const;
  bool add(pid_t pid);  // 0: the caller
  bool leave() const;   // the caller goes to where it came from

 private:
  std::string home_;
  std::string directory_;
  bool unified_ = false;
};

// A process that takes memory and keeps it until its end. The kernel kills it first.
class MemoryTaker {
 public:
  MemoryTaker(MemoryCgroup& cgroup, uint64_t bytes);
  ~MemoryTaker() { end(); }
  MemoryTaker(const MemoryTaker&) = delete;
  MemoryTaker& operator=(const MemoryTaker&) = delete;
  bool has_all();  // waits until it has taken all; false: it was killed
  void end();

 private:
  pid_t pid_ = -1;
  int ready_fd_ = -1;
};

}  // namespace kvcachefs::test
