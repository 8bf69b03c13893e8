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

void EntryIndex::insert_tokens(uint64_t ino, Record& record, const Metadata& metadata) {
  const std::string& name = metadata[Attribute::kModel];
  Model& model = models_.try_emplace(name, Model{.name = name}).first->second;
  record.model = &model;
  ++model.records;
  insert_after_parent(ino, record, model, metadata);
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

void EntryIndex::insert_after_parent(uint64_t ino, Record& record, Model& model, const Metadata& metadata) {
  PrefixTree::Place start = PrefixTree::kStart;
  if (!metadata.parent.empty()) {
    const Checksum key = key_of(metadata.parent);
    record.follows = key;
    const Record* const parent = leading(key, model, record.uid);
    if (parent == nullptr || parent->uid != record.uid) {
      record.awaits = key;
      model.awaiting[key].emplace(record.uid, ino);
    }
    if (parent == nullptr) return;
    start = model.tree.end_of(*parent->member);
  }
  record.member = model.tree.insert(ino, start, metadata.tokens, record.access);
  if (!record.member || metadata.tokens.size() % kBlockTokens != 0) return;
  record.leads = true;
  for (const Checksum& key : keys_of(record.name)) {
    model.leading[key].emplace(record.uid, ino);
    if (const auto followers = model.awaiting.find(key); followers != model.awaiting.end())
      for (const auto& [user, follower] : followers->second)
        if (follower != ino && (user == record.uid || !records_.at(follower).member)) again(follower, true);
  }
}

const EntryIndex::Record* EntryIndex::leading(const Checksum& key, const Model& model, uid_t user) const {
  const auto known = model.leading.find(key);
  if (known == model.leading.end()) return nullptr;
  auto first = known->second.lower_bound({user, 0});
  if (first == known->second.end() || first->first != user) first = known->second.begin();
  return &records_.at(first->second);
}

std::optional<uint64_t> EntryIndex::parent_of(const Record& record) const {
  constexpr int kMostAlike = 64;  // entries of the same name, of one user or of all, that are tried
  const Model& model = *record.model;
  const auto known = model.leading.find(*record.follows);
  if (known == model.leading.end()) return std::nullopt;
  const auto start = model.tree.start_of(*record.member);
  const auto own = known->second.lower_bound({record.uid, 0});
  for (auto first : {own, known->second.begin()})
    for (int looks = 0; first != known->second.end() && looks < kMostAlike; ++first, ++looks)
      if (model.tree.end_of(*records_.at(first->second).member) == start) return first->second;
  return std::nullopt;
}

PrefixTree::Use EntryIndex::use_of_chain(uint64_t ino, const UseOf& use_of, const Asker& asker,
                                         std::unordered_map<uint64_t, PrefixTree::Use>& known) const {
  std::vector<uint64_t> chain;
  auto use = PrefixTree::Use::kUse;
  for (std::optional<uint64_t> next = ino; use == PrefixTree::Use::kUse;) {
    if (!next) {
      use = PrefixTree::Use::kSkip;
      break;
    }
    if (const auto its = known.find(*next); its != known.end()) {
      use = its->second;
      break;
    }
    const Record& record = records_.at(*next);
    const bool is_hidden = asker.whose_is(record.access) == PrefixTree::Whose::kUnreadable;
    use = is_hidden ? PrefixTree::Use::kSkip : use_of(*next);
    if (use == PrefixTree::Use::kStop) return use;
    chain.push_back(*next);
    if (record.model->tree.start_of(*record.member) == PrefixTree::kStart) break;
    next = parent_of(record);
  }
  for (const uint64_t each : chain) known[each] = use;
  return use;
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

void EntryIndex::leave(const OldPlace& old) {
  if (old.model == nullptr) return;
  Model& model = *old.model;
  if (old.member) model.tree.remove(*old.member, model.uncovered);
  if (!model.uncovered.empty()) to_vacate_.insert(&model);
  --model.records;
  count(model);
}

// Entries that follow one another in a circle all lose their places: none of them is read again for that, or
// it would go on for ever. They come back when the entry that they follow does.
void EntryIndex::lose_place(uint64_t ino) {
  Record& record = records_.at(ino);
  Model& model = *record.model;
  stop_leading(ino, record);
  record.leads = false;
  record.awaits = record.follows;
  model.awaiting[*record.follows].emplace(record.uid, ino);
  model.tree.remove(*std::exchange(record.member, std::nullopt), model.uncovered);
}

bool EntryIndex::vacate() {
  constexpr int kAtATime = 256;  // other threads get the lock in between
  FairLock lock(mutex_);
  if (to_vacate_.empty()) return false;
  Model& model = **to_vacate_.begin();
  for (int vacated = 0; vacated < kAtATime && !model.uncovered.empty();) {
    // If another entry covers the place by now, the entries that start there keep it.
    if (const auto ino = model.tree.entry_starting_at(model.uncovered.back())) {
      lose_place(*ino);
      ++vacated;
    } else {
      model.uncovered.pop_back();
    }
  }
  if (model.uncovered.empty()) to_vacate_.erase(&model);
  count(model);
  return true;
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
  if (ends) to_vacate_.erase(&model);
  if (ends) models_.erase(models_.find(model.name));
}

}  // namespace kvcachefs
