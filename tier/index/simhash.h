// The hashes of a block of token ids. simhash_of() is a SimHash: blocks that have most of their tokens in
// common have hashes that differ in few of the 64 bits, and those of unrelated blocks differ in 32 on
// average. prefix_hash_of() is a digest for routers. Any thread; no failure. Both depend on the token ids
// alone and never change: they may be stored, and compared between machines and releases.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvcachefs {

inline constexpr size_t kSimilarBlockTokens = 16;
using SimilarBlock = std::span<const uint32_t, kSimilarBlockTokens>;

// The order of the tokens in the block does not count, so that text shifted by a token or two is still
// similar: equal hashes do not mean equal blocks.
uint64_t simhash_of(SimilarBlock block);

inline unsigned hamming_distance(uint64_t one, uint64_t other) {
  return static_cast<unsigned>(std::popcount(one ^ other));
}

// XXH3, 128 bits, of the tokens as little-endian bytes, in its canonical form: 32 hexadecimal digits, the
// most significant first.
std::string prefix_hash_of(SimilarBlock first_block);

}  // namespace kvcachefs
