// The machine's memory nodes: which one a thread runs on, how far they are apart, how much is free, and the
// placing of a file's future pages on one of them.
// Thread safety: any thread; constant after construction but for the remembered free bytes (atomic).
// Failure: what the system does not tell counts as one node 0; only a placement can fail.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace kvcachefs {

struct NumaNode {
  int id = 0;
  std::vector<int> cpus = {};
  // To each node, in the order in which the topology is given its nodes.
  std::vector<int> distances = {};
};

class NumaTopology {
 public:
  using FreeBytes = std::function<uint64_t(int node)>;

  // Of this machine, by libnuma.
  static std::unique_ptr<NumaTopology> detect();

  // Another machine's, for tests. Free bytes are asked for again when they are older than the given age.
  NumaTopology(std::vector<NumaNode> nodes, FreeBytes free_bytes, uint64_t free_bytes_age_max_ms = 0);

  size_t node_count() const { return ids_.size(); }
  std::span<const int> node_ids() const { return ids_; }

  // The first node for a processor that is not known.
  int node_of_cpu(int cpu) const;
  int node_of_calling_thread() const;
  // Of another process's thread, by /proc; the calling thread's if that one is gone or hidden (tid 0).
  int node_of_thread(pid_t tid) const;

  // All nodes, the nearest first: the node itself, unless it is not known.
  std::span<const int> nodes_by_distance(int node) const;

  uint64_t free_bytes(int node) const;

  // The nearest node to `near` with that much free; if none has, the one with the most: what prefers a full
  // node gets no huge pages anywhere.
  int node_with_room(int near, uint64_t bytes) const;

  // Asks the kernel to put the pages that the file gets from now on on the node, while that has room, whoever
  // writes them. Needs a readable fd. Does nothing where there is one node.
  Result<void> place_file(int fd, int node) const;
  // Where place_file() asked for; the first node for a file that was never placed.
  int node_of_file(int fd) const;
  // The calling thread runs on the node's processors from now on, where there are several nodes.
  void run_on(int node) const;

 private:
  struct Remembered {
    std::atomic<uint64_t> free_bytes{0};
    std::atomic<uint64_t> asked_ms{0};
  };

  size_t index_of(int node) const;

  std::vector<int> ids_;
  std::vector<std::vector<int>> by_distance_;
  std::vector<int> node_of_cpu_;
  FreeBytes free_bytes_;
  uint64_t free_bytes_age_max_ms_;
  std::unique_ptr<Remembered[]> remembered_;
};

// The processor field of a /proc stat line; -1 if the line is not one. The command name in it may hold
// anything.
int processor_of_stat_line(std::string_view line);

}  // namespace kvcachefs
