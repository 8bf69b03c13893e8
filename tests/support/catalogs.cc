#include "tests/support/catalogs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <functional>
#include <iterator>

#include "tier/catalog/content_layout.h"

namespace kvcachefs::test {
namespace {

std::string line_of(const CatalogNode& node, std::vector<std::string> names, const CatalogContent* content) {
  std::ranges::sort(names);
  std::string line =
      fmt::format("{} mode {:o} owner {}:{} device {} times {}.{} {}.{} pinned {} -> '{}'", node.id,
                  node.mode, node.uid, node.gid, node.device, node.accessed.tv_sec, node.accessed.tv_nsec,
                  node.modified.tv_sec, node.modified.tv_nsec, node.pinned, node.link_target);
  for (const auto& [name, value] : node.xattrs) line += fmt::format(" {}={}", name, value);
  for (const std::string& name : names) line += " @" + name;
  if (content == nullptr) return line + "\n";
  line += fmt::format(" size {} checksum {:x}:{:x} version {}", content->size_bytes, content->checksum.high,
                      content->checksum.low, content->version);
  for (const Extent& extent : content->extents) line += fmt::format(" {}+{}", extent.start, extent.count);
  return line + "\n";
}

std::string name_text(uint64_t parent, std::string_view name) {
  return fmt::format("{}/{}", parent, name);
}

class TextVisitor : public CatalogVisitor {
 public:
  void node(const CatalogNode& node, std::span<const CatalogName> names,
            const CatalogContent* content) override {
    std::vector<std::string> texts;
    for (const CatalogName& name : names) {
      EXPECT_TRUE(name.parent == kCatalogRoot || directories_.contains(name.parent)) << "parents come first";
      texts.push_back(name_text(name.parent, name.name));
    }
    if (S_ISDIR(node.mode)) directories_.insert(node.id);
    EXPECT_EQ(content != nullptr, S_ISREG(node.mode)) << node.id;
    EXPECT_TRUE(lines_.emplace(node.id, line_of(node, std::move(texts), content)).second);
  }
  void lost(CatalogLoss loss, uint64_t id, std::string_view name) override {
    losses_.push_back(fmt::format("lost {}: {} '{}'\n", to_string(loss), id, name));
  }
  std::string text() {
    std::string text;
    for (const auto& [id, line] : lines_) text += line;
    for (const std::string& loss : losses_) text += loss;
    return text;
  }

