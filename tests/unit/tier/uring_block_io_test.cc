#include "tier/disk/uring_block_io.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <thread>

#include "base/sys.h"
#include "base/sys_disk.h"
#include "tests/support/disks.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::uring_block_io_test {

using namespace std::chrono_literals;
using test::AlignedMemory;
using Kind = BlockRequest::Kind;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr size_t kBlock = 4096;

Result<std::unique_ptr<BlockDevice>> open_uring_device(const std::string& path) {
  auto fd = sys::open_at(AT_FDCWD, path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
  return fd ? uring_device_on(std::move(*fd), path) : Result<std::unique_ptr<BlockDevice>>(pass(fd));
}

std::unique_ptr<BlockDevice> opened(const std::string& path) {
  auto device = open_uring_device(path);
  if (!device) throw std::runtime_error(device.error().message);
  return std::move(*device);
}

std::unique_ptr<BlockChannel> channel_of(BlockDevice& device, unsigned depth) {
  auto channel = device.channel(depth);
  if (!channel) throw std::runtime_error(channel.error().message);
  return std::move(*channel);
}

// The completions of all requests in flight, or those that came within 30 s.
std::vector<BlockCompletion> drain(BlockChannel& channel) {
  std::vector<BlockCompletion> out;
  const auto deadline = std::chrono::steady_clock::now() + 30s;
  while (channel.in_flight() > 0 && std::chrono::steady_clock::now() < deadline) channel.reap(out, 100ms);
  return out;
}

class UringBlockIoTest : public testing::Test {
 protected:
  test::DiskDirectory directory_;
};

TEST_F(UringBlockIoTest, WhatIsWrittenIsReadBack) {
  const auto device = opened(directory_.make_file("disk", 8 * kMiB));
  EXPECT_EQ(device->size_bytes(), 8 * kMiB);
  EXPECT_GE(device->alignment_bytes(), 512u);
  AlignedMemory memory(2 * kMiB);
  memory.fill(7);
  EXPECT_EQ(test::write_blocks(*device, 4 * kMiB, memory.all()), 0);
  EXPECT_TRUE(device->flush());
  AlignedMemory back(2 * kMiB);
  EXPECT_EQ(test::read_blocks(*device, 4 * kMiB, back.all()), 0);
  EXPECT_TRUE(back.holds(7));
  // These bytes are allocated, but were never written.
  EXPECT_EQ(test::read_blocks(*device, 0, back.all()), 0);
  EXPECT_EQ(test::read_file(directory_ / "disk").substr(4 * kMiB, 2 * kMiB),
            std::string(reinterpret_cast<const char*>(memory.all().data()), 2 * kMiB));
}

// Spilling and promoting move bytes directly from and to the mapped pages of a tmpfs file.
TEST_F(UringBlockIoTest, MovesTheMappedPagesOfATmpfsFile) {
  const auto device = opened(directory_.make_file("disk", 4 * kMiB));
  test::File file(::memfd_create("pages", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(file.fd(), 2 * kMiB), 0);
  const test::Mapping mapping(file.fd(), 2 * kMiB, PROT_READ | PROT_WRITE, MAP_SHARED);
  ASSERT_TRUE(mapping.valid());
  const std::span<std::byte> pages(reinterpret_cast<std::byte*>(mapping.data()), 2 * kMiB);
  AlignedMemory memory(2 * kMiB);
  memory.fill(3);
  ASSERT_EQ(test::write_blocks(*device, kMiB, memory.all()), 0);
  EXPECT_EQ(test::read_blocks(*device, kMiB, pages), 0);
  EXPECT_EQ(std::memcmp(pages.data(), memory.all().data(), pages.size()), 0);
  pages[0] ^= std::byte{1};
  EXPECT_EQ(test::write_blocks(*device, 0, pages), 0);
}

TEST_F(UringBlockIoTest, MoreRequestsThanTheDepthAllComplete) {
  constexpr size_t kRequests = 500;
  const auto device = opened(directory_.make_file("disk", kRequests * kBlock));
  AlignedMemory memory(kRequests * kBlock);
  memory.fill(1);
  for (const unsigned depth : {1u, 3u, 64u, 1000u}) {
    const auto channel = channel_of(*device, depth);
    for (const Kind kind : {Kind::kWrite, Kind::kRead}) {
      if (kind == Kind::kRead) std::ranges::fill(memory.all(), std::byte{0});
      std::vector<BlockRequest> requests;
      for (size_t index = 0; index < kRequests; ++index)
        requests.push_back({kind, index * kBlock, memory.part(index * kBlock, kBlock), index});
      channel->submit(std::span(requests).first(kRequests / 2));
      channel->submit(std::span(requests).last(kRequests - kRequests / 2));
      EXPECT_EQ(channel->in_flight(), kRequests);
      std::set<uint64_t> tags;
      for (const BlockCompletion& completion : drain(*channel)) {
        EXPECT_EQ(completion.error, 0);
        EXPECT_TRUE(tags.insert(completion.tag).second);
      }
      EXPECT_EQ(tags.size(), kRequests);
      EXPECT_EQ(channel->in_flight(), 0u);
    }
    EXPECT_TRUE(memory.holds(1)) << depth;
  }
}

TEST_F(UringBlockIoTest, ReadPastTheEndIsEio) {
  const auto device = opened(directory_.make_file("disk", kMiB));
  AlignedMemory memory(2 * kBlock);
  EXPECT_EQ(test::read_blocks(*device, kMiB - kBlock, memory.all()), EIO);
  EXPECT_EQ(test::read_blocks(*device, kMiB, memory.all()), EIO);
  EXPECT_EQ(test::read_blocks(*device, uint64_t{0} - kBlock, memory.all()), EIO);
  EXPECT_EQ(test::write_blocks(*device, kMiB - kBlock, memory.all()), ENOSPC);
  EXPECT_EQ(std::filesystem::file_size(directory_ / "disk"), kMiB);
  EXPECT_EQ(test::read_blocks(*device, kMiB - 2 * kBlock, memory.all()), 0);
}

TEST_F(UringBlockIoTest, ReadOfAFileThatWasCutIsEio) {
  const auto device = opened(directory_.make_file("disk", kMiB));
  ASSERT_EQ(::truncate((directory_ / "disk").c_str(), kMiB / 2 + 100), 0);
  AlignedMemory memory(kMiB);
  EXPECT_EQ(test::read_blocks(*device, 0, memory.all()), EIO);
  EXPECT_EQ(test::read_blocks(*device, 0, memory.part(0, kMiB / 2)), 0);
}

TEST_F(UringBlockIoTest, ReapWaitsNoLongerThanAsked) {
  const auto device = opened(directory_.make_file("disk", kMiB));
  const auto channel = channel_of(*device, 4);
  std::vector<BlockCompletion> out;
  EXPECT_EQ(channel->reap(out, 0ms), 0u);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(channel->reap(out, 20ms), 0u);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 19ms);
}

TEST_F(UringBlockIoTest, WakeEndsAReapFromAnotherThread) {
  const auto device = opened(directory_.make_file("disk", kMiB));
  const auto channel = channel_of(*device, 4);
  for (int round = 0; round < 100; ++round) {
    std::jthread waker([&] { channel->wake(); });
    std::vector<BlockCompletion> out;
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(channel->reap(out, 30s), 0u);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 15s);
  }
}

