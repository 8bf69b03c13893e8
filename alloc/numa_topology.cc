#include "alloc/numa_topology.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <numa.h>
#include <numaif.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/key_value.h"
#include "base/sys.h"
#include "base/unique_fd.h"

namespace kvcachefs {
namespace {

// Free bytes are remembered because asking sysfs takes tens of microseconds a node, too much for every
// create.
constexpr uint64_t kFreeBytesAgeMaxMs = 100;

// The placed range is longer than any entry, so that an entry which outgrows its expected size stays on its
// node. A policy for the whole range costs as much as one for a page.
constexpr uint64_t kPlacedBytes = uint64_t{64} << 30;

uint64_t system_free_bytes(int node) {
  long long free_bytes = 0;
  if (numa_available() < 0 || numa_node_size64(node, &free_bytes) < 0) {
    return static_cast<uint64_t>(std::max(0L, sysconf(_SC_AVPHYS_PAGES))) *
           static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  }
  return static_cast<uint64_t>(std::max(0LL, free_bytes));
}

// The listed node nearest to a processor's own node, which may have no memory.
size_t nearest_listed(const std::vector<NumaNode>& nodes, int node) {
  size_t nearest = 0;
  for (size_t index = 0; index < nodes.size(); ++index) {
    if (nodes[index].id == node) return index;
    if (numa_distance(node, nodes[index].id) < numa_distance(node, nodes[nearest].id)) nearest = index;
  }
  return nearest;
}

std::vector<NumaNode> system_nodes() {
  std::vector<NumaNode> nodes;
  if (numa_available() < 0) return {NumaNode{}};
  for (int node = 0; node <= numa_max_node(); ++node) {
    if (numa_bitmask_isbitset(numa_all_nodes_ptr, static_cast<unsigned>(node))) nodes.push_back({.id = node});
  }
  if (nodes.empty()) return {NumaNode{}};
  for (int cpu = 0; cpu < numa_num_configured_cpus(); ++cpu) {
    const int node = numa_node_of_cpu(cpu);
    if (node >= 0) nodes[nearest_listed(nodes, node)].cpus.push_back(cpu);
  }
  for (NumaNode& from : nodes) {
    for (const NumaNode& to : nodes) from.distances.push_back(numa_distance(from.id, to.id));
  }
  return nodes;
}

}  // namespace

void NumaTopology::run_on(int node) const {
  if (node_count() > 1 && std::ranges::find(ids_, node) != ids_.end()) (void)numa_run_on_node(node);
}

std::unique_ptr<NumaTopology> NumaTopology::detect() {
  return std::make_unique<NumaTopology>(system_nodes(), system_free_bytes, kFreeBytesAgeMaxMs);
}

NumaTopology::NumaTopology(std::vector<NumaNode> nodes, FreeBytes free_bytes, uint64_t free_bytes_age_max_ms)
    : free_bytes_(std::move(free_bytes)),
      free_bytes_age_max_ms_(free_bytes_age_max_ms),
      remembered_(std::make_unique<Remembered[]>(nodes.size())) {
  KVCACHEFS_CHECK(!nodes.empty());
  for (const NumaNode& node : nodes) {
    ids_.push_back(node.id);
    for (const int cpu : node.cpus) {
      if (std::cmp_greater_equal(cpu, node_of_cpu_.size())) node_of_cpu_.resize(cpu + 1, nodes.front().id);
      node_of_cpu_[cpu] = node.id;
    }
  }
  for (size_t from = 0; from < nodes.size(); ++from) {
    const std::vector<int>& distances = nodes[from].distances;
    const auto distance = [&](size_t to) {
      if (to == from) return 0;
      return to < distances.size() ? distances[to] : INT32_MAX;
    };
    std::vector<size_t> order(nodes.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return std::pair(distance(a), a) < std::pair(distance(b), b); });
    std::vector<int>& ids = by_distance_.emplace_back();
    for (const size_t index : order) ids.push_back(nodes[index].id);
  }
}

size_t NumaTopology::index_of(int node) const {
  const auto found = std::find(ids_.begin(), ids_.end(), node);
  return found == ids_.end() ? 0 : static_cast<size_t>(found - ids_.begin());
}

int NumaTopology::node_of_cpu(int cpu) const {
  if (cpu < 0 || std::cmp_greater_equal(cpu, node_of_cpu_.size())) return ids_.front();
  return node_of_cpu_[cpu];
}

