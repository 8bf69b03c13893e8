// A SimilarIndex finds blocks of token ids that are nearly those of a query, among those that entries of one
// model and pool have. A block is known by its SimHash alone (tier/index/simhash.h): entries that have the
// same block have claims on it, and so have those of the rare other block with that very hash. Not thread
// safe: its user holds a lock. Failure: none but running out of memory, which stops the process; what a bound
// leaves out is counted.
//
// No scan: where two hashes differ in at most r bits, they differ in at most (r - i) / 4 (rounded down) in
// one of their four 16-bit chunks i = 0 to 3, because the sum of one more in each is more than r. For each
// chunk a table has the hashes in buckets by the chunk's value, and a query looks into those buckets whose
// value differs from its own in so few bits: 188 for r = 8, with 2,900 of a million random hashes in them. A
// small index uses fewer bits of each chunk.
//
// Bounds:
//   1. A query takes at most kMostSteps steps (a slot of a bucket or a claim looked at; eight for a hash that
//      may be near), each of its blocks an equal part of what those before it have left. Of a block within
//      its part, each indexed block within the distance is found. Others are counted in `truncated`. 2,000
//      tokens have exact answers up to some 40 million random blocks at distance 8, and half a million at 16.
//   2. Of a block's claims the latest kMostClaims are looked at, and if there are more the query's block
//      counts as truncated.
//   3. A bucket has at most kMostInBucket hashes. A new block that belongs in a full one is not indexed, and
//      insert() says so: there are that many blocks like it. 900 million random blocks fill none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <span>
#include <unordered_map>
#include <vector>

#include "tier/index/chunk_table.h"
#include "tier/index/owner_names.h"
#include "tier/index/simhash.h"

namespace kvcachefs {

struct Similar {
  uint64_t ino = 0;
  uint32_t query_token = 0;  // where the block begins in the query, and in the entry
  uint32_t token = 0;
  uint8_t distance = 0;
  OwnerNumber owner = kNoOwner;

  double confidence() const { return 1 - distance / 64.0; }
  bool operator==(const Similar&) const = default;
};

struct SimilarAnswer {
  std::vector<Similar> found;  // by distance, then by the query's block, inode and place in the entry
  size_t truncated = 0;        // blocks of the query that have been given less than the whole answer
  uint64_t steps = 0;
};

class SimilarIndex {
 public:
  static constexpr unsigned kMostDistance = 16;
  static constexpr uint64_t kMostSteps = uint64_t{1} << 24;  // some tenths of a second
  static constexpr size_t kMostClaims = 256;
  static constexpr size_t kMostInBucket = 16'000;

  using Excluded = std::function<bool(OwnerNumber)>;

  SimilarIndex();

  // The entry claims each whole block of these tokens, the first of which is at `first_token` of the entry.
  // It adds to the claims that the entry has. False: a block of them is refused.
  bool insert(uint64_t ino, OwnerNumber owner, std::span<const uint32_t> tokens, uint32_t first_token);
  // All claims of the entry go, and with its last claim a block.
  void remove(uint64_t ino);

  // The `most_results` nearest blocks to each whole block of the query, of all of them together.
  // most_distance is at most kMostDistance. A null `excluded` excludes none.
  SimilarAnswer find(std::span<const uint32_t> query_tokens, unsigned most_distance, const Excluded& excluded,
                     size_t most_results) const;

  size_t blocks() const { return blocks_.size() - free_blocks_.size(); }
  size_t entries() const { return entries_.size(); }  // that have a claim
  size_t claims() const { return claims_.size() - free_claims_.size(); }
  // What it takes of the process's heap, with what the allocator adds.
  uint64_t memory_bytes() const;

 private:
  static constexpr unsigned kTables = 4;
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

  struct Block {
    uint64_t hash;
    uint32_t first_claim;  // the latest
  };
  struct Claim {
    uint64_t ino;
    uint32_t token;
    uint32_t block;
    uint32_t next_of_entry;
    uint32_t next_of_block;
    uint32_t previous_of_block;
    OwnerNumber owner;
  };
  class Search;

  size_t chunk_of(uint64_t hash, size_t table) const {
    return (hash >> (16 * table)) & ((size_t{1} << bits_) - 1);
  }
  // The two chunks after the table's own.
  static uint32_t other_bits_of(uint64_t hash, size_t table) {
    return static_cast<uint32_t>(std::rotr(hash, 16 * (static_cast<int>(table) + 1)));
  }

  uint32_t block_for(uint64_t hash);  // kNone: refused
  void put(uint64_t hash, uint32_t block);
  void drop(uint32_t block);
  void unlink(uint32_t claim);
  void grow();

  unsigned bits_ = 4;  // of each chunk; it grows
  std::vector<ChunkTable> tables_;
  std::deque<Block> blocks_;  // a deque takes no more than it has, and never stops to move it all
  std::deque<Claim> claims_;
  std::vector<uint32_t> free_blocks_;
  std::vector<uint32_t> free_claims_;
  std::unordered_map<uint64_t, uint32_t> entries_;  // the entry's latest claim by its inode
};

}  // namespace kvcachefs
