#include "tier/index/entry_index.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "base/clock.h"
#include "base/fault_point.h"
#include "base/sys_beneath.h"

namespace kvcachefs {
namespace {

// Other threads, the evictor of all pools among them, wait this long for the index.
constexpr uint64_t kStepNs = 1'000'000;
// A query first reads the entries that were published before it: 10,000 in this time.
constexpr uint64_t kCatchUpNs = 100'000'000;
// And then of those whose parent has come.
constexpr uint64_t kFollowersNs = 10'000'000;
// A match looks at this many candidates at a time: few at first, because the first ones mostly decide which
// others matter.
constexpr size_t kFirstLooks = 64, kLooksGrow = 8, kLooksAtOnce = 4096;
// The memory that a match takes, with what the allocator adds: for a token with its part of the path through
// the tree, for a run of entries on that path, and for an entry that is looked at, without its name.
constexpr uint64_t kMatchTokenBytes = 8, kMatchRunBytes = 96, kMatchLookBytes = 448;
// The memory of a record, with what the allocator adds: without the bytes of its name, and with values that
// other entries have, too.
constexpr uint64_t kRecordBytes = 480;
// With a SimilarIndex, tokens take this many times their size.
constexpr uint64_t kSimilarShare = 4;
// The memory of a value that no other entry has: its place in the map, and the set of one.
constexpr uint64_t kValueBytes = 192;

std::string value_key(Attribute attribute, std::string_view value) {
  return std::string(1, static_cast<char>('a' + static_cast<char>(attribute))).append(value);
}

}  // namespace

void EntryIndex::changed(const Entry& entry) {
  if (!entry.described || !entry.is_file()) return;
  if (!entry.removed && entry.stage != Entry::Stage::kCandidate) return;
  again(entry.policy.ino);
}

void EntryIndex::again(uint64_t ino, bool follows) {
  MutexLock lock(queue_mutex_);
  if (!queued_.insert(ino).second) return;
  (follows ? followers_ : queue_).push_back(ino);
  ++waiting_;
}

std::optional<uint64_t> EntryIndex::next(bool even_followers) {
  MutexLock lock(queue_mutex_);
  std::deque<uint64_t>& from = queue_.empty() && even_followers ? followers_ : queue_;
  if (from.empty()) return std::nullopt;
  const uint64_t ino = from.front();
  from.pop_front();
  queued_.erase(ino);
  return ino;
}

bool EntryIndex::work(uint64_t until_ns, bool even_followers) {
  while (now_ns() < until_ns) {
    FairLock reading(reading_mutex_);
    if (vacate()) continue;
    const auto ino = next(even_followers);
    if (!ino) return false;
    read(*ino);
    --waiting_;
  }
  return true;
}

void EntryIndex::catch_up() {
  const bool more = work(now_ns() + kCatchUpNs, false);
  if (more || work(now_ns() + kFollowersNs, true)) ++cut_short_;
}

bool EntryIndex::step() {
  const uint64_t until_ns = now_ns() + kStepNs;
  while (now_ns() < until_ns) {
    const auto used = groups_.next_used();
    if (!used) break;
    for (const uint64_t ino : *used)
      if (const LockedEntry entry{entries_.shard(ino), ino}; entry != nullptr && entry->is_stored())
        entries_.candidates().opened(*entry);
  }
  const bool more = work(until_ns, true);
  FairLock lock(mutex_);
  return seek_refused() || more;
}

std::optional<EntryIndex::Reading> EntryIndex::reading_of(uint64_t ino) const {
  Reading result;
  {
    const LockedEntry entry(entries_.shard(ino), ino);
    result.has_gone = entry == nullptr || entry->removed;
    if (result.has_gone) return result;
    if (!entry->described || !entry->is_settled()) return std::nullopt;
    result.record.content_epoch = entry->disk.content_epoch;
    result.record.generation = entry->generation;
  }
  const auto fd = arena_.open({ino, result.record.generation}, O_PATH | O_NOFOLLOW);
  const auto file = fd ? sys::stat_of(fd->get()) : fail(fd.error().code);
  if (!file) return std::nullopt;
  result.file = *file;
  result.record.uid = file->st_uid;
  result.record.access = {file->st_uid, file->st_gid, file->st_mode & (S_IRUSR | S_IRGRP | S_IROTH)};
  result.metadata = read_metadata(fd->get());
  // An answer cannot name an entry whose path is longer than PATH_MAX.
  if (auto name = arena_.name_of(fd->get())) result.record.name = std::move(*name);
  return result;
}

void EntryIndex::read(uint64_t ino) {
  auto reading = reading_of(ino);
  const uint32_t generation = reading ? reading->record.generation : 0;
  {
    FairLock lock(mutex_);
    const OldPlace old = drop(ino);
    missing_.remove(ino);
    if (reading && !reading->record.name.empty() && !reading->metadata.empty() &&
        insert(ino, std::move(reading->record), reading->metadata, old))
      join_group(ino, reading->file, reading->metadata);
    leave(old);
  }
  if (!reading) return;
  if (reading->has_gone) return tell_times_({ino, 0}, 0, 0);
  // The times come after the group, because an expired entry must be known with its group. An owner may set
  // any time of writing: a future one counts as now.
  const Metadata& metadata = reading->metadata;
  const auto now_s = static_cast<int64_t>(wall_clock_ns() / 1'000'000'000);
  const auto written_s = static_cast<uint64_t>(std::clamp<int64_t>(reading->file.st_mtim.tv_sec, 0, now_s));
  tell_times_({ino, generation}, metadata.ttl_s == 0 ? 0 : coarse_ms_at(written_s + metadata.ttl_s),
              metadata.expires_s == 0 ? 0 : coarse_ms_at(metadata.expires_s));
}

void EntryIndex::join_group(uint64_t ino, const struct stat& file, const Metadata& metadata) {
  const std::string& group = metadata[Attribute::kGroup];
  const uint64_t bytes = group.empty() ? 0 : groups_.join(ino, file.st_uid, group);
  records_.at(ino).has_group = bytes > 0;
  index_bytes_ += bytes;
}

// Values that other entries have, too, count whole, because this entry may be the last to have them.
uint64_t EntryIndex::room_for(const Record& record, const Metadata& metadata) const {
  uint64_t bytes = kRecordBytes + record.name.size();
  for (const std::string& value : metadata.attributes)
    if (!value.empty()) bytes += kValueBytes + value.size();
  if (const std::string& group = metadata[Attribute::kGroup]; !group.empty())
    bytes += EntryGroups::kMemberBytes + EntryGroups::group_bytes(group);
  if (metadata.tokens.empty()) return bytes;
  bytes += metadata.tokens.size() * sizeof(uint32_t) * (metadata.pre_rope ? kSimilarShare : 1);
  static const uint64_t least_similar_bytes = SimilarIndex().memory_bytes();
  if (!models_.contains(metadata[Attribute::kModel]))
    bytes += kModelBytes + (metadata.pre_rope ? least_similar_bytes : 0);
  return bytes;
}

bool EntryIndex::insert(uint64_t ino, Record record, const Metadata& metadata, const OldPlace& old) {
  record.room_bytes = room_for(record, metadata);
  const uint64_t leaving_bytes =
      old.member ? old.model->tree.tokens_of_it_alone(*old.member) * sizeof(uint32_t) : 0;
  if (!room_.take(record.uid, record.room_bytes, leaving_bytes)) {
    refuse(ino);
    return false;
  }
  for (size_t i = 0; i < kAttributes; ++i) {
    if (metadata.attributes[i].empty()) continue;
    const auto [value, is_new] =
        by_value_.try_emplace(value_key(static_cast<Attribute>(i), metadata.attributes[i]));
    if (is_new) index_bytes_ += kValueBytes + value->first.size();
    value->second.insert(ino);
    record.values[i] = &*value;
  }
  Record& known = records_[ino] = std::move(record);
  ++indexed_entries_;
  index_bytes_ += kRecordBytes + known.name.size();
  if (metadata.tokens.size() >= kBlockTokens) insert_tokens(ino, known, metadata);
  return true;
}

EntryIndex::OldPlace EntryIndex::drop(uint64_t ino) {
  const auto found = records_.find(ino);
  if (found == records_.end()) return {};
  const Record& record = found->second;
  const OldPlace old = {record.model, record.member};
  if (record.model != nullptr) drop_tokens(ino, record);
  if (record.has_group) index_bytes_ -= groups_.leave(ino);
  for (ByValue::value_type* const value : record.values) {
    if (value == nullptr) continue;
    value->second.erase(ino);
    if (!value->second.empty()) continue;
    index_bytes_ -= kValueBytes + value->first.size();
    by_value_.erase(by_value_.find(value->first));
  }
  --indexed_entries_;
  index_bytes_ -= kRecordBytes + record.name.size();
  room_.give_back(record.uid, record.room_bytes);
  records_.erase(found);
  return old;
}

bool EntryIndex::is_named(uint64_t ino, const std::string& name) const {
  const auto fd = sys::open_beneath(arena_.tree_fd(), name.c_str(), O_PATH | O_NOFOLLOW);
  const auto file = fd ? sys::stat_of(fd->get()) : fail(fd.error().code);
  return file && file->st_ino == ino;
}

std::optional<EntryIndex::Candidate> EntryIndex::candidate(uint64_t ino) const {
  const auto known = records_.find(ino);
  if (known == records_.end()) return std::nullopt;
  const Record& record = known->second;
  return Candidate{{ino, record.generation}, record.content_epoch, record.name};
}

std::vector<EntryIndex::Candidate> EntryIndex::candidates(std::span<const uint64_t> inodes,
                                                          const Asker& asker) const {
  std::vector<Candidate> result;
  FairLock lock(mutex_);
  for (const uint64_t ino : inodes)
    if (const auto known = records_.find(ino); known != records_.end())
      if (asker.whose_is(known->second.access) != PrefixTree::Whose::kUnreadable)
        result.push_back(*candidate(ino));
  return result;
}

std::optional<EntryIndex::Found> EntryIndex::look_at(Candidate candidate, const Asker& asker) {
  const uint64_t ino = candidate.handle.ino;
  Found result{.handle = candidate.handle, .name = std::move(candidate.name)};
  {
    const LockedEntry entry(entries_.shard(ino), ino);
    if (entry == nullptr || !entry->is_settled()) return std::nullopt;
    if (entry->disk.content_epoch != candidate.content_epoch) {
      again(ino);
      return std::nullopt;
    }
    result.tier = entry->tier;
    result.version = entry->version;
    result.hits = entry->hits;
    result.stored_ms = entry->stored_ms;
  }
  fault_point("query look");
  auto file = asker.look(result.name);
  if (asker.work.is_cut()) return std::nullopt;
  if (!file && file.error().code == EACCES && is_named(ino, result.name)) return std::nullopt;
  // A stat takes 2 us, asking for the name takes 15 us.
  if (!file || file->st_ino != ino) {
    const auto fd = arena_.open(result.handle, O_PATH | O_NOFOLLOW);
    if (!fd) return std::nullopt;
    auto name = arena_.name_of(fd->get());
    if (!name || *name == result.name) return std::nullopt;
    result.name = std::move(*name);
    file = asker.look(result.name);
    if (!file || file->st_ino != ino) return std::nullopt;
  }
  result.size_bytes = size_of(*file);
  return result;
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
  auto found = known->second.tree.match(tokens, whose_is, use_of);
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

std::vector<uint64_t> EntryIndex::having(std::span<const Filter> filters, QueryWork* work) {
  std::vector<uint64_t> result;
  catch_up();
  FairLock lock(mutex_);
  std::vector<const std::unordered_set<uint64_t>*> sets;
  for (const auto& [attribute, value] : filters) {
    const auto found = by_value_.find(value_key(attribute, value));
    if (found == by_value_.end()) return result;
    sets.push_back(&found->second);
  }
  const auto& fewest = *std::ranges::min(sets, {}, [](const auto* set) { return set->size(); });
  if (work != nullptr && !work->takes(fewest.size() * sizeof(uint64_t))) return result;
  result.reserve(fewest.size());
  std::ranges::copy_if(fewest, std::back_inserter(result), [&sets](uint64_t ino) {
    return std::ranges::all_of(sets, [ino](const auto* set) { return set->contains(ino); });
  });
  return result;
}

void EntryIndex::list(std::span<const Filter> filters, const Asker& asker, const TellListed& tell) {
  constexpr size_t kTurn = 128;  // names that are copied at a time
  size_t listed = 0;
  const std::vector<uint64_t> inodes = having(filters, &asker.work);
  for (std::span<const uint64_t> left(inodes); !left.empty();) {
    const auto turn = left.first(std::min(kTurn, left.size()));
    left = left.subspan(turn.size());
    for (Candidate& each : candidates(turn, asker)) {
      if (!asker.work.goes_on() || listed == kMostListed) return;
      auto found = look_at(std::move(each), asker);
      const auto fd = found ? arena_.open(found->handle, O_PATH | O_NOFOLLOW) : fail(ENOENT);
      if (!fd) continue;
      const Metadata metadata = read_metadata(fd->get(), true);
      if (!std::ranges::all_of(filters,
                               [&](const auto& filter) { return metadata[filter.first] == filter.second; }))
        continue;
      ++listed;
      if (!tell(*found, metadata)) return;
    }
  }
}

uint64_t EntryIndex::leaf_below(uint64_t ino) {
  (void)work(now_ns() + kStepNs, true);  // the last leaf has just gone
  FairLock lock(mutex_);
  size_t links = 0;
  for (auto record = records_.find(ino); record != records_.end() && record->second.member;) {
    const auto follower = record->second.model->tree.follower_of(*record->second.member);
    if (!follower || ++links > kMostLinks) break;
    ino = *follower;
    record = records_.find(ino);
  }
  return ino;
}

std::optional<std::pair<sys::Handle, Entry::Tier>> EntryIndex::stored(uint64_t ino) {
  const LockedEntry entry(entries_.shard(ino), ino);
  if (entry == nullptr || !entry->is_settled()) return std::nullopt;
  return std::pair(handle_of(*entry), entry->tier);
}

}  // namespace kvcachefs
