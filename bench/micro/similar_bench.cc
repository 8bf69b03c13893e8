// The fuzzy match over a million blocks, against a scan of their hashes for one block of the query; what the
// index costs; and the quality of the hash, as counters: distances of random blocks and of changed ones.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tier/index/similar_index.h"

namespace kvcachefs {
namespace {

constexpr size_t kBlocks = 1'000'000;
constexpr size_t kBlocksOfEntry = 125;
constexpr uint32_t kVocabulary = 128'256;

using Tokens = std::vector<uint32_t>;

Tokens random_tokens(std::mt19937_64& random, size_t count) {
  Tokens tokens(count);
  for (uint32_t& token : tokens) token = static_cast<uint32_t>(random() % kVocabulary);
  return tokens;
}

std::vector<Tokens> million_blocks() {
  std::mt19937_64 random(1);
  std::vector<Tokens> entries(kBlocks / kBlocksOfEntry);
  for (Tokens& entry : entries) entry = random_tokens(random, kBlocksOfEntry * kSimilarBlockTokens);
  return entries;
}

const std::vector<Tokens>& entries_tokens() {
  static const std::vector<Tokens> entries = million_blocks();
  return entries;
}

void fill(SimilarIndex& index) {
  uint64_t ino = 0;
  for (const Tokens& entry : entries_tokens()) index.insert(++ino, kNoOwner, entry, 0);
}

const SimilarIndex& million() {
  static SimilarIndex index;
  if (index.blocks() == 0) fill(index);
  return index;
}

// 2,000 tokens: an entry's with one of each 20 changed, so that some blocks are found and others are not.
Tokens query_tokens(std::mt19937_64& random) {
  Tokens query = entries_tokens()[random() % entries_tokens().size()];
  for (size_t changes = query.size() / 20; changes > 0; --changes) {
    query[random() % query.size()] = static_cast<uint32_t>(random() % kVocabulary);
  }
  return query;
}

void similar_query_2000_tokens(benchmark::State& state) {
  const SimilarIndex& index = million();
  std::mt19937_64 random(2);
  std::vector<Tokens> queries;
  for (int i = 0; i < 64; ++i) queries.push_back(query_tokens(random));
  SimilarAnswer answer;
  size_t next = 0;
  for (auto _ : state) {
    answer = index.find(queries[next++ % queries.size()], static_cast<unsigned>(state.range(0)), {}, 100);
  }
  state.counters["found"] = static_cast<double>(answer.found.size());
  state.counters["steps"] = static_cast<double>(answer.steps);
  state.counters["truncated"] = static_cast<double>(answer.truncated);
}
BENCHMARK(similar_query_2000_tokens)->Arg(0)->Arg(4)->Arg(8)->Arg(12)->Arg(16)->Unit(benchmark::kMicrosecond);

std::vector<uint64_t> million_hashes() {
  std::vector<uint64_t> hashes;
  for (const Tokens& entry : entries_tokens()) {
    for (size_t token = 0; token < entry.size(); token += kSimilarBlockTokens) {
      hashes.push_back(simhash_of(std::span(entry).subspan(token).first<kSimilarBlockTokens>()));
    }
  }
  return hashes;
}

// How many hashes are within the distance, which is less than an answer takes.
template <class Distance>
void scan(benchmark::State& state, const Distance& distance) {
  const std::vector<uint64_t> hashes = million_hashes();
  uint64_t query = hashes[hashes.size() / 2];
  for (auto _ : state) {
    size_t found = 0;
    for (const uint64_t hash : hashes) found += distance(hash, query) <= 8;
    benchmark::DoNotOptimize(found);
    query = query * 6364136223846793005 + 1442695040888963407;
  }
}

void similar_scan_for_one_block(benchmark::State& state) {
  scan(state, hamming_distance);
}
BENCHMARK(similar_scan_for_one_block)->Unit(benchmark::kMicrosecond);

void similar_insert_million(benchmark::State& state) {
  entries_tokens();
  for (auto _ : state) {
    SimilarIndex index;
    fill(index);
    state.counters["bytes_per_block"] =
        static_cast<double>(index.memory_bytes()) / static_cast<double>(index.blocks());
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kBlocks));
}
BENCHMARK(similar_insert_million)->Unit(benchmark::kMillisecond)->Iterations(1);

void similar_remove_million(benchmark::State& state) {
  for (auto _ : state) {
    state.PauseTiming();
    SimilarIndex index;
    fill(index);
    state.ResumeTiming();
    for (uint64_t ino = 1; ino <= entries_tokens().size(); ++ino) index.remove(ino);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kBlocks));
}
BENCHMARK(similar_remove_million)->Unit(benchmark::kMillisecond)->Iterations(1);