TEST_F(UringBlockIoTest, SeveralWakesAreOne) {
  const auto device = opened(directory_.make_file("disk", kMiB));
  const auto channel = channel_of(*device, 4);
  std::vector<BlockCompletion> out;
  channel->reap(out, 1ms);
  for (int round = 0; round < 3; ++round) channel->wake();
  EXPECT_EQ(channel->reap(out, 30s), 0u);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(channel->reap(out, 20ms), 0u);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 19ms);
}

TEST_F(UringBlockIoTest, ChannelsOfSeveralThreadsDoNotMix) {
  constexpr unsigned kThreads = 4;
  const auto device = opened(directory_.make_file("disk", kThreads * 2 * kMiB));
  std::vector<std::jthread> threads;
  for (unsigned thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&device, thread] {
      const auto channel = channel_of(*device, 8);
      AlignedMemory memory(2 * kMiB);
      for (uint64_t round = 0; round < 20; ++round) {
        memory.fill(round * kThreads + thread);
        EXPECT_EQ(test::write_blocks(*channel, thread * 2 * kMiB, memory.all()), 0);
        const bool flushed = round % 5 != 0 || device->flush().has_value();
        EXPECT_TRUE(flushed);
        AlignedMemory back(2 * kMiB);
        EXPECT_EQ(test::read_blocks(*channel, thread * 2 * kMiB, back.all()), 0);
        EXPECT_TRUE(back.holds(round * kThreads + thread));
      }
    });
  }
}