 private:
  std::map<uint64_t, std::string> lines_;
  std::vector<std::string> losses_;
  std::set<uint64_t> directories_;
};

}  // namespace

std::set<uint64_t> units_of(std::span<const Extent> extents) {
  std::set<uint64_t> units;
  for (const Extent& extent : extents)
    for (uint64_t unit = extent.start; !is_hole(extent) && unit < extent.start + extent.count; ++unit)
      EXPECT_TRUE(units.insert(unit).second) << "unit " << unit << " twice";
  return units;
}

// --- NaiveCatalog ---

bool NaiveCatalog::is_directory(uint64_t id) const {
  const auto found = nodes.find(id);
  return id == kCatalogRoot || (found != nodes.end() && S_ISDIR(found->second.mode));
}

size_t NaiveCatalog::count_names(uint64_t id) const {
  return std::ranges::count_if(names, [&](const auto& name) { return name.second == id; });
}

bool NaiveCatalog::is_within(uint64_t id, uint64_t directory) const {
  while (id != directory) {
    const auto up = std::ranges::find_if(names, [&](const auto& name) { return name.second == id; });
    if (up == names.end()) return false;
    id = up->first.first;
  }
  return true;
}

std::set<uint64_t> NaiveCatalog::units() const {
  std::set<uint64_t> all;
  for (const auto& [id, content] : contents) all.merge(units_of(content.extents));
  return all;
}

void NaiveCatalog::apply(const CatalogChange& change) {
  if (const auto* node = std::get_if<PutNode>(&change)) {
    const auto before = nodes.find(node->node.id);
    if (node->attributes_alone && before == nodes.end()) return;
    CatalogNode put = node->node;
    if (node->attributes_alone) {
      put.link_target = before->second.link_target;
      put.xattrs = before->second.xattrs;
    }
    nodes[put.id] = std::move(put);
  } else if (const auto* name = std::get_if<PutName>(&change)) {
    const Name key(name->parent, name->name);
    const auto before = names.find(key);
    if (before != names.end() && before->second == name->id) return;
    if (before != names.end()) {
      lost_name_.insert(before->second);
      names.erase(before);
    }
    if (nodes.contains(name->id)) names[key] = name->id;
  } else if (const auto* drop = std::get_if<DropName>(&change)) {
    const auto before = names.find({drop->parent, drop->name});
    if (before == names.end()) return;
    lost_name_.insert(before->second);
    names.erase(before);
  } else if (const auto* content = std::get_if<PutContent>(&change)) {
    refused_units_.merge(units_of(content->content.extents));
    if (nodes.contains(content->id)) contents[content->id] = content->content;
  }
}

void NaiveCatalog::drop_nameless() {
  for (bool again = true; again;) {
    again = false;
    for (const uint64_t id : std::set<uint64_t>(lost_name_)) {
      if (!nodes.contains(id) || count_names(id) > 0) continue;
      again = true;
      nodes.erase(id);
      contents.erase(id);
      for (auto name = names.lower_bound({id, ""}); name != names.end() && name->first.first == id;
           name = names.erase(name))
        lost_name_.insert(name->second);
    }
  }
  lost_name_.clear();
}

std::set<uint64_t> NaiveCatalog::commit(std::span<const CatalogChange> changes) {
  std::set<uint64_t> freed = units();
  refused_units_.clear();
  for (const CatalogChange& change : changes) apply(change);
  drop_nameless();
  freed.merge(refused_units_);
  for (const uint64_t unit : units()) freed.erase(unit);
  return freed;
}

std::string NaiveCatalog::text() const {
  std::string text;
  for (const auto& [id, node] : nodes) {
    std::vector<std::string> texts;
    for (const auto& [name, target] : names)
      if (target == id) texts.push_back(name_text(name.first, name.second));
    if (id != kCatalogRoot && texts.empty()) continue;
    const auto content = contents.find(id);
    text += line_of(node, texts, content == contents.end() ? nullptr : &content->second);
  }
  return text;
}

std::string text_of(Catalog& catalog, Catalog::Losses losses) {
  TextVisitor visitor;
  const Result<void> loaded = catalog.load(visitor, losses);
  EXPECT_TRUE(loaded) << loaded.error().message;
  return visitor.text();
}

namespace {

// Visits all, and calls back for each node.
class EachNode final : public CatalogVisitor {
 public:
  using Visit = std::function<void(const CatalogNode&, std::span<const CatalogName>, const CatalogContent*)>;
  EachNode(Catalog& catalog, uint64_t id, Visit visit) : id_(id), visit_(std::move(visit)) {
    EXPECT_TRUE(catalog.load(*this, Catalog::Losses::kKeep));
  }
  void node(const CatalogNode& node, std::span<const CatalogName> names,
            const CatalogContent* content) override {
    visit_(node, names, content);
  }
  void lost(CatalogLoss loss, uint64_t id, std::string_view name) override {
    EXPECT_TRUE(id != id_ || id_ == 0) << to_string(loss) << " " << name;
  }

