// The blocks of an EntryIndex that are nearly those of a query, and how many of them an answer leaves out
// because the writers of their entries have not said that the content holds at any position.
#include <fcntl.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tier/index/entry_index.h"
#include "tier/index/simhash.h"

namespace kvcachefs {
namespace {

// The count of the blocks that an answer leaves out reads the tokens of this many entries, at some 10 us
// each, and compares this many pairs of blocks, in a tenth of a second.
constexpr size_t kMostUnmarked = 4096;
constexpr uint64_t kMostPairs = uint64_t{1} << 25;
constexpr size_t kUnmarkedAtOnce = 128;  // names that are copied at a time
// The memory that a query takes, with what the allocator adds: for the place of a token in the query, and for
// a block that is found with an entry that is looked at, without their names.
constexpr uint64_t kSimilarTokenBytes = 5, kNearBlockBytes = 512;

std::vector<uint64_t> hashes_of(std::span<const uint32_t> tokens) {
  std::vector<uint64_t> hashes(tokens.size() / kSimilarBlockTokens);
  for (size_t i = 0; i < hashes.size(); ++i)
    hashes[i] = simhash_of(tokens.subspan(i * kSimilarBlockTokens).first<kSimilarBlockTokens>());
  return hashes;
}

}  // namespace

EntryIndex::SimilarFound EntryIndex::similar(const SimilarQuery& query, const Asker& asker) {
  SimilarFound result;
  catch_up();
  if (!asker.work.takes(query.tokens.size() * kSimilarTokenBytes)) return result;
  SimilarAnswer answer;
  std::vector<std::string> owners;
  std::vector<uint64_t> inodes;
  bool has_unmarked = false;
  {
    FairLock lock(mutex_);
    const auto known = models_.find(query.model);
    if (known == models_.end()) return result;
    const SimilarIndex* const index = known->second.similar.get();
    has_unmarked = known->second.records > (index == nullptr ? 0 : index->entries());
    // Blocks that the caller may not read take no place in the answer, as long as they are not kMostSimilar.
    if (index != nullptr)
      answer =
          index->find(query.tokens, query.most_distance, owners_.excluding(query.excluded), kMostSimilar);
    for (const Similar& block : answer.found) {
      owners.emplace_back(owners_.name_of(block.owner));
      inodes.push_back(block.ino);
    }
  }
  result.truncated = answer.truncated;
  LookedAt looked_at;
  for (size_t at = 0; at < inodes.size() && result.blocks.size() < query.most_results; ++at) {
    const auto [found, is_new] = looked_at.try_emplace(inodes[at]);
    if (is_new && asker.work.goes_on())
      for (Candidate& each : candidates({&inodes[at], 1}, asker))
        found->second = look_at(std::move(each), asker);
    if (!found->second) continue;
    if (!asker.work.takes(kNearBlockBytes + (is_new ? 2 : 1) * found->second->name.size())) break;
    result.blocks.push_back({*found->second, answer.found[at], std::move(owners[at])});
  }
  if (result.blocks.empty() && has_unmarked) result.not_pre_rope = count_unmarked(query, asker);
  return result;
}

std::vector<EntryIndex::Candidate> EntryIndex::unmarked(std::span<const uint64_t> inodes,
                                                        const std::string& model, const Asker& asker) const {
  std::vector<uint64_t> result;
  {
    FairLock lock(mutex_);
    for (const uint64_t ino : inodes)
      if (const auto known = records_.find(ino); known != records_.end())
        if (const Record& its = known->second; its.model != nullptr && !its.owner && its.model->name == model)
          result.push_back(ino);
  }
  return candidates(result, asker);
}

uint64_t EntryIndex::count_unmarked(const SimilarQuery& query, const Asker& asker) {
  const std::vector<uint64_t> hashes = hashes_of(query.tokens);
  uint64_t near = 0, pairs = 0;
  size_t looks = 0;
  std::vector<uint64_t> inodes;
  const auto is_done = [&] {
    return near >= query.most_results || pairs > kMostPairs || ++looks > kMostUnmarked ||
           !asker.work.goes_on();
  };
  const auto look_into = [&](Candidate& each) {
    // The entry is looked at before its tokens are, so that the time does not tell whether they are near.
    const auto found = look_at(std::move(each), asker);
    const auto fd = found ? arena_.open(found->handle, O_PATH | O_NOFOLLOW) : fail(ENOENT);
    if (!fd) return;
    const Metadata metadata = read_metadata(fd->get());
    const bool is_excluded =
        !query.excluded.empty() && is_owner_or_role(metadata[Attribute::kAgent], query.excluded);
    if (metadata.pre_rope || is_excluded || metadata[Attribute::kModel] != query.model) return;
    for (const uint64_t hash : hashes_of(metadata.tokens)) {
      if ((pairs += hashes.size()) > kMostPairs) return;
      near += static_cast<uint64_t>(std::ranges::count_if(
          hashes, [&](uint64_t other) { return hamming_distance(hash, other) <= query.most_distance; }));
    }
  };
  for (EntryTable::Shard& shard : entries_.shards()) {
    inodes.clear();
    {
      MutexLock lock(shard.mutex);
      for (const auto& [ino, entry] : shard.entries)
        if (entry.described) inodes.push_back(ino);
    }
    for (std::span<const uint64_t> left(inodes); !left.empty();) {
      const auto turn = left.first(std::min(kUnmarkedAtOnce, left.size()));
      left = left.subspan(turn.size());
      for (Candidate& each : unmarked(turn, query.model, asker)) {
        if (is_done()) return std::min<uint64_t>(near, query.most_results);
        look_into(each);
      }
    }
  }
  return std::min<uint64_t>(near, query.most_results);
}

}  // namespace kvcachefs
