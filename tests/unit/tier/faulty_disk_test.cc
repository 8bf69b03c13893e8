// FaultyDisk, on which other tests rest, must keep its promises, and must harm a careless user as it may.
#include "tests/support/faulty_disk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "tests/support/disks.h"

namespace kvcachefs::test::faulty_disk_test {

using namespace std::chrono_literals;
using Kind = BlockRequest::Kind;

constexpr uint64_t kBlock = 4096;
constexpr uint64_t kSector = 512;
constexpr uint64_t kDiskBytes = uint64_t{1} << 20;

std::unique_ptr<BlockChannel> channel_of(FaultyDisk& disk, unsigned depth) {
  return std::move(*disk.channel(depth));
}

bool holds(const FaultyDisk& disk, uint64_t offset, uint64_t seed) {
  AlignedMemory back(kBlock);
  disk.peek(offset, back.all());
  return back.holds(seed);
}

int store(FaultyDisk& disk, uint64_t offset, uint64_t seed) {
  AlignedMemory memory(kBlock);
  memory.fill(seed);
  return write_blocks(disk, offset, memory.all());
}

// The scenario writes blocks 0..15 twice, in batches, and flushes after each time.
struct Scenario {
  static constexpr uint64_t kBlocks = 16;
  uint64_t durable_seed = 0;  // the seed of what all blocks hold after any crash; 0: nothing promised
  uint64_t begun_seed = 0;

  void run(FaultyDisk& disk) {
    const auto channel = channel_of(disk, 4);
    AlignedMemory memory(kBlocks * kBlock);
    for (const uint64_t seed : {100u, 200u}) {
      begun_seed = seed;
      std::vector<BlockRequest> requests;
      for (uint64_t block = 0; block < kBlocks; ++block) {
        AlignedMemory content(kBlock);
        content.fill(seed + block);
        std::ranges::copy(content.all(), memory.part(block * kBlock, kBlock).begin());
        requests.push_back({Kind::kWrite, block * kBlock, memory.part(block * kBlock, kBlock), block});
      }
      channel->submit(requests);
      std::vector<BlockCompletion> out;
      while (channel->in_flight() > 0) channel->reap(out, 1s);
      if (std::ranges::any_of(out, [](const BlockCompletion& completion) { return completion.error != 0; }))
        return;
      if (!disk.flush()) return;
      durable_seed = seed;
    }
  }
};

std::vector<std::byte> image_of(const FaultyDisk& disk) {
  std::vector<std::byte> image(disk.size_bytes());
  disk.peek(0, image);
  return image;
}

TEST(FaultyDiskTest, AFaultlessDiskKeepsAll) {
  FaultyDisk disk({.size_bytes = kDiskBytes});
  EXPECT_EQ(store(disk, 3 * kBlock, 5), 0);
  AlignedMemory back(2 * kBlock);
  EXPECT_EQ(read_blocks(disk, 3 * kBlock, back.all()), 0);
  EXPECT_TRUE(holds(disk, 3 * kBlock, 5));
  EXPECT_TRUE(
      std::ranges::all_of(back.part(kBlock, kBlock), [](std::byte byte) { return byte == std::byte{0}; }));
  EXPECT_EQ(read_blocks(disk, kDiskBytes, back.all()), EIO);
  EXPECT_EQ(write_blocks(disk, kDiskBytes - kBlock, back.all()), ENOSPC);
}

TEST(FaultyDiskTest, ALargeDiskCostsOnlyWhatIsWritten) {
  FaultyDisk disk({.size_bytes = uint64_t{1} << 40});
  EXPECT_EQ(store(disk, (uint64_t{1} << 40) - kBlock, 5), 0);
  EXPECT_TRUE(disk.flush());
  EXPECT_EQ(disk.pages(), 1u);
  EXPECT_TRUE(holds(disk, (uint64_t{1} << 40) - kBlock, 5));
}

// The disk dies at every write and flush, with several seeds: flushed bytes are there, and no bytes are there
// that were never written.
TEST(FaultyDiskTest, WhatWasFlushedSurvivesACrashAnywhere) {
  FaultyDisk whole({.size_bytes = kDiskBytes});
  Scenario().run(whole);
  const uint64_t operations = whole.operations();
  EXPECT_EQ(operations, 2 * Scenario::kBlocks + 2);
  uint64_t lost = 0, torn = 0, kept = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (uint64_t k = 1; k <= operations; ++k) {
      FaultyDisk disk({.size_bytes = kDiskBytes, .seed = seed});
      disk.crash(k);
      Scenario scenario;
      scenario.run(disk);
      ASSERT_TRUE(disk.crashed());
      ASSERT_EQ(store(disk, 0, 1), EIO);
      disk.restart();
      ASSERT_FALSE(disk.crashed());
      for (uint64_t block = 0; block < Scenario::kBlocks; ++block) {
        AlignedMemory before(kBlock), after(kBlock), found(kBlock);
        if (scenario.durable_seed != 0) before.fill(scenario.durable_seed + block);
        after.fill(scenario.begun_seed + block);
        disk.peek(block * kBlock, found.all());
        uint64_t news = 0;
        for (uint64_t at = 0; at < kBlock; at += kSector) {
          const bool is_new = std::ranges::equal(found.part(at, kSector), after.part(at, kSector));
          ASSERT_TRUE(is_new || std::ranges::equal(found.part(at, kSector), before.part(at, kSector)));
          news += is_new ? 1 : 0;
        }
        ++(news == 0 ? lost : news == kBlock / kSector ? kept : torn);
      }
    }
  }
  EXPECT_GT(lost, 1000u);
  EXPECT_GT(torn, 1000u);
  EXPECT_GT(kept, 1000u);
}

