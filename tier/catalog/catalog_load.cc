#include "tier/catalog/catalog_load.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>

namespace kvcachefs {

using records::IdKey;

std::string_view to_string(CatalogLoss loss) {
  constexpr std::array<std::string_view, 9> kTexts = {
      "damaged node",        "damaged name",         "damaged content",        "node without a name",
      "name without a node", "file without content", "content without a file", "second name of a directory",
      "wrong count of names"};
  static_assert(kTexts.size() == static_cast<size_t>(CatalogLoss::kWrongCount) + 1);
  return kTexts[static_cast<size_t>(loss)];
}

Result<void> CatalogLoad::Repair::apply(CatalogTransaction& transaction) const {
  for (const auto& [table, key] : drops)
    if (Result<void> erased = transaction.erase(table, key); !erased) return erased;
  for (const auto& [id, count] : counts) {
    const IdKey key = records::id_key(id);
    auto stored = transaction.get(CatalogTable::kNodes, key);
    if (!stored) return pass(stored);
    if (!*stored || !records::node_facts(id, **stored)) continue;
    std::string record(**stored);
    records::set_names(id, record, count);
    Result<void> put = transaction.put(CatalogTable::kNodes, key, record);
    if (!put) return put;
  }
  return {};
}

Result<void> CatalogLoad::run() {
  if (Result<void> found = find_directories(); !found) return found;
  if (Result<void> read = read_names(); !read) return read;
  walk_directories();
  visitor_.directories_done();
  std::ranges::sort(names_, {}, [](const Name& name) { return std::pair(name.id, name.place); });
  return visit_files();
}

void CatalogLoad::lose(CatalogLoss loss, CatalogTable table, std::string_view key, uint64_t id) {
  const std::optional<CatalogName> name =
      table == CatalogTable::kNames ? records::name_of(key) : std::nullopt;
  visitor_.lost(loss, id, name ? name->name : std::string_view());
  repair_.drops.emplace_back(table, key);
}

// The root always exists: even if it was never put, or is damaged, its names are reached.
Result<void> CatalogLoad::find_directories() {
  directories_[kCatalogRoot];
  auto scan = transaction_.scan(CatalogTable::kNodes);
  if (!scan) return pass(scan);
  while (scan->valid()) {
    const uint64_t id = records::id_of(scan->key()).value_or(0);
    const std::optional<records::NodeFacts> facts = records::node_facts(id, scan->value());
    if (facts && S_ISDIR(facts->mode)) directories_[id].record = scan->value();
    if (Result<void> moved = scan->next(); !moved) return moved;
  }
  return {};
}

Result<void> CatalogLoad::read_names() {
  auto scan = transaction_.scan(CatalogTable::kNames);
  if (!scan) return pass(scan);
  uint64_t parent = 0;
  Directory* directory = nullptr;
  while (scan->valid()) {
    const std::string_view key = scan->key();
    const std::optional<CatalogName> name = records::name_of(key);
    const std::optional<uint64_t> id = name ? records::decode_name(key, scan->value()) : std::nullopt;
    if (!id) {
      lose(CatalogLoss::kDamagedName, CatalogTable::kNames, key, 0);
    } else if (name->parent == kCatalogWithheld) {
      withheld_.insert(*id);
      repair_.drops.emplace_back(CatalogTable::kNames, key);
    } else {
      if (name->parent != parent) {
        parent = name->parent;
        const auto found = directories_.find(parent);
        directory = found == directories_.end() ? nullptr : &found->second;
        if (directory != nullptr) directory->names_begin = names_.size();
      }
      names_.push_back(
          {*id, key.data(), static_cast<uint32_t>(names_.size()), static_cast<uint16_t>(key.size()), false});
      if (directory != nullptr) directory->names_end = names_.size();
    }
    if (Result<void> moved = scan->next(); !moved) return moved;
  }
  return {};
}

void CatalogLoad::walk_directories() {
  std::deque<uint64_t> reached{kCatalogRoot};
  Directory& root = directories_[kCatalogRoot];
  root.reached = true;
  if (!root.record.empty() && records::decode_node(kCatalogRoot, root.record, node_))
    visitor_.node(node_, {}, nullptr);
  while (!reached.empty()) {
    const Directory& directory = directories_.at(reached.front());
    reached.pop_front();
    for (size_t index = directory.names_begin; index < directory.names_end; ++index) {
      Name& name = names_[index];
      name.used = true;
      const auto found = directories_.find(name.id);
      if (found != directories_.end())
        reach(name, found->second, reached);
      else
        visitor_.to_be_visited(*records::name_of(name.view()), name.id);
    }
  }
}

void CatalogLoad::reach(Name& name, Directory& directory, std::deque<uint64_t>& reached) {
  if (directory.reached) {
    lose(CatalogLoss::kSecondName, CatalogTable::kNames, name.view(), name.id);
    name.id = 0;  // reported: the name belongs to no node any more
    return;
  }
  if (!records::decode_node(name.id, directory.record, node_)) return;  // visit() reports it
  directory.reached = true;
  reached.push_back(name.id);
  const CatalogName known = *records::name_of(name.view());
  visitor_.node(node_, std::span(&known, 1), nullptr);
}

Result<void> CatalogLoad::visit_files() {
  auto nodes = transaction_.scan(CatalogTable::kNodes);
  if (!nodes) return pass(nodes);
  auto contents = transaction_.scan(CatalogTable::kContents);
  if (!contents) return pass(contents);
  auto name = names_.begin();
  const auto lose_names_before = [&](uint64_t id) {
    for (; name != names_.end() && name->id < id; ++name)
      if (name->id != 0) lose(CatalogLoss::kNameWithoutNode, CatalogTable::kNames, name->view(), name->id);
  };
  while (nodes->valid()) {
    if (Result<void> visited = visit_wanted(); !visited) return visited;
    const uint64_t id = records::id_of(nodes->key()).value_or(0);
    lose_names_before(id);
    const auto first = name;
    while (name != names_.end() && name->id == id) ++name;
    if (Result<void> skipped = skip_contents(*contents, id); !skipped) return skipped;
    Result<void> visited = visit(id, nodes->key(), nodes->value(), std::span(first, name), *contents);
    if (!visited) return visited;
    if (Result<void> moved = nodes->next(); !moved) return moved;
  }
  lose_names_before(UINT64_MAX);
  if (Result<void> visited = visit_wanted(); !visited) return visited;
  return skip_contents(*contents, UINT64_MAX);
}

// What is lost is reported when its turn comes.
Result<void> CatalogLoad::visit_wanted() {
  for (uint64_t id = visitor_.wanted(); id != 0; id = visitor_.wanted()) {
    const auto key = records::id_key(id);
    auto record = transaction_.look_up(CatalogTable::kNodes, key);
    if (!record) return pass(record);
    auto content = transaction_.look_up(CatalogTable::kContents, key);
    if (!content) return pass(content);
    if (!*record || !records::decode_node(id, **record, node_) || S_ISDIR(node_.mode)) continue;
    const bool is_file = S_ISREG(node_.mode);
    if (is_file && !(*content && records::decode_content(id, **content, content_))) continue;
    node_names_.clear();
    for (const Name& name : std::ranges::equal_range(names_, id, {}, &Name::id))
      if (name.used) node_names_.push_back(*records::name_of(name.view()));
    if (!node_names_.empty()) visitor_.node(node_, node_names_, is_file ? &content_ : nullptr);
  }
  return {};
}

Result<void> CatalogLoad::skip_contents(CatalogTransaction::Scan& contents, uint64_t until_id) {
  while (contents.valid() && records::id_of(contents.key()).value_or(0) < until_id) {
    lose(CatalogLoss::kContentWithoutNode, CatalogTable::kContents, contents.key(),
         records::id_of(contents.key()).value_or(0));
    if (Result<void> moved = contents.next(); !moved) return moved;
  }
  return {};
}

// visit() handles a node that is no directory, or a directory that walk_directories() could not reach.
Result<void> CatalogLoad::visit(uint64_t id, std::string_view key, std::string_view record,
                                std::span<Name> names, CatalogTransaction::Scan& contents) {
  const bool has_content = contents.valid() && records::id_of(contents.key()) == id;
  const std::optional<records::NodeFacts> facts = records::node_facts(id, record);
  const bool readable = id != 0 && facts && (id != kCatalogRoot || S_ISDIR(facts->mode)) &&
                        records::decode_node(id, record, node_);
  std::optional<CatalogLoss> loss;
  if (!readable) {
    loss = CatalogLoss::kDamagedNode;
  } else if (const auto directory = directories_.find(id); directory != directories_.end()) {
    if (!directory->second.reached) loss = CatalogLoss::kNodeWithoutName;
  } else if (std::ranges::none_of(names, &Name::used)) {
    loss = CatalogLoss::kNodeWithoutName;
  } else if (S_ISREG(facts->mode) && !has_content) {
    loss = CatalogLoss::kFileWithoutContent;
  } else if (S_ISREG(facts->mode) && !records::decode_content(id, contents.value(), content_)) {
    loss = CatalogLoss::kDamagedContent;
  }
  if (loss == CatalogLoss::kNodeWithoutName && withheld_.contains(id)) {
    repair_.drops.emplace_back(CatalogTable::kNodes, key);
  } else if (loss) {
    lose(*loss, CatalogTable::kNodes, key, id);
    for (const Name& name : names) repair_.drops.emplace_back(CatalogTable::kNames, name.view());
  } else {
    keep(id, *facts, names);
  }
  if (!has_content) return {};
  if (loss)
    repair_.drops.emplace_back(CatalogTable::kContents, contents.key());
  else if (!S_ISREG(facts->mode))
    lose(CatalogLoss::kContentWithoutNode, CatalogTable::kContents, contents.key(), id);
  return contents.next();
}

void CatalogLoad::keep(uint64_t id, const records::NodeFacts& facts, std::span<Name> names) {
  node_names_.clear();
  for (const Name& name : names) {
    if (name.used)
      node_names_.push_back(*records::name_of(name.view()));
    else
      lose(CatalogLoss::kNameWithoutNode, CatalogTable::kNames, name.view(), id);
  }
  if (node_names_.size() != facts.names) {
    if (!withheld_.contains(id)) visitor_.lost(CatalogLoss::kWrongCount, id, {});
    repair_.counts.emplace_back(id, static_cast<uint32_t>(node_names_.size()));
  }
  if (!S_ISDIR(facts.mode)) visitor_.node(node_, node_names_, S_ISREG(facts.mode) ? &content_ : nullptr);
}

}  // namespace kvcachefs
