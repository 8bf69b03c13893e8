#include "base/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string_view>
#include <vector>

namespace kvcachefs::checksum_test {

std::vector<std::byte> random_bytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// The expected values are those that `xxhsum -H2` prints, high half first. They are fixed, because entries on
// disk outlive the library's version.
TEST(ChecksumTest, IsXxh3OfTheBytes) {
  EXPECT_EQ(checksum_of({}), (Checksum{.low = 0x6001c324468d497f, .high = 0x99aa06d3014798d8}));
  constexpr std::string_view kText = "kvcachefs";
  const auto bytes = std::as_bytes(std::span(kText));
  EXPECT_EQ(checksum_of(bytes), (Checksum{.low = 0x3bc9925081c7d84e, .high = 0xc0d23b6b512dfc29}));
}

TEST(ChecksumTest, NothingHashedIsTheChecksumOfNothing) {
  EXPECT_EQ(Hasher().digest(), checksum_of({}));
}

TEST(ChecksumTest, PiecesGiveWhatTheWholeGives) {
  std::mt19937_64 random(1);
  for (size_t size : {1, 16, 17, 128, 240, 241, 255, 256, 257, 1023, 1024, 1025, 4096, 100'000}) {
    const std::vector<std::byte> bytes = random_bytes(size, size);
    const Checksum whole = checksum_of(bytes);
    for (int round = 0; round < 20; ++round) {
      Hasher hasher;
      std::span<const std::byte> rest = bytes;
      while (!rest.empty()) {
        const size_t piece = std::min(rest.size(), size_t{random() % (size / 3 + 2)});
        hasher.update(rest.first(piece));
        rest = rest.subspan(piece);
      }
      EXPECT_EQ(hasher.digest(), whole) << "size " << size;
    }
  }
}

TEST(ChecksumTest, MoreMayFollowADigest) {
  const std::vector<std::byte> bytes = random_bytes(5000, 3);
  Hasher hasher;
  hasher.update(std::span(bytes).first(2000));
  EXPECT_EQ(hasher.digest(), checksum_of(std::span(bytes).first(2000)));
  hasher.update(std::span(bytes).subspan(2000));
  EXPECT_EQ(hasher.digest(), checksum_of(bytes));
}

TEST(ChecksumTest, ResetStartsAnew) {
  const std::vector<std::byte> bytes = random_bytes(3000, 4);
  Hasher hasher;
  hasher.update(random_bytes(777, 5));
  hasher.reset();
  hasher.update(bytes);
  EXPECT_EQ(hasher.digest(), checksum_of(bytes));
}

TEST(ChecksumTest, EveryFlippedBitShows) {
  std::vector<std::byte> bytes = random_bytes(600, 6);
  const Checksum right = checksum_of(bytes);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    const auto mask = static_cast<std::byte>(1u << (bit % 8));
    bytes[bit / 8] ^= mask;
    EXPECT_NE(checksum_of(bytes), right) << "bit " << bit;
    bytes[bit / 8] ^= mask;
  }
}

}  // namespace kvcachefs::checksum_test
