// A CatalogBatch applies changes to the catalog within one transaction; catalog.h says what they mean. It
// collects the nodes and contents that it touches and writes each once, in the order of their keys. One
// thread; one object for each transaction, which is of no use after an error. Failure: as the store's; EINVAL
// for a change that no catalog can hold.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tier/catalog/catalog.h"
#include "tier/catalog/catalog_store.h"

namespace kvcachefs {

class CatalogBatch {
 public:
  // Because ids above `highest_id` are not in the catalog yet, the batch does not look them up.
  CatalogBatch(CatalogTransaction& transaction, uint64_t highest_id)
      : transaction_(transaction), stored_highest_id_(highest_id), highest_id_(highest_id) {}

  Result<void> apply(std::span<const CatalogChange> changes);

  // These two are valid after apply().
  std::vector<Extent> freed() const;
  uint64_t highest_id() const { return highest_id_; }

 private:
  struct Node {
    bool stored = false;     // in the catalog before the batch, perhaps damaged
    bool present = false;    // exists now
    bool changed = false;    // to be written or erased
    bool lost_name = false;  // and so is dropped if it has no name at the end
    uint32_t names = 0;
    uint32_t mode = 0;
    std::string record;  // the new record; empty: the stored one, but for the count of names
  };
  struct Content {
    bool stored = false;
    bool changed = false;
    const CatalogContent* put = nullptr;  // null after a change: the content was dropped
  };

  Result<void> change(const PutNode& put);
  Result<void> change(const PutName& put);
  Result<void> change(const DropName& drop);
  Result<void> change(const PutContent& put);
  // The node with these attributes and with the link target and the xattrs that it has.
  Result<CatalogNode> with_attributes(const Node& node, const CatalogNode& attributes);
  Result<Node*> node(uint64_t id);
  Result<Content*> content(uint64_t id);
  Result<std::optional<uint64_t>> named(std::string_view key);
  Result<void> lose_name(uint64_t id);
  Result<void> drop_content(uint64_t id);
  Result<void> drop_nameless();
  Result<void> drop_names_in(uint64_t directory);
  Result<void> write_nodes();
  Result<void> write_contents();
  void release(const std::vector<Extent>& extents);

  CatalogTransaction& transaction_;
  const uint64_t stored_highest_id_;
  uint64_t highest_id_;
  std::map<uint64_t, Node> nodes_;
  std::map<uint64_t, Content> contents_;
  std::vector<uint64_t> nameless_;
  std::vector<Extent> released_;  // extents of contents replaced or dropped, some named again
};

}  // namespace kvcachefs
