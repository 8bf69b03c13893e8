#include "tier/catalog/catalog_batch.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "tier/catalog/catalog_records.h"
#include "tier/catalog/content_layout.h"

namespace kvcachefs {
namespace {

constexpr size_t kNumberMax = 65535;  // xattrs of a node, and bytes of an xattr's name

bool usable_name(std::string_view name) {
  return !name.empty() && name.size() <= records::kNameMaxBytes;
}

bool usable(const CatalogNode& node) {
  return node.id != 0 && node.id < kCatalogIdLimit && node.xattrs.size() < kNumberMax &&
         std::ranges::all_of(node.xattrs, [](const auto& xattr) {
           return xattr.first.size() <= kNumberMax && xattr.second.size() <= UINT32_MAX;
         });
}

bool usable(const CatalogContent& content) {
  return content.extents.size() <= UINT32_MAX && std::ranges::all_of(content.extents, [](Extent extent) {
           return extent.count > 0 && extent.start + extent.count > extent.start;
         });
}

}  // namespace

Result<void> CatalogBatch::apply(std::span<const CatalogChange> changes) {
  for (const CatalogChange& one : changes) {
    Result<void> changed = std::visit([this](const auto& what) { return change(what); }, one);
    if (!changed) return changed;
  }
  if (Result<void> dropped = drop_nameless(); !dropped) return dropped;
  if (Result<void> written = write_nodes(); !written) return written;
  return write_contents();
}

Result<void> CatalogBatch::change(const PutNode& put) {
  if (!usable(put.node)) return fail(EINVAL, "a node that no catalog can hold");
  Result<Node*> node = this->node(put.node.id);
  if (!node) return pass(node);
  Node& target = **node;
  if (put.attributes_alone) {
    if (!target.present) return {};
    auto merged = with_attributes(target, put.node);
    if (!merged) return pass(merged);
    target.record = records::encode_node(*merged, target.names);
  } else {
    target.record = records::encode_node(put.node, target.names);
  }
  target.present = true;
  target.changed = true;
  target.mode = put.node.mode;
  highest_id_ = std::max(highest_id_, put.node.id);
  return {};
}

Result<CatalogNode> CatalogBatch::with_attributes(const Node& node, const CatalogNode& attributes) {
  const uint64_t id = attributes.id;
  CatalogNode before;
  if (!node.record.empty()) {
    (void)records::decode_node(id, node.record, before);
  } else {
    auto record = transaction_.get(CatalogTable::kNodes, records::id_key(id));
    if (!record) return pass(record);
    if (*record) (void)records::decode_node(id, **record, before);
  }
  CatalogNode merged = attributes;
  merged.link_target = std::move(before.link_target);
  merged.xattrs = std::move(before.xattrs);
  return merged;
}

Result<void> CatalogBatch::change(const PutName& put) {
  if (!usable_name(put.name) || put.parent == 0 || put.id <= kCatalogRoot)
    return fail(EINVAL, "a name that no catalog can hold");
  const records::NameKey key(put.parent, put.name);
  auto before = named(key);
  if (!before) return pass(before);
  if (*before == put.id) return {};
  if (*before)
    if (Result<void> lost = lose_name(**before); !lost) return lost;
  Result<Node*> node = this->node(put.id);
  if (!node) return pass(node);
  if (!(*node)->present) return transaction_.erase(CatalogTable::kNames, key);
  ++(*node)->names;
  (*node)->changed = true;
  return transaction_.put(CatalogTable::kNames, key, records::encode_name(key, put.id));
}

Result<void> CatalogBatch::change(const DropName& drop) {
  if (!usable_name(drop.name)) return {};
  const records::NameKey key(drop.parent, drop.name);
  auto before = named(key);
  if (!before) return pass(before);
  if (*before)
    if (Result<void> lost = lose_name(**before); !lost) return lost;
  return transaction_.erase(CatalogTable::kNames, key);
}

Result<void> CatalogBatch::change(const PutContent& put) {
  if (!usable(put.content)) return fail(EINVAL, "a content that no catalog can hold");
  Result<Node*> node = this->node(put.id);
  if (!node) return pass(node);
  if (!(*node)->present) {
    release(put.content.extents);
    return {};
  }
  if (Result<void> dropped = drop_content(put.id); !dropped) return dropped;
  contents_[put.id].put = &put.content;
  return {};
}

Result<CatalogBatch::Node*> CatalogBatch::node(uint64_t id) {
  const auto [place, unknown] = nodes_.try_emplace(id);
  Node& node = place->second;
  if (!unknown || id > stored_highest_id_) return &node;
  const records::IdKey key = records::id_key(id);
  auto record = transaction_.get(CatalogTable::kNodes, key);
  if (!record) return pass(record);
  node.stored = record->has_value();
  if (!node.stored) return &node;
  // A damaged node counts as absent: a PutNode makes it whole.
  if (const std::optional<records::NodeFacts> facts = records::node_facts(id, **record)) {
    node.present = true;
    node.names = facts->names;
    node.mode = facts->mode;
  }
  return &node;
}

// content() releases the extents of the stored content at once, because every use of this call replaces or
// drops that content. freed() takes out the extents that are put again.
Result<CatalogBatch::Content*> CatalogBatch::content(uint64_t id) {
  const auto [place, unknown] = contents_.try_emplace(id);
  Content& content = place->second;
  if (!unknown || id > stored_highest_id_) return &content;
  const records::IdKey key = records::id_key(id);
  auto record = transaction_.get(CatalogTable::kContents, key);
  if (!record) return pass(record);
  content.stored = record->has_value();
  if (CatalogContent old; content.stored && records::decode_content(id, **record, old)) release(old.extents);
  return &content;
}

// The node that a name stands for; a damaged name stands for none.
Result<std::optional<uint64_t>> CatalogBatch::named(std::string_view key) {
  auto record = transaction_.get(CatalogTable::kNames, key);
  if (!record) return pass(record);
  if (!*record) return std::nullopt;
  return records::decode_name(key, **record);
}

Result<void> CatalogBatch::lose_name(uint64_t id) {
  Result<Node*> node = this->node(id);
  if (!node) return pass(node);
  if ((*node)->names > 0) --(*node)->names;
  (*node)->changed = true;
  (*node)->lost_name = true;
  if ((*node)->names == 0) nameless_.push_back(id);
  return {};
}

Result<void> CatalogBatch::drop_content(uint64_t id) {
  Result<Content*> content = this->content(id);
  if (!content) return pass(content);
  if ((*content)->put != nullptr) release((*content)->put->extents);
  (*content)->put = nullptr;
  (*content)->changed = true;
  return {};
}

Result<void> CatalogBatch::drop_nameless() {
  while (!nameless_.empty()) {
    const uint64_t id = nameless_.back();
    nameless_.pop_back();
    Node& node = nodes_.at(id);
    if (node.names > 0 || !node.lost_name || id == kCatalogRoot) continue;
    node.lost_name = false;
    node.present = false;
    if (Result<void> dropped = drop_content(id); !dropped) return dropped;
    if (S_ISDIR(node.mode))
      if (Result<void> dropped = drop_names_in(id); !dropped) return dropped;
  }
  return {};
}

Result<void> CatalogBatch::drop_names_in(uint64_t directory) {
  const records::IdKey prefix = records::id_key(directory);
  std::vector<std::string> keys;
  auto scan = transaction_.scan(CatalogTable::kNames, prefix);
  if (!scan) return pass(scan);
  while (scan->valid() && scan->key().starts_with(prefix)) {
    keys.emplace_back(scan->key());
    if (Result<void> moved = scan->next(); !moved) return moved;
  }
  for (const std::string& key : keys) {
    auto id = named(key);
    if (!id) return pass(id);
    if (*id)
      if (Result<void> lost = lose_name(**id); !lost) return lost;
    if (Result<void> erased = transaction_.erase(CatalogTable::kNames, key); !erased) return erased;
  }
  return {};
}

Result<void> CatalogBatch::write_nodes() {
  for (auto& [id, node] : nodes_) {
    if (!node.changed) continue;
    const records::IdKey key = records::id_key(id);
    Result<void> written;
    if (node.present) {
      if (node.record.empty()) {
        auto stored = transaction_.get(CatalogTable::kNodes, key);
        if (!stored) return pass(stored);
        node.record = stored->value_or("");
      }
      if (node.record.size() < records::kNodeBytes) return fail(EUCLEAN, "a node changed by itself");
      records::set_names(id, node.record, node.names);
      written = transaction_.put(CatalogTable::kNodes, key, node.record);
    } else if (node.stored) {
      written = transaction_.erase(CatalogTable::kNodes, key);
    }
    if (!written) return written;
  }
  return {};
}

Result<void> CatalogBatch::write_contents() {
  bool puts_holes = false;
  for (const auto& [id, content] : contents_) {
    if (!content.changed) continue;
    puts_holes = puts_holes || (content.put != nullptr && has_holes(content.put->extents));
    const records::IdKey key = records::id_key(id);
    Result<void> written;
    if (content.put != nullptr)
      written = transaction_.put(CatalogTable::kContents, key, records::encode_content(id, *content.put));
    else if (content.stored)
      written = transaction_.erase(CatalogTable::kContents, key);
    if (!written) return written;
  }
  return puts_holes ? transaction_.put(CatalogTable::kSettings, records::kFormatSetting,
                                       std::to_string(records::kFormat))
                    : Result<void>();
}

void CatalogBatch::release(const std::vector<Extent>& extents) {
  std::ranges::remove_copy_if(extents, std::back_inserter(released_), is_hole);
}

// The extents released, each unit once, without those that the batch's contents name at the end.
std::vector<Extent> CatalogBatch::freed() const {
  if (released_.empty()) return {};
  std::vector<Extent> released = released_;
  std::vector<Extent> kept;
  for (const auto& [id, content] : contents_)
    if (content.put != nullptr)
      std::ranges::remove_copy_if(content.put->extents, std::back_inserter(kept), is_hole);
  std::ranges::sort(released);
  std::ranges::sort(kept);
  std::vector<Extent> freed;
  auto keep = kept.begin();
  uint64_t done = 0;  // all units before it have been handled
  for (const Extent& extent : released) {
    uint64_t at = std::max(done, extent.start);
    const uint64_t end = extent.start + extent.count;
    done = std::max(done, end);
    while (at < end) {
      while (keep != kept.end() && keep->start + keep->count <= at) ++keep;
      const uint64_t stop = keep == kept.end() ? end : std::clamp(keep->start, at, end);
      if (stop > at) freed.push_back({at, stop - at});
      at = keep == kept.end() || stop == end ? end : keep->start + keep->count;
    }
  }
  return freed;
}

}  // namespace kvcachefs
