#include "tier/index/similar_index.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "tier/index/heap_bytes.h"

namespace kvcachefs {
namespace {

constexpr unsigned kMostBits = 16;
constexpr unsigned kGrowthBits = 2;

template <class T>
uint32_t take_place(std::deque<T>& places, std::vector<uint32_t>& free_places, const T& value) {
  if (free_places.empty()) {
    KVCACHEFS_CHECK(places.size() < UINT32_MAX);
    places.push_back(value);
    return static_cast<uint32_t>(places.size() - 1);
  }
  const uint32_t place = free_places.back();
  free_places.pop_back();
  places[place] = value;
  return place;
}

bool ranks_before(const Similar& one, const Similar& other) {
  const auto rank = [](const Similar& similar) {
    return std::tie(similar.distance, similar.query_token, similar.ino, similar.token, similar.owner);
  };
  return rank(one) < rank(other);
}

}  // namespace

// One query.
class SimilarIndex::Search {
 public:
  Search(const SimilarIndex& index, unsigned most_distance, const Excluded& excluded, size_t most_results)
      : index_(index),
        most_distance_(most_distance),
        excluded_(excluded),
        most_results_(most_results),
        flips_(flips_of(index.bits_, most_distance / kTables)) {
    for (unsigned table = 0; table < kTables && table <= most_distance; ++table) {
      radius_[table] = static_cast<int>((most_distance - table) / kTables);
      const auto is_within = [&](const Flip& flip) { return flip.count <= radius_[table]; };
      flips_of_table_[table] =
          static_cast<size_t>(std::ranges::partition_point(flips_, is_within) - flips_.begin());
    }
  }

  void search(uint64_t hash, uint32_t query_token, uint64_t most_steps) {
    hash_ = hash;
    query_token_ = query_token;
    left_ = most_steps;
    cut_short_ = false;
    list_probes();
    // Lines are fetched into the processor's cache some probes before they are read: a bucket's first, and
    // when that is there its second. A loop that does nothing else is left out by g++ 12.
    constexpr size_t kAhead = 32;
    for (size_t i = 0; i < probes_.size() + 2 * kAhead; ++i) {
      if (i < probes_.size()) __builtin_prefetch(&first_line(probes_[i]));
      if (i >= kAhead && i - kAhead < probes_.size()) {
        const Probe& probe = probes_[i - kAhead];
        __builtin_prefetch(&index_.tables_[probe.table].line(first_line(probe).next()));
      }
      if (i >= 2 * kAhead) look_into(probes_[i - 2 * kAhead]);
    }
    judge_candidates();
    answer_.steps += most_steps - left_;
    answer_.truncated += cut_short_;
  }

  uint64_t steps() const { return answer_.steps; }

  SimilarAnswer answer() {
    std::ranges::sort_heap(answer_.found, ranks_before);
    return std::move(answer_);
  }

 private:
  struct Flip {
    uint16_t bits;
    uint16_t count;
  };

  // All ways to flip at most `most` of so many bits, those that flip fewer first.
  static std::vector<Flip> flips_of(unsigned bits, unsigned most) {
    std::vector<Flip> flips = {{0, 0}};
    for (size_t i = 0; i < flips.size() && flips[i].count < most; ++i) {
      for (int bit = std::bit_width(flips[i].bits); bit < static_cast<int>(bits); ++bit) {
        flips.push_back(
            {static_cast<uint16_t>(flips[i].bits | 1u << bit), static_cast<uint16_t>(flips[i].count + 1)});
      }
    }
    return flips;
  }

  // A bucket to be looked into.
  struct Probe {
    size_t table;
    size_t bucket;
    unsigned flipped;  // bits of the chunk that differ from the query's
  };

  // A block whose hash may be near, and the table that has it in a bucket of the search.
  struct Candidate {
    uint32_t block;
    size_t table;
  };
  static constexpr size_t kMostCandidates = 1024;  // before they are judged

  void list_probes() {
    probes_.clear();
    for (size_t table = 0; table < kTables; ++table) {
      const size_t chunk = index_.chunk_of(hash_, table);
      for (const Flip& flip : std::span(flips_).first(flips_of_table_[table])) {
        probes_.push_back({.table = table, .bucket = chunk ^ flip.bits, .flipped = flip.count});
      }
    }
  }

  const ChunkTable::Line& first_line(const Probe& probe) const {
    return index_.tables_[probe.table].line(probe.bucket);
  }

  bool take_steps(uint64_t steps) {
    if (steps > left_) {
      cut_short_ = true;
      left_ = 0;
      return false;
    }
    left_ -= steps;
    return true;
  }

