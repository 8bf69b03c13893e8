// What lies on a pool's second tier, kept over crashes and reboots: the pool's name tree and, of each file,
// the extents that hold its bytes. LMDB in a directory of its own, one a pool; the formats are in FORMAT.md.
//
// Threads: any. One Mutex is held through every call, through the disk writes of a commit and through a whole
// load() too; so no call may be made from a visitor, and commit() belongs to a worker that may wait.
//
// Failure: a commit is in the catalog as a whole and durable, or not at all; after an error (ENOSPC, EIO, …)
// the same batch may be tried again. A damaged record is never followed: load() reports and drops it. A
// directory in use by another process is refused with EBUSY, one of a newer format with ENOTSUP, one that is
// damaged as a whole with EUCLEAN.
//
// What the changes mean. They apply in their order; each may be repeated without harm.
//   - Ids are given by the caller and never used again. Id 1 is the pool's root, which is there without being
//     put; putting it keeps its mode, owner and times.
//   - A node keeps a count of its names. One that has lost its last name by the END of a batch goes, with its
//     content; a directory's own names go with it, recursively. So a rename is PutName and DropName in one
//     batch, in any order, and an exchange is two PutNames in one batch. Over two batches the new name must
//     come first; a crash between them leaves a file both names, a directory one of them.
//   - PutNode comes before the names and the content of its node. It replaces what was known of the node and
//     leaves names and content alone. A node that has no name yet stays until load() finds it without one.
//   - PutName over a name of another node takes the name from that one. DropName of a name that is not there
//     changes nothing.
//   - PutName of a node that is not there (any more) only takes the name away from what had it. PutContent
//   for
//     one gives its extents straight back: that is a spill that a removal overtook.
//   - PutContent replaces the node's content. Only regular files have one, empty ones too.
#pragma once

#include <sys/types.h>

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
// No directory: a name in it keeps a file whose names are all withheld (tier/catalog_names.h). A load drops
// such names, and the files that have no other.
constexpr uint64_t kCatalogWithheld = UINT64_MAX;
// Every id is below it. Ids are counted up from the highest there is: one near the end of the numbers would
// bring them to 0.
constexpr uint64_t kCatalogIdLimit = uint64_t{1} << 63;

struct CatalogNode {
  uint64_t id = 0;
  uint32_t mode = 0;  // type and permissions, as st_mode
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint64_t device = 0;  // of a device node
  timespec accessed{};
  timespec modified{};
  bool pinned = false;
  std::string link_target;  // of a symlink
  std::vector<std::pair<std::string, std::string>> xattrs;
};

struct CatalogContent {
  uint64_t size_bytes = 0;
  Checksum checksum;
  uint32_t version = 0;
  std::vector<Extent> extents;  // in the file's order
};

struct PutNode {
  CatalogNode node;
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
struct DropContent {
  uint64_t id = 0;
};
using CatalogChange = std::variant<PutNode, PutName, DropName, PutContent, DropContent>;

struct CatalogName {
  uint64_t parent = 0;
  std::string_view name;
};

// What load() found that cannot be used.
enum class CatalogLoss : uint8_t {
  kDamagedNode,         // its record cannot be read, or its id is none: it goes with names and content
  kDamagedName,         // as above
  kDamagedContent,      // as above: the file goes
  kNodeWithoutName,     // it cannot be reached from the root
  kNameWithoutNode,     // its node is not there, or its directory cannot be reached
  kFileWithoutContent,  // a regular file whose bytes were never committed
  kContentWithoutNode,  // or of a node that is no regular file
  kSecondName,          // of a directory; a rename was cut in two
  kWrongCount,          // of names: set right
};
std::string_view to_string(CatalogLoss loss);

class CatalogVisitor {
 public:
  virtual ~CatalogVisitor() = default;
  // The root, if it was put, comes first and has no name; then the directories, breadth first; then all
  // else, by ascending id. A regular file has a content, others have none. What is referred to lives as long
  // as the call.
  virtual void node(const CatalogNode& node, std::span<const CatalogName> names,
                    const CatalogContent* content) = 0;
  // `id` is 0 and `name` is empty where they are not known.
  virtual void lost(CatalogLoss loss, uint64_t id, std::string_view name) = 0;
};

struct CatalogStats {
  uint64_t nodes = 0;
  uint64_t names = 0;
  uint64_t contents = 0;
  uint64_t used_bytes = 0;  // of the catalog's file, what is not free for its next changes
  uint64_t map_bytes = 0;
  uint64_t commits = 0;          // since open()
  uint64_t ignored_changes = 0;  // PutName and PutContent of nodes that were not there, since open()
};

class Catalog {
 public:
  struct Options {
    bool create = true;                // false: ENOENT where no catalog is
    uint64_t map_bytes = 64ull << 20;  // to begin with; it doubles when it is full
  };
  enum class Losses { kDrop, kKeep };

  // The directory is made if it is missing, for this user alone; its parent must be there.
  static Result<std::unique_ptr<Catalog>> open(const std::string& directory, const Options& options);
  static Result<std::unique_ptr<Catalog>> open(const std::string& directory) {
    return open(directory, Options{});
  }
  virtual ~Catalog() = default;

  // One transaction, durable on return. The answer: extents that nothing names any more, none twice.
  virtual Result<std::vector<Extent>> commit(std::span<const CatalogChange> changes) = 0;

  // Visits all there is; then drops, in one transaction, what it reported lost. The extents of that are
  // never shown, so they are free for who claims only what he has seen.
  virtual Result<void> load(CatalogVisitor& visitor, Losses losses = Losses::kDrop) = 0;

  // The highest id that is in the catalog or was put since open(); at least kCatalogRoot.
  virtual uint64_t highest_id() = 0;

  virtual Result<std::optional<CatalogNode>> node(uint64_t id) = 0;
  virtual Result<std::optional<uint64_t>> lookup(uint64_t parent, std::string_view name) = 0;
  virtual Result<std::optional<CatalogContent>> content(uint64_t id) = 0;

  // Names and values of the caller's choice, up to 500 bytes and 1 MiB; names with "catalog." before are the
  // catalog's own (EINVAL). Putting one is a commit.
  virtual Result<std::optional<std::string>> setting(std::string_view name) = 0;
  virtual Result<void> put_setting(std::string_view name, std::string_view value) = 0;

  // Empties the tree: what to do with a catalog whose device is not the one it was made for.
  virtual Result<void> clear() = 0;

  virtual Result<CatalogStats> stats() = 0;
};

}  // namespace kvcachefs