int NumaTopology::node_of_calling_thread() const {
  return ids_.size() == 1 ? ids_.front() : node_of_cpu(sched_getcpu());
}

int NumaTopology::node_of_thread(pid_t tid) const {
  if (ids_.size() == 1) return ids_.front();
  if (tid <= 0) return node_of_calling_thread();
  // The task's stat file is read, because the process's stat file adds up the times of all its threads.
  std::array<char, 64> path{};
  fmt::format_to_n(path.data(), path.size() - 1, "/proc/{}/task/{}/stat", tid, tid);
  const UniqueFd stat(::open(path.data(), O_RDONLY | O_CLOEXEC));
  std::array<char, 1024> line{};
  const ssize_t length = stat ? ::read(stat.get(), line.data(), line.size()) : 0;
  if (length <= 0) return node_of_calling_thread();
  constexpr int kProcessorField = 39;
  const auto cpu = number_in<int>(stat_field({line.data(), static_cast<size_t>(length)}, kProcessorField));
  return cpu ? node_of_cpu(*cpu) : node_of_calling_thread();
}

std::span<const int> NumaTopology::nodes_by_distance(int node) const {
  return by_distance_[index_of(node)];
}

uint64_t NumaTopology::free_bytes(int node) const {
  Remembered& remembered = remembered_[index_of(node)];
  const uint64_t now_ms = now_coarse_ms();
  const uint64_t asked_ms = remembered.asked_ms.load(std::memory_order_acquire);
  if (asked_ms != 0 && free_bytes_age_max_ms_ != 0 && now_ms - asked_ms <= free_bytes_age_max_ms_) {
    return remembered.free_bytes.load(std::memory_order_relaxed);
  }
  // Several threads may ask at once; each stores a fresh answer.
  const uint64_t answer = free_bytes_(node);
  remembered.free_bytes.store(answer, std::memory_order_relaxed);
  remembered.asked_ms.store(now_ms, std::memory_order_release);
  return answer;
}

int NumaTopology::node_with_room(int near, uint64_t bytes) const {
  if (ids_.size() == 1) return ids_.front();
  int roomiest = nodes_by_distance(near).front();
  uint64_t most_bytes = 0;
  for (const int node : nodes_by_distance(near)) {
    const uint64_t free = free_bytes(node);
    if (free >= bytes) return node;
    if (free > most_bytes) roomiest = node;
    most_bytes = std::max(most_bytes, free);
  }
  return roomiest;
}

Result<void> NumaTopology::place_file(int fd, int node) const {
  if (ids_.size() == 1) return {};
  // The policy of a shared mapping of a tmpfs file belongs to the file and outlives the mapping.
  void* mapping = ::mmap(nullptr, kPlacedBytes, PROT_NONE, MAP_SHARED, fd, 0);
  if (mapping == MAP_FAILED) return std::unexpected(sys::last_error("mmap to place a file"));
  bitmask* nodes = numa_allocate_nodemask();
  numa_bitmask_setbit(nodes, static_cast<unsigned>(node));
  Result<void> result;
  if (::mbind(mapping, kPlacedBytes, MPOL_PREFERRED, nodes->maskp, nodes->size + 1, 0) != 0) {
    result = std::unexpected(sys::last_error("mbind"));
  }
  numa_free_nodemask(nodes);
  ::munmap(mapping, kPlacedBytes);
  return result;
}

int NumaTopology::node_of_file(int fd) const {
  if (ids_.size() == 1) return ids_.front();
  void* mapping = ::mmap(nullptr, kPlacedBytes, PROT_NONE, MAP_SHARED, fd, 0);
  if (mapping == MAP_FAILED) return ids_.front();
  bitmask* nodes = numa_allocate_nodemask();
  int mode = 0;
  const bool known = ::get_mempolicy(&mode, nodes->maskp, nodes->size + 1, mapping, MPOL_F_ADDR) == 0 &&
                     mode == MPOL_PREFERRED;
  const auto placed = std::ranges::find_if(
      ids_, [&](int id) { return known && numa_bitmask_isbitset(nodes, static_cast<unsigned>(id)) != 0; });
  const int node = placed == ids_.end() ? ids_.front() : *placed;
  numa_free_nodemask(nodes);
  ::munmap(mapping, kPlacedBytes);
  return node;
}

}  // namespace kvcachefs
