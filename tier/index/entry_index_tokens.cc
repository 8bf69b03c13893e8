// Where the tokens of an entry come in its EntryIndex: after those of its parent.
#include "tier/index/entry_index.h"

namespace kvcachefs {
namespace {

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

void EntryIndex::insert_tokens(uint64_t ino, Record& record, const Metadata& metadata,
                               std::string_view its_name) {
  const std::string& name = metadata[Attribute::kModel];
  Model& model = models_.try_emplace(name, Model{.name = name}).first->second;
  record.model = &model;
  ++model.records;
  insert_after_parent(ino, record, model, metadata, its_name);
  if (metadata.pre_rope) insert_similar(ino, record, model, metadata);
  count(model);
}

void EntryIndex::insert_similar(uint64_t ino, Record& record, Model& model, const Metadata& metadata) {
  const auto owner = owners_.acquire(metadata[Attribute::kAgent]);
  if (!owner) {
    ++refused_;
    return;
  }
  record.owner = *owner;
  if (!model.similar) model.similar = std::make_unique<SimilarIndex>();
  model.similar->insert(ino, *owner, metadata.tokens, 0);
}

void EntryIndex::insert_after_parent(uint64_t ino, Record& record, Model& model, const Metadata& metadata,
                                     std::string_view name) {
  PrefixTree::Place start = PrefixTree::kStart;
  if (!metadata.parent.empty()) {
    const Checksum key = key_of(metadata.parent);
    const Record* const parent = leading(key, model, record.uid);
    if (parent == nullptr || parent->uid != record.uid) {
      record.awaits = key;
      model.awaiting[key].emplace(record.uid, ino);
    }
    if (parent == nullptr) return;
    start = model.tree.end_of(*parent->member);
  }
  record.member = model.tree.insert(ino, start, metadata.tokens);
  if (!record.member || metadata.tokens.size() % kBlockTokens != 0) return;
  record.keys = keys_of(name);
  for (const Checksum& key : record.keys) {
    model.leading[key].emplace(record.uid, ino);
    if (const auto followers = model.awaiting.find(key); followers != model.awaiting.end())
      for (const auto& [user, follower] : followers->second)
        if (follower != ino && (user == record.uid || !records_.at(follower).member)) again(follower);
  }
}

const EntryIndex::Record* EntryIndex::leading(const Checksum& key, const Model& model, uid_t user) const {
  const auto known = model.leading.find(key);
  if (known == model.leading.end()) return nullptr;
  auto first = known->second.lower_bound({user, 0});
  if (first == known->second.end() || first->first != user) first = known->second.begin();
  return &records_.at(first->second);
}

}  // namespace kvcachefs
