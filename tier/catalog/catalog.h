// What lies on a pool's second tier, kept over crashes and reboots: the pool's name tree and, of each file,
// the extents that hold its bytes. Each pool has its own LMDB directory; tier/FORMAT.md describes the
// formats.
//
// Threads: any. One Mutex is held through every call, through the disk writes of a commit and through a whole
// load() too; so a visitor may make no call, and commit() belongs to a worker that may wait.
//
// Failure: a commit is in the catalog as a whole and durable, or not at all; after an error (ENOSPC, EIO, …)
// the same batch may be tried again. A damaged record is never followed: load() reports and drops it. A
// directory in use by another process is refused with EBUSY, one of a newer format with ENOTSUP, one that is
// damaged as a whole with EUCLEAN.
//
// Changes apply in their order; each may be repeated without harm. They mean:
//   - The caller gives ids and never uses one again. Id 1 is the pool's root, which exists without being put;
//     putting it keeps its mode, owner and times.
//   - A node keeps a count of its names. A node that has no name left at the END of a batch goes, with its
//     content; a directory's own names go with it, recursively. So a rename is PutName and DropName in one
//     batch, in any order, and an exchange is two PutNames in one batch. Over two batches the new name must
//     come first; a crash between them leaves a file both names, a directory one of them.
//   - PutNode comes before the names and the content of its node. It replaces the node's attributes and
//     leaves names and content alone. A node that has no name yet stays until load() finds it without one.
//   - PutNode of attributes alone leaves the link target and the xattrs as they are, too. Of a missing
//     node it changes nothing. It is not for the root.
//   - PutName over a name of another node takes the name from that node. DropName of a missing name changes
//     nothing.
//   - PutName of a missing node only takes the name from the node that had it. PutContent of a missing node
//     gives the extents straight back: a removal overtook that spill.
//   - PutContent replaces the node's content. Only regular files have a content, empty files too.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "alloc/extent.h"
#include "base/checksum.h"
#include "base/result.h"

namespace kvcachefs {

constexpr uint64_t kCatalogRoot = 1;
// An id that is no directory's: a name in it keeps a file whose names are all withheld
// (tier/disk/catalog_names.h). A load drops such names, and the files that have no other.
constexpr uint64_t kCatalogWithheld = UINT64_MAX;
// Every id is below this limit. Ids are counted up from the highest stored one; one near the end of the
// numbers would bring them to 0.
constexpr uint64_t kCatalogIdLimit = uint64_t{1} << 63;

struct CatalogNode {
  uint64_t id = 0;
  uint32_t mode = 0;  // type and permissions, as st_mode
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint64_t device = 0;  // of a device node
  timespec accessed{};
  timespec modified{};
  timespec changed{};  // 0: an older version did not know
  bool pinned = false;
  std::string link_target;  // of a symlink
  std::vector<std::pair<std::string, std::string>> xattrs;
};

struct CatalogContent {
  uint64_t size_bytes = 0;
  Checksum checksum;
  uint32_t version = 0;
  std::vector<Extent> extents;  // in the file's order
  bool operator==(const CatalogContent&) const = default;
};

struct PutNode {
  CatalogNode node;
  bool attributes_alone = false;
};
struct PutName {
  uint64_t parent = 0;
  std::string name;
  uint64_t id = 0;
};
struct DropName {
  uint64_t parent = 0;
  std::string name;
};
struct PutContent {
  uint64_t id = 0;
  CatalogContent content;
};
using CatalogChange = std::variant<PutNode, PutName, DropName, PutContent>;

struct CatalogName {
  uint64_t parent = 0;
  std::string_view name;
};

// The records that load() finds unusable.
enum class CatalogLoss : uint8_t {
  kDamagedNode,         // its record or id cannot be read: node, names and content go
  kDamagedName,         // its record cannot be read
  kDamagedContent,      // its record cannot be read: the file goes
  kNodeWithoutName,     // the node cannot be reached from the root
  kNameWithoutNode,     // its node is missing, or its directory cannot be reached
  kFileWithoutContent,  // a regular file whose bytes were never committed
  kContentWithoutNode,  // its node is missing or is no regular file
  kSecondName,          // of a directory: a crash cut a rename in two
  kWrongCount,          // of a node's names: load() sets the count right
};
std::string_view to_string(CatalogLoss loss);

class CatalogVisitor {
 public:
  virtual ~CatalogVisitor() = default;
  // The root, if it was put, comes first and has no name; then the directories, breadth first; then all other
  // nodes, by ascending id. A regular file has a content, other nodes have none. The arguments live as long
  // as the call.
  virtual void node(const CatalogNode& node, std::span<const CatalogName> names,
                    const CatalogContent* content) = 0;
  // What is no directory has this name, and is visited later, unless the catalog has lost it.
  virtual void to_be_visited(const CatalogName&, uint64_t /*id*/) {}
  // All directories have been visited.
  virtual void directories_done() {}
  // From then on, before each node: the number of one that is to be visited at once, and once more when its
  // turn comes; 0: none. The visit is left out if the catalog has lost the node. The next call is asked after
  // the visit.
  virtual uint64_t wanted() { return 0; }
  // `id` is 0 and `name` is empty where they are unknown.
  virtual void lost(CatalogLoss loss, uint64_t id, std::string_view name) = 0;
};

class Catalog {
 public:
  struct Options {
    bool create = true;                // false: ENOENT if there is no catalog
    uint64_t map_bytes = 64ull << 20;  // at the start; it doubles when it is full
  };
  enum class Losses { kDrop, kKeep };

  // open() makes the directory if it is missing, for this user alone; its parent must exist.
  static Result<std::unique_ptr<Catalog>> open(const std::string& directory, const Options& options);
  static Result<std::unique_ptr<Catalog>> open(const std::string& directory) {
    return open(directory, Options{});
  }
  virtual ~Catalog() = default;

  // One transaction, durable on return. The answer is the extents that nothing names any more, each unit
  // once.
  virtual Result<std::vector<Extent>> commit(std::span<const CatalogChange> changes) = 0;

  // load() visits every usable node; then it drops, in one transaction, the records that it reported lost.
  // Because the visitor is never shown their extents, a caller that claims the extents it is shown leaves
  // those free.
  virtual Result<void> load(CatalogVisitor& visitor, Losses losses = Losses::kDrop) = 0;

  // The highest id that is in the catalog or was put since open(); at least kCatalogRoot.
  virtual uint64_t highest_id() = 0;

  // The number of names, damaged ones among them.
  virtual Result<uint64_t> names() = 0;

  // Settings of the caller's choice: names up to 500 bytes, values up to 1 MiB. Names that begin with
  // "catalog." are the catalog's own (EINVAL). Putting a setting is a commit.
  virtual Result<std::optional<std::string>> setting(std::string_view name) = 0;
  virtual Result<void> put_setting(std::string_view name, std::string_view value) = 0;

  // clear() empties the tree, for a catalog whose device is not the one it was made for.
  virtual Result<void> clear() = 0;
};

}  // namespace kvcachefs
