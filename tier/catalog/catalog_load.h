// A CatalogLoad reads the whole catalog in one transaction and finds the usable records. Meanwhile a million
// entries take about 32 bytes each. One thread. Failure: the store's; nothing has been changed then.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tier/catalog/catalog.h"
#include "tier/catalog/catalog_records.h"
#include "tier/catalog/catalog_store.h"

namespace kvcachefs {

class CatalogLoad {
 public:
  CatalogLoad(CatalogTransaction& transaction, CatalogVisitor& visitor)
      : transaction_(transaction), visitor_(visitor) {}

  Result<void> run();

  // The records reported lost, as changes to the tables, to be applied after the visit in another
  // transaction.
  struct Repair {
    std::vector<std::pair<CatalogTable, std::string>> drops;
    std::vector<std::pair<uint64_t, uint32_t>> counts;  // of the names of nodes

    bool empty() const { return drops.empty() && counts.empty(); }
    Result<void> apply(CatalogTransaction& transaction) const;
  };
  Repair take_repair() { return std::move(repair_); }

 private:
  // Bytes of the map, which stay in place while the transaction lives.
  struct Name {
    uint64_t id;
    const char* key;
    uint32_t place;  // its index in the order of the table
    uint16_t key_bytes;
    bool used;  // its directory can be reached
    std::string_view view() const { return {key, key_bytes}; }
  };
  struct Directory {
    std::string_view record;
    size_t names_begin = 0;  // the range of its names in names_
    size_t names_end = 0;
    bool reached = false;
  };

  Result<void> read_names();
  Result<void> find_directories();
  void walk_directories();
  void reach(Name& name, Directory& directory, std::deque<uint64_t>& reached);
  Result<void> visit_files();
  Result<void> visit_wanted();
  Result<void> visit(uint64_t id, std::string_view key, std::string_view record, std::span<Name> names,
                     CatalogTransaction::Scan& contents);
  void keep(uint64_t id, const records::NodeFacts& facts, std::span<Name> names);
  Result<void> skip_contents(CatalogTransaction::Scan& contents, uint64_t until_id);
  void lose(CatalogLoss loss, CatalogTable table, std::string_view key, uint64_t id);

  CatalogTransaction& transaction_;
  CatalogVisitor& visitor_;
  Repair repair_;
  std::vector<Name> names_;  // by parent and name; by id once the directories are done
  std::unordered_map<uint64_t, Directory> directories_;
  CatalogNode node_;
  CatalogContent content_;
  std::vector<CatalogName> node_names_;
  std::unordered_set<uint64_t> withheld_;  // of nodes with a name in kCatalogWithheld
};

}  // namespace kvcachefs
