// EntryIndex: the entries that hold the longest prefix of a prompt.
#include "tier/index/entry_index.h"

#include <algorithm>

namespace kvcachefs {
namespace {

// A match looks at this many candidates at a time: few at first, because the first ones mostly decide which
// others matter.
constexpr size_t kFirstLooks = 64, kLooksGrow = 8, kLooksAtOnce = 4096;
// The memory that a match takes, with what the allocator adds: for a token with its part of the path through
// the tree, for a run of entries on that path, and for an entry that is looked at, without its name.
constexpr uint64_t kMatchTokenBytes = 8, kMatchRunBytes = 96, kMatchLookBytes = 448;

}  // namespace

uint64_t EntryIndex::parent_of(const Record& record) const {
  const auto parent = records_.find(record.parent);
  const PrefixTree& tree = record.model->tree;
  if (parent == records_.end() || !parent->second.leads || parent->second.model != record.model) return 0;
  return tree.end_of(*parent->second.member) == tree.start_of(*record.member) ? record.parent : 0;
}

PrefixTree::Use EntryIndex::use_of_chain(uint64_t ino, const UseOf& use_of, const Asker& asker,
                                         std::unordered_map<uint64_t, PrefixTree::Use>& known) const {
  std::vector<uint64_t> chain;
  auto use = PrefixTree::Use::kUse;
  for (uint64_t next = ino; use == PrefixTree::Use::kUse;) {
    if (next == 0) {
      use = PrefixTree::Use::kSkip;
      break;
    }
    if (const auto its = known.find(next); its != known.end()) {
      use = its->second;
      break;
    }
    const Record& record = records_.at(next);
    const bool is_hidden = asker.whose_is(record.access) == PrefixTree::Whose::kUnreadable;
    use = is_hidden ? PrefixTree::Use::kSkip : use_of(next);
    if (use == PrefixTree::Use::kStop) return use;
    chain.push_back(next);
    if (record.model->tree.start_of(*record.member) == PrefixTree::kStart) break;
    next = parent_of(record);
  }
  for (const uint64_t each : chain) known[each] = use;
  return use;
}

std::vector<PrefixTree::Piece> EntryIndex::longest(const std::string& model, std::span<const uint32_t> tokens,
                                                   const Asker& asker, bool hopeful, size_t most_unknown,
                                                   Matching& matching) const {
  FairLock lock(mutex_);
  const auto known = models_.find(model);
  if (known == models_.end()) return {};
  const auto use_alone = [&](uint64_t ino) NO_THREAD_SAFETY_ANALYSIS {
    if (const auto look = matching.looked_at.find(ino); look != matching.looked_at.end())
      return look->second ? PrefixTree::Use::kUse : PrefixTree::Use::kSkip;
    if (matching.unknown.size() == most_unknown) return PrefixTree::Use::kStop;
    auto its = candidate(ino);
    if (!its) return PrefixTree::Use::kSkip;
    if (!asker.work.takes(kMatchLookBytes + its->name.size())) return PrefixTree::Use::kStop;
    matching.unknown.push_back(std::move(*its));
    return hopeful ? PrefixTree::Use::kUse : PrefixTree::Use::kSkip;
  };
  std::unordered_map<uint64_t, PrefixTree::Use> uses;
  const auto use_of = [&](uint64_t ino)
                          NO_THREAD_SAFETY_ANALYSIS { return use_of_chain(ino, use_alone, asker, uses); };
  uint64_t runs = 0;
  const auto whose_is = [&](const PrefixTree::Access& access) {
    const auto whose = asker.whose_is(access);
    if (whose == PrefixTree::Whose::kUnreadable || ++runs <= matching.runs) return whose;
    return asker.work.takes(kMatchRunBytes) ? whose : PrefixTree::Whose::kUnreadable;
  };
  bool left_out = false;
  auto found = known->second.tree.match(tokens, whose_is, use_of, left_out);
  if (left_out) asker.work.leaves_out();
  matching.runs = std::max(matching.runs, runs);
  return found;
}

// A round looks at the candidates of the whole prompt as if each could be used. After a round in which one
// could not, the candidates that could take its place are looked at first.
std::vector<EntryIndex::Piece> EntryIndex::match(const std::string& model, std::span<const uint32_t> tokens,
                                                 const Asker& asker) {
  catch_up();
  (void)asker.work.takes(tokens.size() * kMatchTokenBytes);
  Matching matching;
  auto& [looked_at, unknown, runs] = matching;
  size_t most = kFirstLooks;
  for (bool hopeful = true;; most = std::min(kLooksGrow * most, kLooksAtOnce)) {
    const bool is_last = asker.work.is_cut();
    unknown.clear();
    const auto found = longest(model, tokens, asker, hopeful && !is_last, most, matching);
    bool are_usable = true;
    for (Candidate& each : unknown)
      if (!is_last && asker.work.goes_on())
        are_usable &=
            looked_at.emplace(each.handle.ino, look_at(std::move(each), asker)).first->second.has_value();
    const bool is_whole = hopeful && are_usable && unknown.size() < most && !asker.work.is_cut();
    if (!is_last && !unknown.empty() && !is_whole) {
      hopeful = are_usable || !hopeful;
      continue;
    }
    std::vector<Piece> result;
    for (const PrefixTree::Piece& piece : found)
      result.push_back({std::move(*looked_at.at(piece.ino)), piece.first_token, piece.end_token});
    return result;
  }
}

}  // namespace kvcachefs