void simhash(benchmark::State& state) {
  std::mt19937_64 random(3);
  Tokens tokens = random_tokens(random, kSimilarBlockTokens);
  for (auto _ : state) {
    tokens[0] = static_cast<uint32_t>(simhash_of(std::span(tokens).first<kSimilarBlockTokens>()));
  }
}
BENCHMARK(simhash);

// Distances of a block and the same with so many tokens changed; 16 changed tokens make it a random other.
void simhash_distances(benchmark::State& state) {
  constexpr size_t kPairs = 200'000;
  std::vector<unsigned> distances(kPairs);
  for (auto _ : state) {
    std::mt19937_64 random(4);
    for (unsigned& distance : distances) {
      const Tokens block = random_tokens(random, kSimilarBlockTokens);
      Tokens changed = block;
      // The hash does not depend on the order.
      for (int64_t i = 0; i < state.range(0); ++i) {
        changed[static_cast<size_t>(i)] = static_cast<uint32_t>(random() % kVocabulary);
      }
      distance = hamming_distance(simhash_of(std::span(block).first<kSimilarBlockTokens>()),
                                  simhash_of(std::span(changed).first<kSimilarBlockTokens>()));
    }
  }
  std::ranges::sort(distances);
  double sum = 0;
  for (const unsigned distance : distances) sum += distance;
  state.counters["mean"] = sum / kPairs;
  state.counters["p5"] = distances[kPairs / 20];
  state.counters["p95"] = distances[kPairs - kPairs / 20];
  state.counters["within_8"] =
      static_cast<double>(std::ranges::upper_bound(distances, 8u) - distances.begin()) / kPairs;
}
BENCHMARK(simhash_distances)->Arg(1)->Arg(2)->Arg(4)->Arg(16)->Iterations(1)->Unit(benchmark::kMillisecond);

// Of a million hashes: the largest deviation of a bit's mean from 1/2, and of a pair's correlation from 0, of
// blocks of any token ids and of those of a vocabulary, whose 128,256 hashes are themselves a small sample.
// Of a million fair coins the first is some 0.0013, and the second 0.0035.
void simhash_bits(benchmark::State& state) {
  std::vector<uint64_t> hashes(kBlocks);
  std::mt19937_64 random(5);
  std::array<uint32_t, kSimilarBlockTokens> block;
  for (uint64_t& hash : hashes) {
    for (uint32_t& token : block)
      token = static_cast<uint32_t>(random() % static_cast<uint64_t>(state.range(0)));
    hash = simhash_of(block);
  }
  double bias = 0;
  double correlation = 0;
  for (auto _ : state) {
    std::array<std::array<int64_t, 64>, 64> agreements{};  // on the diagonal: ones
    for (const uint64_t hash : hashes) {
      for (unsigned bit = 0; bit < 64; ++bit) {
        agreements[bit][bit] += hash >> bit & 1;
        const uint64_t differs = hash ^ (hash >> bit & 1 ? ~uint64_t{0} : 0);
        for (unsigned other = bit + 1; other < 64; ++other) agreements[bit][other] += ~differs >> other & 1;
      }
    }
    const auto count = static_cast<double>(hashes.size());
    for (unsigned bit = 0; bit < 64; ++bit) {
      bias = std::max(bias, std::abs(static_cast<double>(agreements[bit][bit]) / count - 0.5));
      for (unsigned other = bit + 1; other < 64; ++other) {
        correlation =
            std::max(correlation, std::abs(2 * static_cast<double>(agreements[bit][other]) / count - 1));
      }
    }
  }
  state.counters["largest_bias"] = bias;
  state.counters["largest_correlation"] = correlation;
}
BENCHMARK(simhash_bits)
    ->Arg(int64_t{1} << 32)
    ->Arg(kVocabulary)
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvcachefs
