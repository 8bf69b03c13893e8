// EntryIndex: places the tokens of an entry after those of its parent, and keeps account of entries without
// room.
#include "tier/index/entry_index.h"

namespace kvcachefs {
namespace {

// The memory of a key that no other entry has: its place in the map, and the set of one.
constexpr uint64_t kKeyBytes = 96;

Checksum key_of(std::string_view text) {
  return checksum_of(std::as_bytes(std::span(text)));
}

// The names by which an entry's followers may call it: its path in the pool, its last component, and that
// without its ending, which for most engines is the hash of the block.
std::vector<Checksum> keys_of(std::string_view name) {
  std::vector<Checksum> keys = {key_of(name)};
  const std::string_view last = name.substr(name.rfind('/') + 1);
  if (last.size() < name.size()) keys.push_back(key_of(last));
  if (const size_t dot = last.find('.'); dot != std::string_view::npos && dot > 0)
    keys.push_back(key_of(last.substr(0, dot)));
  return keys;
}

}  // namespace

void EntryIndex::refuse(uint64_t ino) {
  ++refused_;
  missing_.add(ino);
}

bool EntryIndex::seek_refused() {
  if (room_.has_room_for_refused()) {
    sought_shard_ = 0;
    missing_.seeking_begins();
  }
  if (sought_shard_ == EntryTable::kShards) return false;
  EntryTable::Shard& shard = entries_.shards()[sought_shard_++];
  MutexLock lock(shard.mutex);
  for (const auto& [ino, entry] : shard.entries)
    if (!records_.contains(ino)) changed(entry);
  if (sought_shard_ == EntryTable::kShards) missing_.seeking_ended();
  return true;
}

void EntryIndex::insert_tokens(uint64_t ino, Record& record, const Metadata& metadata, uint64_t old_parent) {
  const std::string& name = metadata[Attribute::kModel];
  Model& model = models_.try_emplace(name, Model{.name = name}).first->second;
  record.model = &model;
  ++model.records;
  insert_after_parent(ino, record, metadata, old_parent);
  if (metadata.pre_rope) insert_similar(ino, record, model, metadata);
  count(model);
}

void EntryIndex::insert_similar(uint64_t ino, Record& record, Model& model, const Metadata& metadata) {
  const auto owner = owners_.acquire(metadata[Attribute::kAgent]);
  if (!owner) {
    refuse(ino);
    return;
  }
  record.owner = *owner;
  if (!model.similar) model.similar = std::make_unique<SimilarIndex>();
  if (!model.similar->insert(ino, *owner, metadata.tokens, 0)) refuse(ino);
}

void EntryIndex::insert_after_parent(uint64_t ino, Record& record, const Metadata& metadata,
                                     uint64_t old_parent) {
  Model& model = *record.model;
  PrefixTree::Place start = PrefixTree::kStart;
  uint64_t parent = 0;
  if (!metadata.parent.empty()) {
    const Checksum key = key_of(metadata.parent);
    record.follows = key;
    parent = leading(key, model, record.uid, old_parent);
    if (parent == 0 || records_.at(parent).uid != record.uid) {
      record.awaits = key;
      model.awaiting[key].emplace(record.uid, ino);
    }
    if (parent == 0) return;
    start = model.tree.end_of(*records_.at(parent).member);
  }
  record.member = model.tree.insert(ino, start, metadata.tokens, record.access);
  if (!record.member) return;
  if (parent != 0) follow(ino, record, parent);
  if (metadata.tokens.size() % kBlockTokens != 0) return;
  record.leads = true;
  for (const Checksum& key : keys_of(record.name)) {
    model.leading[key].emplace(record.uid, ino);
    const auto followers = model.awaiting.find(key);
    if (followers == model.awaiting.end()) continue;
    for (const auto& [user, follower] : followers->second)
      if (const Record& its = records_.at(follower); follower != ino && (user == record.uid || !its.member))
        follows_again(follower, its, record.cause);
  }
}

uint64_t EntryIndex::leading(const Checksum& key, const Model& model, uid_t user, uint64_t old_parent) const {
  const auto known = model.leading.find(key);
  if (known == model.leading.end()) return 0;
  const auto own = known->second.lower_bound({user, 0});
  const bool has_own = own != known->second.end() && own->first == user;
  const auto old = records_.find(old_parent);
  if (old != records_.end() && known->second.contains({old->second.uid, old_parent}) &&
      (!has_own || old->second.uid == user))
    return old_parent;
  return has_own ? own->second : known->second.begin()->second;
}

void EntryIndex::follow(uint64_t ino, Record& record, uint64_t parent) {
  record.parent = parent;
  record.next_follower = std::exchange(records_.at(parent).first_follower, ino);
  if (record.next_follower != 0) records_.at(record.next_follower).previous_follower = ino;
}

void EntryIndex::stop_following(uint64_t ino, Record& record) {
  if (record.parent == 0) return;
  if (record.next_follower != 0)
    records_.at(record.next_follower).previous_follower = record.previous_follower;
  if (record.previous_follower != 0)
    records_.at(record.previous_follower).next_follower = record.next_follower;
  else if (const auto parent = records_.find(record.parent);
           parent != records_.end() && parent->second.first_follower == ino)
    parent->second.first_follower = record.next_follower;
  record.parent = record.next_follower = record.previous_follower = 0;
}

void EntryIndex::drop_tokens(uint64_t ino, const Record& record) {
  Model& model = *record.model;
  if (record.owner) {
    model.similar->remove(ino);
    owners_.release(*record.owner);
    // The tree keeps the memory of its largest size.
    if (model.similar->blocks() == 0) model.similar.reset();
  }
  if (record.awaits) erase(model.awaiting, *record.awaits, record.uid, ino);
  stop_leading(ino, record);
}

void EntryIndex::stop_leading(uint64_t ino, const Record& record) {
  if (!record.leads) return;
  for (const Checksum& key : keys_of(record.name)) erase(record.model->leading, key, record.uid, ino);
}

void EntryIndex::leave(uint64_t ino, const OldPlace& old, Cause cause) {
  if (old.model == nullptr) return;
  Model& model = *old.model;
  if (old.first_follower != 0) {
    const auto now = records_.find(ino);
    const bool is_where_it_was =
        now != records_.end() && now->second.leads && now->second.model == &model &&
        now->second.name == old.name &&
        model.tree.start_of(*now->second.member) == model.tree.start_of(*old.member) &&
        model.tree.end_of(*now->second.member) == model.tree.end_of(*old.member);
    if (is_where_it_was)
      now->second.first_follower = old.first_follower;
    else
      orphans_.push_back({old.first_follower, cause});
  }
  if (old.member) model.tree.remove(*old.member);
  --model.records;
  count(model);
}

bool EntryIndex::vacate() {
  constexpr int kAtATime = 256;  // other threads get the lock in between
  FairLock lock(mutex_);
  if (orphans_.empty()) return false;
  for (int vacated = 0; vacated < kAtATime && !orphans_.empty(); ++vacated) {
    const auto [ino, cause] = orphans_.back();
    orphans_.back().first = records_.at(ino).next_follower;
    if (orphans_.back().first == 0) orphans_.pop_back();
    lose_place(ino, cause);
  }
  return true;
}

// An entry without a place leads no others. So all entries of a circle lose their places.
void EntryIndex::lose_place(uint64_t ino, Cause cause) {
  Record& record = records_.at(ino);
  Model& model = *record.model;
  stop_leading(ino, record);
  record.leads = false;
  record.parent = record.next_follower = record.previous_follower = 0;
  record.awaits = record.follows;
  model.awaiting[*record.follows].emplace(record.uid, ino);
  model.tree.remove(*std::exchange(record.member, std::nullopt));
  if (record.first_follower != 0) orphans_.push_back({std::exchange(record.first_follower, 0), cause});
  if (leading(*record.follows, model, record.uid, 0) != 0) follows_again(ino, record, cause);
  count(model);
}

void EntryIndex::erase(ByKey& from, const Checksum& key, uid_t user, uint64_t ino) {
  const auto found = from.find(key);
  if (found == from.end()) return;  // two of the entry's names have this key: anyone can make such names
  found->second.erase({user, ino});
  if (found->second.empty()) from.erase(found);
}

void EntryIndex::count(Model& model) {
  const bool ends = model.records == 0;
  const uint64_t similar_bytes = model.similar ? model.similar->memory_bytes() : 0;
  const uint64_t bytes = ends ? 0
                              : kModelBytes + model.tree.memory_bytes() + similar_bytes +
                                    (model.leading.size() + model.awaiting.size()) * kKeyBytes;
  const uint64_t blocks = ends ? 0 : model.tree.blocks();
  index_bytes_ += bytes - std::exchange(model.counted_bytes, bytes);
  indexed_blocks_ += blocks - std::exchange(model.counted_blocks, blocks);
  if (ends) models_.erase(models_.find(model.name));
}

}  // namespace kvcachefs
