// The machine's memory nodes: the node that a thread runs on, the nodes' distances, their free memory, and
// the placing of a file's future pages on a node. Thread safety: any thread; constant after construction
// except for the remembered free bytes (atomic). Failure: a machine that does not tell its topology counts as
// one node 0; only a placement can fail.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"

namespace kvcachefs {

struct NumaNode {
  int id = 0;
  std::vector<int> cpus = {};
  // The distance to each node, in the order in which the topology gets its nodes.
  std::vector<int> distances = {};
};

class NumaTopology {
 public:
  using FreeBytes = std::function<uint64_t(int node)>;

  // The topology of this machine, by libnuma.
  static std::unique_ptr<NumaTopology> detect();

  // The topology of another machine, for tests. Remembered free bytes older than the given age are asked for
  // again.
  NumaTopology(std::vector<NumaNode> nodes, FreeBytes free_bytes, uint64_t free_bytes_age_max_ms = 0);

  size_t node_count() const { return ids_.size(); }
  std::span<const int> node_ids() const { return ids_; }

  // An unknown processor counts as the first node's.
  int node_of_cpu(int cpu) const;
  int node_of_calling_thread() const;
  // The node of another process's thread, by /proc. If that thread is gone or hidden (tid 0), the node of the
  // calling thread.
  int node_of_thread(pid_t tid) const;

  // All nodes, the nearest first. The list begins with `node` itself if that is known, else it is the first
  // node's.
  std::span<const int> nodes_by_distance(int node) const;

  uint64_t free_bytes(int node) const;

  // The nearest node to `near` with that much free; if none has, the node with the most free, because a file
  // that prefers a full node gets no huge pages anywhere.
  int node_with_room(int near, uint64_t bytes) const;

  // place_file() asks the kernel to place the file's future pages on the node while that has room, whichever
  // process writes them. Needs a readable fd. Does nothing on a machine with one node.
  Result<void> place_file(int fd, int node) const;
  // The node that place_file() asked for; the first node for a file that was never placed.
  int node_of_file(int fd) const;
  // run_on() makes the calling thread run on the node's processors from now on; nothing changes on a machine
  // with one node.
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

}  // namespace kvcachefs
