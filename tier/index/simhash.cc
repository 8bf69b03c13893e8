#include "tier/index/simhash.h"

#include <fmt/format.h>

#include <array>

#include "base/checksum.h"
#include "base/mixed.h"

namespace kvcachefs {
namespace {

static_assert(std::endian::native == std::endian::little);

// 64 counters of votes at once: plane i has bit i of each.
class Votes {
 public:
  void add(uint64_t votes) {
    for (uint64_t& plane : planes_) {
      const uint64_t carry = plane & votes;
      plane ^= votes;
      votes = carry;
    }
  }
  // The counters that are 9 or more.
  uint64_t majority_of_17() const {
    return planes_[4] | (planes_[3] & (planes_[2] | planes_[1] | planes_[0]));
  }

 private:
  std::array<uint64_t, 5> planes_{};
};

}  // namespace

uint64_t simhash_of(SimilarBlock block) {
  // A bit is what most tokens' hashes have there. A fifth of the bits would be ties of 8 to 8: one token of
  // the block votes twice, which decides ties alone. It is chosen by another hash, so that its votes are as
  // independent as any, and most changes of the block leave it the same.
  Votes votes;
  uint64_t least_rank = UINT64_MAX;
  uint64_t votes_twice = 0;
  for (const uint32_t token : block) {
    const uint64_t hash = mixed(token);
    const uint64_t rank = mixed(hash);
    votes.add(hash);
    if (rank <= least_rank) {
      least_rank = rank;
      votes_twice = hash;
    }
  }
  votes.add(votes_twice);
  return votes.majority_of_17();
}

std::string prefix_hash_of(SimilarBlock first_block) {
  const Checksum hash = checksum_of(std::as_bytes(first_block));
  return fmt::format("{:016x}{:016x}", hash.high, hash.low);
}

}  // namespace kvcachefs