// A channel may go from thread to thread. The kernel cancels the requests of a thread that ends, and the
// channel submits them again.
TEST_F(UringBlockIoTest, RequestsOutliveTheThreadThatSubmittedThem) {
  const auto device = opened(directory_.make_file("disk", 64 * kMiB));
  const auto channel = channel_of(*device, 4);
  AlignedMemory memory(64 * kMiB);
  for (int round = 0; round < 5; ++round) {
    std::jthread([&] {
      std::vector<BlockRequest> requests;
      for (size_t index = 0; index < 64; ++index)
        requests.push_back({Kind::kWrite, index * kMiB, memory.part(index * kMiB, kMiB), index});
      channel->submit(requests);
    }).join();
    const auto completions = drain(*channel);
    EXPECT_EQ(completions.size(), 64u);
    for (const BlockCompletion& completion : completions) EXPECT_EQ(completion.error, 0);
    std::jthread([&] { channel->wake(); }).join();
    std::vector<BlockCompletion> none;
    const auto begin = std::chrono::steady_clock::now();
    channel->reap(none, 30s);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 15s);
  }
}

TEST_F(UringBlockIoTest, ChannelMayGoWithRequestsInFlight) {
  const auto device = opened(directory_.make_file("disk", 64 * kMiB));
  for (int round = 0; round < 20; ++round) {
    AlignedMemory memory(16 * kMiB);
    const auto channel = channel_of(*device, 4);
    std::vector<BlockRequest> requests;
    for (size_t index = 0; index < 16; ++index)
      requests.push_back({Kind::kRead, index * kMiB, memory.part(index * kMiB, kMiB), index});
    channel->submit(requests);
    if (round % 2 == 0) channel->wake();
  }
}

TEST_F(UringBlockIoTest, WhatIsNoDiskIsNamed) {
  const auto character = uring_device_on(UniqueFd(::open("/dev/null", O_RDWR)), "/dev/null");
  ASSERT_FALSE(character);
  EXPECT_EQ(character.error().code, EINVAL);
  EXPECT_TRUE(character.error().message.contains("/dev/null"));
}

// The filter forbids io_uring as the default filter of a container does.
TEST_F(UringBlockIoTest, SaysThatIoUringIsNotPermitted) {
  const std::string path = directory_.make_file("disk", kMiB);
  for (const int code : {EPERM, ENOSYS}) {
    EXPECT_EQ(test::in_child([&] {
                std::array<sock_filter, 4> filter{
                    {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                     BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
                     BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(code)),
                     BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)}};
                sock_fprog program{filter.size(), filter.data()};
                if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return 2;
                if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) return 3;
                const auto device = open_uring_device(path);
                if (device || device.error().code != code) return 4;
                const std::string& message = device.error().message;
                return message.contains(path) && message.contains("io_uring") && message.contains("seccomp")
                           ? 0
                           : 5;
              }),
              0);
  }
}

TEST_F(UringBlockIoTest, LoopDevice) {
  KVCACHEFS_SKIP_IF(test::LoopDevice::available() ? "" : "root and loop devices");
  const test::LoopDevice loop(directory_.make_file("disk", 8 * kMiB));
  const auto device = opened(loop.path());
  EXPECT_EQ(device->size_bytes(), 8 * kMiB);
  AlignedMemory memory(kMiB);
  memory.fill(9);
  EXPECT_EQ(test::write_blocks(*device, 7 * kMiB, memory.all()), 0);
  EXPECT_TRUE(device->flush());
  AlignedMemory back(kMiB);
  EXPECT_EQ(test::read_blocks(*device, 7 * kMiB, back.all()), 0);
  EXPECT_TRUE(back.holds(9));
  EXPECT_EQ(test::read_blocks(*device, 8 * kMiB, back.all()), EIO);
}

// The directory imitates another machine's sysfs: partition below disk below controller.
TEST_F(UringBlockIoTest, NodeIsTheControllers) {
  namespace files = std::filesystem;
  const std::string controller = directory_ / "devices/pci0000:00/0000:00:05.0/nvme/nvme0";
  files::create_directories(controller + "/nvme0n1/nvme0n1p2");
  files::create_directories(directory_ / "devices/virtual/block/loop0");
  files::create_directories(directory_ / "dev/block");
  files::create_symlink(controller + "/nvme0n1/nvme0n1p2", directory_ / "dev/block/259:2");
  files::create_symlink(directory_ / "devices/virtual/block/loop0", directory_ / "dev/block/7:0");
  EXPECT_EQ(sys::disk_node(makedev(259, 2), directory_.path()), -1);
  test::write_file(directory_ / "devices/pci0000:00/0000:00:05.0/numa_node", "1\n");
  EXPECT_EQ(sys::disk_node(makedev(259, 2), directory_.path()), 1);
  test::write_file(controller + "/numa_node", "-1\n");
  EXPECT_EQ(sys::disk_node(makedev(259, 2), directory_.path()), 1);
  EXPECT_EQ(sys::disk_node(makedev(7, 0), directory_.path()), -1);
  EXPECT_EQ(sys::disk_node(makedev(8, 0), directory_.path()), -1);
}

}  // namespace kvcachefs::uring_block_io_test