  void look_into(const Probe& probe) {
    const ChunkTable& table = index_.tables_[probe.table];
    const uint32_t other_bits = other_bits_of(hash_, probe.table);
    size_t line = probe.bucket;
    do {
      if (!take_steps(ChunkTable::kSlots)) return;
      if (ChunkTable::may_be_near(table.line(line), other_bits, most_distance_ - probe.flipped)) {
        look_at(probe, line);
      }
      line = table.line(line).next();
    } while (line != 0);
  }

  void look_at(const Probe& probe, size_t line) {
    const ChunkTable& table = index_.tables_[probe.table];
    const uint32_t other_bits = other_bits_of(hash_, probe.table);
    for (size_t slot = 0; slot < table.taken_in(line, probe.bucket); ++slot) {
      const int apart = std::popcount(table.line(line).words[slot] ^ other_bits);
      if (static_cast<unsigned>(apart) + probe.flipped > most_distance_) continue;
      if (!take_steps(8)) return;
      if (candidates_.size() == kMostCandidates) judge_candidates();
      candidates_.push_back({table.block_in(line, slot), probe.table});
    }
  }

  void judge_candidates() {
    constexpr size_t kAhead = 16;
    for (size_t i = 0; i < candidates_.size() + kAhead; ++i) {
      if (i < candidates_.size()) __builtin_prefetch(&index_.blocks_[candidates_[i].block]);
      if (i < kAhead) continue;
      const Candidate& candidate = candidates_[i - kAhead];
      const uint64_t difference = index_.blocks_[candidate.block].hash ^ hash_;
      const auto distance = static_cast<unsigned>(std::popcount(difference));
      if (distance <= most_distance_ && !found_before(difference, candidate.table)) {
        add(candidate.block, distance);
      }
    }
    candidates_.clear();
  }

  bool found_before(uint64_t difference, size_t table) const {
    for (size_t before = 0; before < table; ++before) {
      if (std::popcount(index_.chunk_of(difference, before)) <= radius_[before]) return true;
    }
    return false;
  }

  void add(uint32_t block, unsigned distance) {
    std::vector<Similar>& found = answer_.found;  // a heap, the last in rank on top
    size_t looked_at = 0;
    for (uint32_t number = index_.blocks_[block].first_claim; number != kNone; ++looked_at) {
      const bool full = found.size() == most_results_;
      if (full && found.front().distance < distance) return;
      if (looked_at == kMostClaims) {
        cut_short_ = true;
        return;
      }
      if (!take_steps(1)) return;
      const Claim& claim = index_.claims_[number];
      number = claim.next_of_block;
      if (excluded_ && excluded_(claim.owner)) continue;
      const Similar similar = {.ino = claim.ino,
                               .query_token = query_token_,
                               .token = claim.token,
                               .distance = static_cast<uint8_t>(distance),
                               .owner = claim.owner};
      if (full) {
        if (!ranks_before(similar, found.front())) continue;
        std::ranges::pop_heap(found, ranks_before);
        found.pop_back();
      }
      found.push_back(similar);
      std::ranges::push_heap(found, ranks_before);
    }
  }

