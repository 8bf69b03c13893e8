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
// After those it reads this many of the entries whose parent has come, which takes 5 to 10 ms.
constexpr int kMostFollowers = 512;
// The memory of a record, with what the allocator adds: without the bytes of its name, and with values that
// other entries have, too.
constexpr uint64_t kRecordBytes = 528;
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

void EntryIndex::again(uint64_t ino) {
  MutexLock lock(queue_mutex_);
  if (!queued_.insert(ino).second) return;
  queue_.push_back(ino);
  ++waiting_;
}

// Two entries of one user may follow each other, or else entries of another user. Without a limit the index
// would read such entries for ever.
void EntryIndex::follows_again(uint64_t ino, const Record& record, Cause cause) {
  constexpr unsigned kMostRereads = 2;
  if (record.cause == cause && record.rereads == kMostRereads) return;
  MutexLock lock(queue_mutex_);
  if (!queued_.insert(ino).second) return;
  followers_.push_back({ino, cause});
  ++waiting_;
}

std::optional<EntryIndex::Next> EntryIndex::next(bool even_followers) {
  MutexLock lock(queue_mutex_);
  std::optional<Next> first;
  if (!queue_.empty()) {
    first = {queue_.front(), 0};
    queue_.pop_front();
  } else if (even_followers && !followers_.empty()) {
    first = followers_.front();
    followers_.pop_front();
  }
  if (first) queued_.erase(first->ino);
  return first;
}

bool EntryIndex::read_next(bool even_followers) {
  FairLock reading(reading_mutex_);
  if (vacate()) return true;
  const auto its = next(even_followers);
  if (!its) return false;
  read(*its);
  --waiting_;
  return true;
}

bool EntryIndex::work(uint64_t until_ns) {
  while (now_ns() < until_ns)
    if (!read_next(true)) return false;
  return true;
}

void EntryIndex::catch_up() {
  const uint64_t until_ns = now_ns() + kCatchUpNs;
  bool more = true;
  while (more && now_ns() < until_ns) more = read_next(false);
  if (!more)
    for (int followers = 0; (more = read_next(true)) && followers < kMostFollowers; ++followers) continue;
  if (more) ++cut_short_;
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
  const bool more = work(until_ns);
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

void EntryIndex::read(Next next) {
  const auto [ino, follows] = next;
  const Cause cause = follows != 0 ? follows : ++causes_;
  auto reading = reading_of(ino);
  const uint32_t generation = reading ? reading->record.generation : 0;
  {
    FairLock lock(mutex_);
    const OldPlace old = drop(ino);
    missing_.remove(ino);
    if (reading && !reading->record.name.empty() && !reading->metadata.empty()) {
      reading->record.cause = cause;
      if (follows != 0 && old.cause == cause) reading->record.rereads = old.rereads + 1;
      if (insert(ino, std::move(reading->record), reading->metadata, old))
        join_group(ino, reading->file, reading->metadata);
    }
    leave(ino, old, cause);
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
  if (metadata.tokens.size() >= kBlockTokens) insert_tokens(ino, known, metadata, old.parent);
  return true;
}

EntryIndex::OldPlace EntryIndex::drop(uint64_t ino) {
  const auto found = records_.find(ino);
  if (found == records_.end()) return {};
  Record& record = found->second;
  const OldPlace old = {record.model,          record.member, record.name,   record.parent,
                        record.first_follower, record.cause,  record.rereads};
  stop_following(ino, record);
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
  (void)work(now_ns() + kStepNs);  // the last leaf has just gone
  FairLock lock(mutex_);
  size_t links = 0;
  for (auto record = records_.find(ino); record != records_.end() && record->second.first_follower != 0;) {
    if (++links > kMostLinks) break;
    ino = record->second.first_follower;
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
