// NaiveCatalog computes in the simplest way what a catalog must hold; CatalogChanges makes seeded batches of
// changes for it. One thread. Never fails.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/support/files.h"
#include "tier/catalog/catalog.h"

namespace kvcachefs::test {

class NaiveCatalog {
 public:
  using Name = std::pair<uint64_t, std::string>;

  // commit() applies a batch and returns the units that no content names any more.
  std::set<uint64_t> commit(std::span<const CatalogChange> changes);
  // The text of all nodes that can be reached from the root, one node a line.
  std::string text() const;

  std::map<uint64_t, CatalogNode> nodes;
  std::map<Name, uint64_t> names;
  std::map<uint64_t, CatalogContent> contents;

  void apply(const CatalogChange& change);  // one change, without the removals at the end of a batch
  void drop_nameless();
  bool is_directory(uint64_t id) const;
  bool is_within(uint64_t id, uint64_t directory) const;
  size_t count_names(uint64_t id) const;
  std::set<uint64_t> units() const;

 private:
  std::set<uint64_t> lost_name_;
  std::set<uint64_t> refused_units_;
};

std::set<uint64_t> units_of(std::span<const Extent> extents);  // records a failure if a unit occurs twice

// The same text of a real catalog, with one line for each loss.
std::string text_of(Catalog& catalog, Catalog::Losses losses = Catalog::Losses::kKeep);

// What it has of one node, with nothing lost; the node itself may be missing.
std::optional<CatalogNode> node_in(Catalog& catalog, uint64_t id);
std::optional<CatalogContent> content_in(Catalog& catalog, uint64_t id);
// The node that has the name.
std::optional<uint64_t> id_in(Catalog& catalog, uint64_t parent, std::string_view name);

CatalogNode file_node(uint64_t id, uint32_t permissions = 0644);
CatalogNode directory_node(uint64_t id);
CatalogContent content_of(std::vector<Extent> extents, uint64_t seed = 1);

// Batches that a pool could commit: creations, overwrites, links, renames and exchanges in either order,
// removals of whole trees, new contents, and sometimes a change that comes too late. A batch depends only on
// the seed and on the content of the catalog.
class CatalogChanges {
 public:
  explicit CatalogChanges(uint64_t seed) : random_(seed) {}
  std::vector<CatalogChange> batch(const NaiveCatalog& before, size_t operations);

 private:
  void operation();
  void create();
  void move();
  void exchange();
  void late();
  void put_content(uint64_t id);
  void add(CatalogChange change);
  CatalogNode random_node(uint64_t id, uint32_t type);
  std::string random_name();
  uint64_t random_directory();
  const std::pair<const NaiveCatalog::Name, uint64_t>* random_entry();

  Random random_;
  NaiveCatalog state_;
  std::vector<CatalogChange> changes_;
};

}  // namespace kvcachefs::test
