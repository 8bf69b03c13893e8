// The mark on a file of a pool with a disk tier, which tells a successor (tier/survivors/survivors.h) about
// the file's copy on the disk. It is an xattr of the tmpfs file itself, so it comes and goes with the file.
// Where the other order could end in wrong bytes, the mark is written first: a clean entry is marked dirty
// before a process may write it, and cold before its pages go. A dirty entry's mark names the catalog's node
// for its earlier content. Inodes without content, such as directories, are marked with their number in the
// catalog alone.
//
// Any thread. Failure: errno of setxattr(2); a mark that exists and cannot be read is kUnreadable.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tier/catalog/catalog.h"

namespace kvcachefs {

inline constexpr const char* kCopyXattr = "trusted.kvcachefs.copy";

struct CopyMark {
  // The file's pages are its content in every state but kCold.
  enum class State : char { kNone = 'n', kClean = 'c', kCold = 'm', kUnreadable = '?' };
  State state = State::kNone;
  uint64_t node_id = 0;
  uint32_t first_version = 0;    // as in Entry; in kNone and kClean marks
  bool synced_nameless = false;  // the same; in kNone marks
  // The name (place_hash()) that the file had each time it was cut to nothing, if it was always the same one:
  // what the catalog has from before may be shown there. 0: none. In kNone marks.
  uint64_t emptied_as = 0;
  CatalogContent content;  // in kClean and kCold marks
  int error = 0;           // of the system, which could not read a kUnreadable mark; 0: it is damaged
};

Result<void> put_copy_mark(int fd, const CopyMark& mark);
std::optional<CopyMark> copy_mark_of(int fd);
// The number of the node in a kNone mark, which the catalog has or may get; 0: none.
uint64_t promised_number(const std::optional<CopyMark>& mark);
bool has_other_xattrs(int fd);                                    // other than this mark and kTimesXattr
uint64_t place_hash(uint64_t parent_ino, std::string_view name);  // never 0

// put_restoring() marks the root of a pool whose names are being brought back from its catalog: files with
// numbers beyond `up_to` may be missing because they are still to come, but for those in `changed`, of which
// clients have changed names; what else is missing was removed. `up_to` is 0 until all directories are back.
struct RestoringMark {
  static constexpr size_t kMostChanged = 8000;  // what an xattr has room for

  uint64_t up_to = 0;
  std::vector<uint64_t> changed = {};
};
Result<void> put_restoring(int root, uint64_t up_to, std::span<const uint64_t> changed = {});
Result<void> put_restored(int root);
std::optional<RestoringMark> restoring_mark_of(int root);  // none: all are back
std::optional<uint64_t> restoring_up_to(int root);

}  // namespace kvcachefs