TEST(FaultyDiskTest, ASeedReplays) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<std::vector<std::byte>> images;
    for (int run = 0; run < 2; ++run) {
      FaultyDisk disk({.size_bytes = kDiskBytes, .seed = seed, .odds = {.write_error = 40, .misdirect = 20}});
      disk.crash(1 + seed % 34);
      Scenario().run(disk);
      disk.restart();
      images.push_back(image_of(disk));
    }
    EXPECT_EQ(images[0], images[1]) << seed;
  }
}

TEST(FaultyDiskTest, WritesOfOneSectorMaySurviveInAnyOrder) {
  uint64_t older = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    FaultyDisk disk({.size_bytes = kDiskBytes, .seed = seed});
    EXPECT_EQ(store(disk, 0, 1), 0);
    EXPECT_EQ(store(disk, 0, 2), 0);
    EXPECT_TRUE(holds(disk, 0, 2));
    disk.restart();
    older += holds(disk, 0, 1) ? 1 : 0;
  }
  EXPECT_GT(older, 5u);
}

TEST(FaultyDiskTest, SurvivalCanBeChosen) {
  for (const Survival survival : {Survival::kNone, Survival::kAll}) {
    FaultyDisk disk({.size_bytes = kDiskBytes});
    EXPECT_EQ(store(disk, 0, 1), 0);
    EXPECT_TRUE(disk.flush());
    EXPECT_EQ(store(disk, 0, 2), 0);
    disk.crash(0, survival);
    disk.restart();
    EXPECT_TRUE(holds(disk, 0, survival == Survival::kAll ? 2 : 1));
  }
}

// A write that was submitted and not reaped may survive a crash, but a flush does not make it durable.
TEST(FaultyDiskTest, AFlushDoesNotWaitForWhatIsInFlight) {
  FaultyDisk disk({.size_bytes = kDiskBytes});
  disk.hold();
  const auto channel = channel_of(disk, 1);
  AlignedMemory memory(kBlock);
  memory.fill(1);
  const BlockRequest request{Kind::kWrite, 0, memory.all(), 0};
  channel->submit({&request, 1});
  EXPECT_TRUE(disk.flush());
  disk.crash(0, Survival::kNone);
  std::vector<BlockCompletion> out;
  EXPECT_EQ(channel->reap(out, 10s), 1u);
  EXPECT_EQ(out.at(0).error, EIO);
  disk.restart();
  EXPECT_FALSE(holds(disk, 0, 1));
}

TEST(FaultyDiskTest, AFlushThatFailedHelpsNoMore) {
  uint64_t lost = 0, kept = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    FaultyDisk disk({.size_bytes = kDiskBytes, .seed = seed});
    EXPECT_EQ(store(disk, 0, 1), 0);
    EXPECT_EQ(store(disk, kBlock, 2), 0);
    disk.fail_flushes(1);
    EXPECT_FALSE(disk.flush());
    EXPECT_EQ(store(disk, kBlock, 3), 0);
    EXPECT_TRUE(disk.flush());
    EXPECT_TRUE(holds(disk, 0, 1));
    disk.crash(0, Survival::kAll);
    disk.restart();
    ++(holds(disk, 0, 1) ? kept : lost);
    EXPECT_TRUE(holds(disk, kBlock, 3));
  }
  EXPECT_GT(lost, 10u);
  EXPECT_GT(kept, 10u);
}

