#include "base/host_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace kvcachefs {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// A directory like /proc, with hierarchies of cgroups beside it.
class HostMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/kv-host-memory-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    root_ = name;
    write("proc/meminfo", "MemTotal:     1024 kB\nMemFree:      12 kB\nMemAvailable:     512 kB\n");
    write("proc/self/cgroup", "");
    write("proc/self/mountinfo", "");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void mount_unified(const std::string& shown = "/") {
    write("proc/self/mountinfo",
          "30 20 0:27 " + shown + " " + (root_ / "v2").native() + " rw - cgroup2 cgroup2 rw\n");
  }
  void limit(const std::string& group, const std::string& most, const std::string& now,
             const std::string& stat = "") {
    write("v2" + group + "/memory.max", most);
    write("v2" + group + "/memory.current", now);
    write("v2" + group + "/memory.stat", stat);
  }
  HostMemory read() const { return HostMemoryReader((root_ / "proc").native()).read(); }

  std::filesystem::path root_;
};

TEST_F(HostMemoryTest, OfTheMachine) {
  EXPECT_EQ(read().total_bytes, kMiB);
  EXPECT_EQ(read().available_bytes, kMiB / 2);
}

TEST_F(HostMemoryTest, WhatCannotBeReadLimitsNothing) {
  const HostMemory memory = HostMemoryReader("/nowhere").read();
  EXPECT_GT(memory.total_bytes, 0u);
  EXPECT_EQ(memory.available_bytes, memory.total_bytes);
  write("proc/self/cgroup", "0::/a\n");
  mount_unified();
  EXPECT_EQ(read().total_bytes, kMiB);
  limit("/a", "x", "y");
  EXPECT_EQ(read().total_bytes, kMiB);
}

TEST_F(HostMemoryTest, TheLeastOfAllGroupsAboveTheProcess) {
  write("proc/self/cgroup", "0::/a/b\n");
  mount_unified();
  limit("/a/b", "max\n", "1000\n");
  EXPECT_EQ(read().total_bytes, kMiB);
  limit("/a", "800000\n", "700000\n",
        "anon 5\ninactive_file 60000\nactive_file 7000\nslab_reclaimable 800\n");
  EXPECT_EQ(read().total_bytes, 800'000u);
  EXPECT_EQ(read().available_bytes, 100'000u + 67'800u);
  // Another process of the group above has used up what the process's own still has.
  limit("/a/b", "300000\n", "1000\n");
  EXPECT_EQ(read().total_bytes, 300'000u);
  EXPECT_EQ(read().available_bytes, 167'800u);
  write("v2/a/b/memory.high", "2000\n");
  EXPECT_EQ(read().total_bytes, 2000u);
  EXPECT_EQ(read().available_bytes, 1000u);
  limit("/a", "800000\n", "900000\n");
  EXPECT_EQ(read().available_bytes, 0u);
}

TEST_F(HostMemoryTest, OfCgroupsOne) {
  write("proc/self/cgroup", "4:cpu,memory:/docker/x\n0::/\n");
  write("proc/self/mountinfo",
        "31 20 0:28 /docker/x " + (root_ / "v1").native() + " rw - cgroup cgroup rw,cpu,memory\n");
  write("v1/memory.limit_in_bytes", "500000\n");
  write("v1/memory.usage_in_bytes", "400000\n");
  write("v1/memory.stat", "inactive_file 1\ntotal_inactive_file 5000\ntotal_active_file 600\n");
  EXPECT_EQ(read().total_bytes, 500'000u);
  EXPECT_EQ(read().available_bytes, 105'600u);
  write("v1/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(read().total_bytes, kMiB);
  EXPECT_EQ(read().available_bytes, kMiB / 2);
}

// In a container the paths are those that its namespaces show, and the mount may show the container's group
// alone.
TEST_F(HostMemoryTest, InAContainer) {
  limit("", "300000\n", "1000\n");
  for (const auto& [path, shown] :
       {std::pair("/", "/"), {"/kube/pod", "/kube/pod"}, {"/../other", "/"}, {"/x", "/kube/pod"}}) {
    write("proc/self/cgroup", "0::" + std::string(path) + "\n");
    mount_unified(shown);
    EXPECT_EQ(read().total_bytes, 300'000u) << path;
  }
}

TEST_F(HostMemoryTest, OfThisProcess) {
  const HostMemory memory = HostMemoryReader().read();
  EXPECT_EQ(memory.total_bytes, usable_memory_bytes());
  EXPECT_GT(memory.available_bytes, 0u);
  EXPECT_LE(memory.available_bytes, memory.total_bytes);
}

}  // namespace
}  // namespace kvcachefs
