#include "tier/disk/spill_superblock.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/checksum.h"

namespace kvcachefs::spill_superblock_test {

constexpr size_t kVersionAt = 16, kUnitAt = 20, kChecksumAt = 48, kNamedBytes = 64;
constexpr uint32_t kUnset = 77;

using Block = std::vector<std::byte>;

Block written(const Superblock& superblock, size_t bytes = kSuperblockBytes) {
  Block block(bytes, std::byte{0xee});
  write_superblock(superblock, block);
  return block;
}

const Superblock kSuperblock{uint64_t{64} << 10, 128, {std::byte{0xab}}};

struct Answer {
  SuperblockFound found;
  Superblock superblock;
  uint32_t version = kUnset;
};
Answer read(const Block& block) {
  Answer answer;
  answer.found = read_superblock(block, answer.superblock, answer.version);
  return answer;
}

// Changes a number of the block and gives the block the checksum that it then has.
Block with(size_t at, uint32_t number) {
  Block block = written(kSuperblock);
  std::memcpy(block.data() + at, &number, sizeof number);
  std::memset(block.data() + kChecksumAt, 0, 2 * sizeof(uint64_t));
  const Checksum checksum = checksum_of(std::span(block).first(kSuperblockBytes));
  std::memcpy(block.data() + kChecksumAt, &checksum.low, sizeof checksum.low);
  std::memcpy(block.data() + kChecksumAt + sizeof checksum.low, &checksum.high, sizeof checksum.high);
  return block;
}

TEST(SpillSuperblock, IsWrittenAsDocumented) {
  const Block block = written(kSuperblock, 2 * kSuperblockBytes);
  EXPECT_EQ(std::memcmp(block.data(), "kvcachefs-spill\n", 16), 0);
  EXPECT_EQ(block[kVersionAt], std::byte{1});
  EXPECT_EQ(block[kUnitAt + 2], std::byte{1});
  EXPECT_EQ(block[24], std::byte{128});
  EXPECT_EQ(block[32], std::byte{0xab});
  EXPECT_EQ(std::count(block.begin() + kNamedBytes, block.end(), std::byte{0}),
            static_cast<ptrdiff_t>(block.size() - kNamedBytes));
  const Answer answer = read(block);
  EXPECT_EQ(answer.found, SuperblockFound::kOurs);
  EXPECT_EQ(answer.superblock, kSuperblock);
  EXPECT_EQ(answer.version, kSuperblockVersion);
}

TEST(SpillSuperblock, AUuidHasItsUsualForm) {
  EXPECT_EQ(to_string(kSuperblock.uuid), "ab000000-0000-0000-0000-000000000000");
  Uuid uuid;
  for (size_t index = 0; index < uuid.size(); ++index) uuid[index] = static_cast<std::byte>(index * 16 + 1);
  EXPECT_EQ(to_string(uuid), "01112131-4151-6171-8191-a1b1c1d1e1f1");
}

TEST(SpillSuperblock, TheLargestNumbersComeBack) {
  Superblock largest{kMostUnitBytes, UINT64_MAX, {}};
  largest.uuid.fill(std::byte{0xff});
  EXPECT_EQ(read(written(largest)).superblock, largest);
  const Superblock least{kLeastUnitBytes, 0, {}};
  EXPECT_EQ(read(written(least)).superblock, least);
}

TEST(SpillSuperblock, EveryBitOfTheBlockCounts) {
  const Block whole = written(kSuperblock);
  for (size_t at = sizeof kSuperblockMagic; at < kSuperblockBytes; ++at) {
    if (at >= kVersionAt && at < kUnitAt) continue;  // another version
    Block block = whole;
    block[at] ^= std::byte{0x40};
    const Answer answer = read(block);
    ASSERT_EQ(answer.found, SuperblockFound::kDamaged) << at;
    ASSERT_EQ(answer.superblock, Superblock()) << at;
    ASSERT_EQ(answer.version, kSuperblockVersion) << at;
  }
}

TEST(SpillSuperblock, WhatLiesBeyondTheBlockDoesNotCount) {
  Block block = written(kSuperblock, 2 * kSuperblockBytes);
  block[kSuperblockBytes] = std::byte{1};
  EXPECT_EQ(read(block).found, SuperblockFound::kOurs);
}

TEST(SpillSuperblock, AnyOtherMagicIsNone) {
  for (size_t at = 0; at < sizeof kSuperblockMagic; ++at) {
    Block block = written(kSuperblock);
    block[at] ^= std::byte{1};
    const Answer answer = read(block);
    EXPECT_EQ(answer.found, SuperblockFound::kNone) << at;
    EXPECT_EQ(answer.version, kUnset) << "it says nothing of a version";
  }
  EXPECT_EQ(read(Block(kSuperblockBytes)).found, SuperblockFound::kNone);
}

TEST(SpillSuperblock, ANewerVersionIsKnownWithoutItsChecksum) {
  for (const uint32_t version : {kSuperblockVersion + 1, UINT32_MAX}) {
    Block block = with(kVersionAt, version);
    block[kChecksumAt] ^= std::byte{1};
    const Answer answer = read(block);
    EXPECT_EQ(answer.found, SuperblockFound::kNewer) << version;
    EXPECT_EQ(answer.version, version);
    EXPECT_EQ(answer.superblock, Superblock());
  }
}

TEST(SpillSuperblock, ThereWasNoVersion0) {
  EXPECT_EQ(read(with(kVersionAt, 0)).found, SuperblockFound::kDamaged);
  ASSERT_EQ(read(with(kVersionAt, kSuperblockVersion)).found, SuperblockFound::kOurs);
}

TEST(SpillSuperblock, UnitsThatCannotBeAreDamage) {
  for (const uint64_t bytes :
       {uint64_t{0}, kLeastUnitBytes / 2, kLeastUnitBytes + 512, kMostUnitBytes * 2, uint64_t{0x80000000}})
    EXPECT_EQ(read(with(kUnitAt, static_cast<uint32_t>(bytes))).found, SuperblockFound::kDamaged) << bytes;
  for (const uint64_t bytes : {kLeastUnitBytes, kMostUnitBytes})
    EXPECT_EQ(read(with(kUnitAt, static_cast<uint32_t>(bytes))).found, SuperblockFound::kOurs) << bytes;
}

TEST(SpillSuperblockDeathTest, IsNotWrittenWithUnitsThatCannotBe) {
  EXPECT_DEATH(written({.unit_bytes = 5000, .size_units = 1, .uuid = {}}), "check failed: is_sound");
  EXPECT_DEATH(written(kSuperblock, kSuperblockBytes - 1), "check failed: block.size");
}

}  // namespace kvcachefs::spill_superblock_test