TEST(FaultyDiskTest, ErrorsComeWhereTheyArePlanned) {
  FaultyDisk disk({.size_bytes = kDiskBytes});
  AlignedMemory memory(kBlock);
  disk.fail_writes(1);
  EXPECT_EQ(store(disk, 0, 1), EIO);
  EXPECT_EQ(store(disk, 0, 1), 0);
  disk.set_full(true);
  EXPECT_EQ(store(disk, 0, 2), ENOSPC);
  EXPECT_TRUE(holds(disk, 0, 1));
  disk.set_full(false);
  disk.fail_place(kSector, kSector);
  EXPECT_EQ(read_blocks(disk, 0, memory.all()), EIO);
  EXPECT_EQ(read_blocks(disk, kBlock, memory.all()), 0);
  EXPECT_EQ(store(disk, 0, 3), 0);
  EXPECT_EQ(read_blocks(disk, 0, memory.all()), 0);
  disk.fail_reads(1, ETIMEDOUT);
  EXPECT_EQ(read_blocks(disk, 0, memory.all()), ETIMEDOUT);
  EXPECT_EQ(disk.counts().errors, 4u);
}

TEST(FaultyDiskTest, RotAndMisdirectionAreNotReported) {
  FaultyDisk disk({.size_bytes = kDiskBytes});
  EXPECT_EQ(store(disk, 0, 1), 0);
  EXPECT_TRUE(disk.flush());
  disk.rot(0, kBlock);
  AlignedMemory memory(kBlock);
  EXPECT_EQ(read_blocks(disk, 0, memory.all()), 0);
  EXPECT_FALSE(memory.holds(1));
  disk.restart();
  EXPECT_FALSE(holds(disk, 0, 1));
  disk.misdirect_writes(1);
  EXPECT_EQ(store(disk, 0, 4), 0);
  uint64_t places = 0;
  for (uint64_t at = 0; at < kDiskBytes; at += kBlock) places += holds(disk, at, 4) ? 1 : 0;
  EXPECT_EQ(places, 1u);
  EXPECT_EQ(disk.counts().misdirected, 1u);
}

TEST(FaultyDiskTest, CompletionsAreHeldBackUntilReleased) {
  FaultyDisk disk({.size_bytes = kDiskBytes});
  const auto channel = channel_of(disk, 2);
  disk.hold();
  AlignedMemory memory(4 * kBlock);
  std::vector<BlockRequest> requests;
  for (uint64_t block = 0; block < 4; ++block)
    requests.push_back({Kind::kRead, block * kBlock, memory.part(block * kBlock, kBlock), block});
  channel->submit(requests);
  std::vector<BlockCompletion> out;
  EXPECT_EQ(channel->reap(out, 1ms), 0u);
  EXPECT_EQ(channel->in_flight(), 4u);
  EXPECT_NE(memory.all()[0], std::byte{0});  // still rubbish
  disk.release(1);
  EXPECT_EQ(channel->reap(out, 10s), 1u);
  EXPECT_EQ(channel->reap(out, 1ms), 0u);
  std::jthread releaser([&] { disk.release_all(); });
  while (channel->in_flight() > 0) channel->reap(out, 10s);
  EXPECT_EQ(out.size(), 4u);
  EXPECT_EQ(memory.all()[0], std::byte{0});
  EXPECT_EQ(disk.counts().most_at_once, 2u);
}

TEST(FaultyDiskTest, WakeEndsAReap) {
  FaultyDisk disk({.size_bytes = kDiskBytes});
  const auto channel = channel_of(disk, 1);
  std::vector<BlockCompletion> out;
  std::jthread waker([&] { channel->wake(); });
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(channel->reap(out, 30s), 0u);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 15s);
}

TEST(FaultyDiskTest, AChannelThatGoesEndsItsRequests) {
  FaultyDisk disk({.size_bytes = kDiskBytes});
  AlignedMemory memory(kBlock);
  memory.fill(1);
  disk.hold();
  {
    const auto channel = channel_of(disk, 1);
    const BlockRequest request{Kind::kWrite, 0, memory.all(), 0};
    channel->submit({&request, 1});
  }
  EXPECT_TRUE(holds(disk, 0, 1));
}

TEST(FaultyDiskTest, ThreadsHaveChannelsOfTheirOwn) {
  FaultyDisk disk({.size_bytes = kDiskBytes});
  std::vector<std::jthread> threads;
  for (uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&disk, thread] {
      for (uint64_t round = 0; round < 200; ++round) {
        EXPECT_EQ(store(disk, thread * kBlock, round * 4 + thread), 0);
        EXPECT_TRUE(disk.flush());
        EXPECT_TRUE(holds(disk, thread * kBlock, round * 4 + thread));
      }
    });
  }
}

}  // namespace kvcachefs::test::faulty_disk_test