  const SimilarIndex& index_;
  const unsigned most_distance_;
  const Excluded& excluded_;
  const size_t most_results_;
  const std::vector<Flip> flips_;
  std::array<int, kTables> radius_{};
  std::array<size_t, kTables> flips_of_table_{};  // how many of them are within its radius
  SimilarAnswer answer_;
  // Of the block that is searched for:
  uint64_t hash_ = 0;
  uint32_t query_token_ = 0;
  std::vector<Probe> probes_;
  std::vector<Candidate> candidates_;
  uint64_t left_ = 0;  // steps
  bool cut_short_ = false;
};

SimilarIndex::SimilarIndex() : tables_(kTables, ChunkTable(size_t{1} << bits_)) {}

bool SimilarIndex::insert(uint64_t ino, OwnerNumber owner, std::span<const uint32_t> tokens,
                          uint32_t first_token) {
  bool is_whole = true;
  for (; tokens.size() >= kSimilarBlockTokens; tokens = tokens.subspan(kSimilarBlockTokens)) {
    const uint32_t token = std::exchange(first_token, first_token + kSimilarBlockTokens);
    const uint32_t block = block_for(simhash_of(tokens.first<kSimilarBlockTokens>()));
    if (block == kNone) {
      is_whole = false;
      continue;
    }
    uint32_t& latest_of_entry = entries_.try_emplace(ino, kNone).first->second;
    uint32_t& latest_of_block = blocks_[block].first_claim;
    const uint32_t number = take_place(claims_, free_claims_,
                                       {.ino = ino,
                                        .token = token,
                                        .block = block,
                                        .next_of_entry = latest_of_entry,
                                        .next_of_block = latest_of_block,
                                        .previous_of_block = kNone,
                                        .owner = owner});
    if (latest_of_block != kNone) claims_[latest_of_block].previous_of_block = number;
    latest_of_entry = latest_of_block = number;
  }
  return is_whole;
}

void SimilarIndex::remove(uint64_t ino) {
  const auto entry = entries_.find(ino);
  if (entry == entries_.end()) return;
  for (uint32_t claim = entry->second; claim != kNone;) {
    unlink(std::exchange(claim, claims_[claim].next_of_entry));
  }
  entries_.erase(entry);
}

SimilarAnswer SimilarIndex::find(std::span<const uint32_t> query_tokens, unsigned most_distance,
                                 const Excluded& excluded, size_t most_results) const {
  KVCACHEFS_CHECK(most_distance <= kMostDistance);
  if (most_results == 0) return {};
  std::vector<uint64_t> hashes(query_tokens.size() / kSimilarBlockTokens);
  for (size_t i = 0; i < hashes.size(); ++i) {
    hashes[i] = simhash_of(query_tokens.subspan(i * kSimilarBlockTokens).first<kSimilarBlockTokens>());
  }
  Search search(*this, most_distance, excluded, most_results);
  for (size_t i = 0; i < hashes.size(); ++i) {
    search.search(hashes[i], static_cast<uint32_t>(i * kSimilarBlockTokens),
                  (kMostSteps - search.steps()) / (hashes.size() - i));
  }
  return search.answer();
}

uint64_t SimilarIndex::memory_bytes() const {
  uint64_t bytes = deque_bytes(blocks_) + deque_bytes(claims_) + vector_bytes(free_blocks_) +
                   vector_bytes(free_claims_) + allocated_bytes(entries_.bucket_count() * sizeof(void*)) +
                   entries_.size() * allocated_bytes(sizeof(void*) + sizeof(*entries_.begin()));
  for (const ChunkTable& table : tables_) bytes += table.memory_bytes();
  return bytes;
}

uint32_t SimilarIndex::block_for(uint64_t hash) {
  const size_t bucket = chunk_of(hash, 0);
  size_t line = bucket;
  do {
    for (size_t slot = 0; slot < tables_[0].taken_in(line, bucket); ++slot) {
      const uint32_t block = tables_[0].block_in(line, slot);
      if (tables_[0].line(line).words[slot] == other_bits_of(hash, 0) && blocks_[block].hash == hash) {
        return block;
      }
    }
    line = tables_[0].line(line).next();
  } while (line != 0);

  for (size_t table = 0; table < kTables; ++table)
    if (tables_[table].size_of(chunk_of(hash, table)) == kMostInBucket) return kNone;
  if (bits_ < kMostBits && blocks() == ChunkTable::kSlots << bits_) grow();
  const uint32_t block = take_place(blocks_, free_blocks_, {.hash = hash, .first_claim = kNone});
  put(hash, block);
  return block;
}

void SimilarIndex::put(uint64_t hash, uint32_t block) {
  for (size_t table = 0; table < kTables; ++table) {
    tables_[table].put(chunk_of(hash, table), other_bits_of(hash, table), block);
  }
}

void SimilarIndex::drop(uint32_t block) {
  for (size_t table = 0; table < kTables; ++table) {
    tables_[table].drop(chunk_of(blocks_[block].hash, table), block);
  }
  free_blocks_.push_back(block);
}

void SimilarIndex::unlink(uint32_t number) {
  const Claim& claim = claims_[number];
  const bool is_latest = claim.previous_of_block == kNone;
  (is_latest ? blocks_[claim.block].first_claim : claims_[claim.previous_of_block].next_of_block) =
      claim.next_of_block;
  if (claim.next_of_block != kNone) {
    claims_[claim.next_of_block].previous_of_block = claim.previous_of_block;
  } else if (is_latest) {
    drop(claim.block);
  }
  free_claims_.push_back(number);
}

void SimilarIndex::grow() {
  bits_ += kGrowthBits;
  tables_.clear();
  tables_.resize(kTables, ChunkTable(size_t{1} << bits_));
  for (uint32_t block = 0; block < blocks_.size(); ++block) {
    if (blocks_[block].first_claim != kNone) put(blocks_[block].hash, block);
  }
}

}  // namespace kvcachefs
