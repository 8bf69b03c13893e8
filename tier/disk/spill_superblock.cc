#include "tier/disk/spill_superblock.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/checksum.h"

namespace kvcachefs {
namespace {

struct Raw {
  std::array<char, 16> magic{};
  uint32_t version = 0;
  uint32_t unit_bytes = 0;
  uint64_t size_units = 0;
  Uuid uuid{};
  uint64_t checksum_low = 0;
  uint64_t checksum_high = 0;
};
static_assert(sizeof(Raw) == 64 && offsetof(Raw, uuid) == 32 && offsetof(Raw, checksum_low) == 48);
static_assert(std::endian::native == std::endian::little);

Checksum checksum_without_itself(std::span<const std::byte> block) {
  std::array<std::byte, kSuperblockBytes> copy{};
  std::memcpy(copy.data(), block.data(), copy.size());
  std::memset(copy.data() + offsetof(Raw, checksum_low), 0, 2 * sizeof(uint64_t));
  return checksum_of(copy);
}

bool is_sound(const Raw& raw) {
  return std::has_single_bit(raw.unit_bytes) && raw.unit_bytes >= kLeastUnitBytes &&
         raw.unit_bytes <= kMostUnitBytes;
}

}  // namespace

std::string to_string(const Uuid& uuid) {
  std::string text;
  for (size_t index = 0; index < uuid.size(); ++index) {
    if (index == 4 || index == 6 || index == 8 || index == 10) text += '-';
    text += fmt::format("{:02x}", std::to_integer<unsigned>(uuid[index]));
  }
  return text;
}

void write_superblock(const Superblock& superblock, std::span<std::byte> block) {
  KVCACHEFS_CHECK(block.size() >= kSuperblockBytes);
  std::memset(block.data(), 0, block.size());
  Raw raw{kSuperblockMagic,
          kSuperblockVersion,
          static_cast<uint32_t>(superblock.unit_bytes),
          superblock.size_units,
          superblock.uuid,
          0,
          0};
  KVCACHEFS_CHECK(is_sound(raw));
  std::memcpy(block.data(), &raw, sizeof raw);
  const Checksum checksum = checksum_without_itself(block);
  raw.checksum_low = checksum.low;
  raw.checksum_high = checksum.high;
  std::memcpy(block.data(), &raw, sizeof raw);
}

SuperblockFound read_superblock(std::span<const std::byte> block, Superblock& superblock, uint32_t& version) {
  KVCACHEFS_CHECK(block.size() >= kSuperblockBytes);
  Raw raw;
  std::memcpy(&raw, block.data(), sizeof raw);
  if (raw.magic != kSuperblockMagic) return SuperblockFound::kNone;
  version = raw.version;
  // A newer version may keep its checksum elsewhere.
  if (raw.version > kSuperblockVersion) return SuperblockFound::kNewer;
  const Checksum checksum{raw.checksum_low, raw.checksum_high};
  if (raw.version == 0 || !is_sound(raw) || checksum_without_itself(block) != checksum)
    return SuperblockFound::kDamaged;
  superblock = {raw.unit_bytes, raw.size_units, raw.uuid};
  return SuperblockFound::kOurs;
}

}  // namespace kvcachefs