 private:
  const uint64_t id_;
  const Visit visit_;
};

}  // namespace

std::optional<CatalogNode> node_in(Catalog& catalog, uint64_t id) {
  std::optional<CatalogNode> found;
  EachNode(catalog, id, [&](const CatalogNode& node, std::span<const CatalogName>, const CatalogContent*) {
    if (node.id == id) found = node;
  });
  return found;
}

std::optional<CatalogContent> content_in(Catalog& catalog, uint64_t id) {
  std::optional<CatalogContent> found;
  EachNode(catalog, id,
           [&](const CatalogNode& node, std::span<const CatalogName>, const CatalogContent* content) {
             if (node.id == id && content != nullptr) found = *content;
           });
  return found;
}

std::optional<uint64_t> id_in(Catalog& catalog, uint64_t parent, std::string_view name) {
  std::optional<uint64_t> found;
  EachNode(catalog, 0,
           [&](const CatalogNode& node, std::span<const CatalogName> names, const CatalogContent*) {
             for (const CatalogName& its : names)
               if (its.parent == parent && its.name == name) found = node.id;
           });
  return found;
}

CatalogNode file_node(uint64_t id, uint32_t permissions) {
  CatalogNode node;
  node.id = id;
  node.mode = S_IFREG | permissions;
  return node;
}

CatalogNode directory_node(uint64_t id) {
  CatalogNode node;
  node.id = id;
  node.mode = S_IFDIR | 0755;
  return node;
}

CatalogContent content_of(std::vector<Extent> extents, uint64_t seed) {
  uint64_t units = 0;
  for (const Extent& extent : extents) units += extent.count;
  return {.size_bytes = units * 65536,
          .checksum = {seed, ~seed},
          .version = static_cast<uint32_t>(seed),
          .extents = std::move(extents)};
}

// --- CatalogChanges ---

std::vector<CatalogChange> CatalogChanges::batch(const NaiveCatalog& before, size_t operations) {
  state_ = before;
  changes_.clear();
  while (operations-- > 0) operation();
  return std::move(changes_);
}

void CatalogChanges::add(CatalogChange change) {
  state_.apply(change);
  changes_.push_back(std::move(change));
}

std::string CatalogChanges::random_name() {
  const std::string name(1, static_cast<char>('a' + random_.below(20)));
  return random_.one_in(50) ? name + std::string(254, 'x') : name;
}

uint64_t CatalogChanges::random_directory() {
  std::vector<uint64_t> directories{kCatalogRoot};
  for (const auto& [id, node] : state_.nodes)
    if (S_ISDIR(node.mode) && state_.is_within(id, kCatalogRoot)) directories.push_back(id);
  return directories[random_.below(directories.size())];
}

const std::pair<const NaiveCatalog::Name, uint64_t>* CatalogChanges::random_entry() {
  if (state_.names.empty()) return nullptr;
  return &*std::next(state_.names.begin(), static_cast<ptrdiff_t>(random_.below(state_.names.size())));
}

CatalogNode CatalogChanges::random_node(uint64_t id, uint32_t type) {
  CatalogNode node;
  node.id = id;
  node.mode = type | static_cast<uint32_t>(random_.below(01000));
  node.uid = static_cast<uint32_t>(random_.below(70000));
  node.gid = static_cast<uint32_t>(random_.next());
  node.accessed = {static_cast<time_t>(random_.below(1ull << 33)),
                   static_cast<long>(random_.below(1'000'000'000))};
  node.modified = {-static_cast<time_t>(random_.below(100)), static_cast<long>(random_.below(1'000'000'000))};
  node.pinned = random_.one_in(4);
  if (type == S_IFLNK) node.link_target = std::string(random_.below(300) + 1, 't');
  if (type == S_IFCHR) node.device = random_.next();
  for (uint64_t count = random_.one_in(3) ? random_.below(4) : 0; count > 0; --count)
    node.xattrs.emplace_back(fmt::format("user.kv.{}", count),
                             std::string(random_.below(random_.one_in(9) ? 9000 : 20), 'v'));
  return node;
}

void CatalogChanges::put_content(uint64_t id) {
  static constexpr uint64_t kUnits = 1 << 20;
  const std::set<uint64_t> used = state_.units();
  std::vector<Extent> extents;
  // A new content may keep an extent of the old content.
  const auto old = state_.contents.find(id);
  if (old != state_.contents.end() && !old->second.extents.empty() && random_.one_in(3))
    extents.push_back(old->second.extents.front());
  for (uint64_t count = random_.below(4); count > 0; --count) {
    if (random_.one_in(4)) extents.push_back({0, random_.below(1000) + 1});  // a hole
    const uint64_t start = random_.below(kUnits) * 8;
    const Extent extent{start, random_.below(8) + 1};
    const auto next = used.lower_bound(start);
    const bool taken = (next != used.end() && *next < start + 8) ||
                       std::ranges::any_of(extents, [&](Extent e) { return e.start == start; });
    if (!taken) extents.push_back(extent);
  }
  add(PutContent{id, content_of(extents, random_.next())});
}

void CatalogChanges::create() {
  uint64_t id = std::max<uint64_t>(state_.nodes.empty() ? 1 : state_.nodes.rbegin()->first, 1);
  id += 1 + random_.below(3);
  const uint32_t types[] = {S_IFREG, S_IFREG, S_IFREG, S_IFDIR, S_IFLNK, S_IFCHR};
  const uint32_t type = types[random_.below(std::size(types))];
  const uint64_t parent = random_directory();
  add(PutNode{random_node(id, type)});
  if (type == S_IFREG && random_.one_in(2)) put_content(id);
  add(PutName{parent, random_name(), id});
  if (type == S_IFREG && !state_.contents.contains(id)) put_content(id);
}

void CatalogChanges::move() {
  const auto* entry = random_entry();
  if (entry == nullptr) return;
  const auto [from, id] = *entry;
  const uint64_t parent = random_directory();
  const bool is_directory = state_.is_directory(id);
  if (is_directory && state_.is_within(parent, id)) return;
  const std::string name = random_name();
  if (parent == from.first && name == from.second) return;
  const bool keep_old = !is_directory && random_.one_in(3);  // a hard link
  const bool old_first = random_.one_in(2);
  if (!keep_old && old_first) add(DropName{from.first, from.second});
  add(PutName{parent, name, id});
  if (!keep_old && !old_first) add(DropName{from.first, from.second});
}

void CatalogChanges::exchange() {
  const auto* one = random_entry();
  const auto* two = random_entry();
  if (one == nullptr || state_.is_directory(one->second) || state_.is_directory(two->second)) return;
  const PutName first{one->first.first, one->first.second, two->second};
  const PutName second{two->first.first, two->first.second, one->second};
  add(first);
  add(second);
}

// A change that comes after its node was removed, or a second time.
void CatalogChanges::late() {
  const uint64_t gone = 1'000'000'000 + random_.below(1000);
  switch (random_.below(3)) {
    case 0:
      return add(PutContent{gone, content_of({{random_.below(1 << 20) + (1ull << 40), 2}})});
    case 1:
      return add(PutName{random_directory(), random_name(), gone});
    default:
      return add(DropName{gone, random_name()});
  }
}

void CatalogChanges::operation() {
  switch (random_.below(10)) {
    case 0:
    case 1:
    case 2:
    case 3:
      return create();
    case 4:
    case 5:
      return move();
    case 6:
      return exchange();
    case 7:
      return late();
    case 8:
      if (const auto* entry = random_entry(); entry != nullptr)
        add(DropName{entry->first.first, std::string(entry->first.second)});
      return;
    default:
      if (const auto* entry = random_entry(); entry != nullptr && state_.nodes.contains(entry->second)) {
        const uint64_t id = entry->second;
        const uint32_t type = state_.nodes.at(id).mode & S_IFMT;
        if (type == S_IFREG && random_.one_in(2)) return put_content(id);
        add(PutNode{random_node(id, type), random_.one_in(2)});
      }
  }
}

}  // namespace kvcachefs::test
