#include "alloc/numa_topology.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "base/unique_fd.h"

namespace kvcachefs::numa_topology_test {

std::vector<int> as_vector(std::span<const int> values) {
  return {values.begin(), values.end()};
}

// Two sockets of two processors each, and a memory-only node near the second; the ids have a gap.
class ThreeNodes : public testing::Test {
 protected:
  std::map<int, uint64_t> free_ = {{0, 100}, {1, 200}, {4, 300}};
  int asked_ = 0;
  NumaTopology topology_{{NumaNode{.id = 0, .cpus = {0, 2}, .distances = {10, 21, 24}},
                          NumaNode{.id = 1, .cpus = {1, 3}, .distances = {21, 10, 14}},
                          NumaNode{.id = 4, .cpus = {}, .distances = {24, 14, 10}}},
                         [this](int node) {
                           ++asked_;
                           return free_.at(node);
                         }};
};

TEST_F(ThreeNodes, ProcessorsBelongToNodes) {
  EXPECT_EQ(topology_.node_count(), 3u);
  EXPECT_EQ(as_vector(topology_.node_ids()), (std::vector<int>{0, 1, 4}));
  EXPECT_EQ(topology_.node_of_cpu(0), 0);
  EXPECT_EQ(topology_.node_of_cpu(1), 1);
  EXPECT_EQ(topology_.node_of_cpu(2), 0);
  EXPECT_EQ(topology_.node_of_cpu(3), 1);
}

TEST_F(ThreeNodes, UnknownProcessorsBelongToTheFirstNode) {
  EXPECT_EQ(topology_.node_of_cpu(-1), 0);
  EXPECT_EQ(topology_.node_of_cpu(4), 0);
}

TEST_F(ThreeNodes, NodesAreOrderedByDistance) {
  EXPECT_EQ(as_vector(topology_.nodes_by_distance(0)), (std::vector<int>{0, 1, 4}));
  EXPECT_EQ(as_vector(topology_.nodes_by_distance(1)), (std::vector<int>{1, 4, 0}));
  EXPECT_EQ(as_vector(topology_.nodes_by_distance(4)), (std::vector<int>{4, 1, 0}));
}

TEST_F(ThreeNodes, RoomIsSoughtNearby) {
  EXPECT_EQ(topology_.node_with_room(0, 100), 0);
  EXPECT_EQ(topology_.node_with_room(0, 101), 1);
  EXPECT_EQ(topology_.node_with_room(0, 201), 4);
  EXPECT_EQ(topology_.node_with_room(1, 201), 4);
}

TEST_F(ThreeNodes, WhereNoNodeHasTheRoomTheRoomiestIsTaken) {
  EXPECT_EQ(topology_.node_with_room(0, 301), 4);
  free_[1] = 300;
  EXPECT_EQ(topology_.node_with_room(0, 301), 1);  // the nearer of two
  EXPECT_EQ(topology_.node_with_room(4, 301), 4);
  free_ = {{0, 0}, {1, 0}, {4, 0}};
  EXPECT_EQ(topology_.node_with_room(1, 1), 1);
}

TEST_F(ThreeNodes, FreeBytesAreAskedForEachTimeUnlessRemembered) {
  EXPECT_EQ(topology_.free_bytes(4), 300u);
  free_[4] = 5;
  EXPECT_EQ(topology_.free_bytes(4), 5u);
  EXPECT_EQ(asked_, 2);
}

TEST(NumaTopology, FreeBytesAreRememberedForAWhile) {
  int asked = 0;
  const NumaTopology topology(
      {NumaNode{}},
      [&asked](int) {
        ++asked;
        return uint64_t{7};
      },
      3'600'000);
  EXPECT_EQ(topology.free_bytes(0), 7u);
  EXPECT_EQ(topology.free_bytes(0), 7u);
  EXPECT_EQ(asked, 1);
}

TEST(NumaTopology, OneNodeLeavesNoChoice) {
  const NumaTopology topology({NumaNode{.id = 3}}, [](int) { return uint64_t{0}; });
  EXPECT_EQ(topology.node_of_calling_thread(), 3);
  EXPECT_EQ(topology.node_of_thread(1), 3);
  EXPECT_EQ(topology.node_with_room(3, 1000), 3);
  EXPECT_TRUE(topology.place_file(-1, 3).has_value());
}

TEST(NumaTopology, ThisMachineHasNodes) {
  const std::unique_ptr<NumaTopology> topology = NumaTopology::detect();
  ASSERT_GE(topology->node_count(), 1u);
  const std::vector<int> ids = as_vector(topology->node_ids());
  for (const int node : ids) {
    EXPECT_EQ(topology->nodes_by_distance(node).size(), ids.size());
    EXPECT_EQ(topology->nodes_by_distance(node).front(), node);
  }
  EXPECT_TRUE(std::ranges::count(ids, topology->node_of_calling_thread()) == 1);
  EXPECT_TRUE(std::ranges::count(ids, topology->node_of_thread(gettid())) == 1);
  uint64_t free_bytes = 0;
  for (const int node : ids) free_bytes += topology->free_bytes(node);
  EXPECT_GT(free_bytes, 0u);
}

TEST(NumaTopology, AThreadIsFoundByProc) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  // Every processor is one node, so that the node tells which processor was read.
  std::vector<NumaNode> nodes;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) nodes.push_back({.id = cpu, .cpus = {cpu}});
  }
  const int last = nodes.back().id;
  const NumaTopology topology(nodes, [](int) { return uint64_t{0}; });
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(last, &only);
  ASSERT_EQ(sched_setaffinity(0, sizeof only, &only), 0);
  EXPECT_EQ(topology.node_of_thread(gettid()), last);
  EXPECT_EQ(topology.node_of_calling_thread(), last);
  EXPECT_EQ(topology.node_of_thread(0), last);
  EXPECT_EQ(topology.node_of_thread(0x7fffffff), last);  // no such thread
  ASSERT_EQ(sched_setaffinity(0, sizeof allowed, &allowed), 0);
}

TEST(NumaTopology, AFileIsPlacedWhereTheSystemHasTheNode) {
  const NumaTopology topology(
      {NumaNode{.id = 0, .distances = {10, 20}}, NumaNode{.id = 1000, .distances = {20, 10}}},
      [](int) { return uint64_t{0}; });
  const UniqueFd file(memfd_create("placed", MFD_CLOEXEC));
  ASSERT_TRUE(file);
  EXPECT_TRUE(topology.place_file(file.get(), 0).has_value());
  EXPECT_FALSE(topology.place_file(file.get(), 1000).has_value());
  EXPECT_FALSE(topology.place_file(-1, 0).has_value());
}

}  // namespace kvcachefs::numa_topology_test
