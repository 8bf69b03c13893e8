// The first unit of a spill device or file, by which the disk is recognised. Pure functions; any thread.
// Failure: only the results of read_superblock().
//
// The block, little-endian; bytes not named here are zero:
//     0  16 bytes  kSuperblockMagic
//    16  u32       kSuperblockVersion
//    20  u32       bytes of a unit, a power of two from kLeastUnitBytes to kMostUnitBytes
//    24  u64       units of the whole, this one too
//    32  16 bytes  UUID (RFC 9562, version 4) that the pool's catalog names too
//    48  16 bytes  XXH3-128 (low half, high half) of the block's kSuperblockBytes with zeros in this place
// Every later change lies in the first 512 bytes, which a disk writes whole or not at all.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvcachefs {

constexpr size_t kSuperblockBytes = 4096;
constexpr std::array<char, 16> kSuperblockMagic = {'k', 'v', 'c', 'a', 'c', 'h', 'e', 'f',
                                                   's', '-', 's', 'p', 'i', 'l', 'l', '\n'};
constexpr uint32_t kSuperblockVersion = 1;
constexpr uint64_t kLeastUnitBytes = 4096;
constexpr uint64_t kMostUnitBytes = uint64_t{4} << 20;

using Uuid = std::array<std::byte, 16>;
std::string to_string(const Uuid& uuid);  // 8-4-4-4-12 hexadecimal digits

struct Superblock {
  uint64_t unit_bytes = 0;
  uint64_t size_units = 0;
  Uuid uuid{};
  bool operator==(const Superblock&) const = default;
};

// `block` has kSuperblockBytes or more.
void write_superblock(const Superblock& superblock, std::span<std::byte> block);

enum class SuperblockFound { kNone, kOurs, kNewer, kDamaged };
// read_superblock() sets `superblock` if the answer is kOurs, and `version` unless it is kNone.
SuperblockFound read_superblock(std::span<const std::byte> block, Superblock& superblock, uint32_t& version);

}  // namespace kvcachefs
