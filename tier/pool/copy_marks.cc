#include "tier/pool/copy_marks.h"

#include <cerrno>
#include <optional>

#include "alloc/tree_name.h"
#include "base/log.h"
#include "base/sys_disk.h"

namespace kvcachefs {
namespace {

// True if the mark tells a successor which node of the catalog has the dirty entry, and since when.
bool numbers(const std::optional<CopyMark>& mark, const Entry& entry) {
  const uint64_t number = promised_number(mark);
  return number != 0 && (entry.disk.node_id == 0 || entry.disk.node_id == number) &&
         mark->first_version == entry.disk.first_version;
}

}  // namespace

Result<void> CopyMarks::mark_copy(Entry& entry, int fd, CopyMark::State state, const CatalogContent* content,
                                  uint64_t node_id) {
  if (!is_supervised()) return {};
  CopyMark mark{.state = state,
                .node_id = node_id != 0 ? node_id : entry.disk.node_id,
                .first_version = entry.disk.first_version,
                .synced_nameless = entry.disk.synced_nameless,
                .content = {}};
  if (content != nullptr) mark.content = *content;
  if (entry.disk.copies) mark.emptied_as = entry.disk.copies->emptied_as;
  keep_ctime(entry.kept, fd, true);
  auto marked = put_copy_mark(fd, mark);
  if (marked || state == CopyMark::State::kCold) return marked;
  // A mark that could not be written is replaced by kNone, or else removed, but not for a cold entry. The
  // pages of any other entry are its content, and that is what kNone and a missing mark say.
  if (state == CopyMark::State::kClean) return mark_copy(entry, fd, CopyMark::State::kNone, nullptr, node_id);
  auto removed = sys::remove_xattr(fd, kCopyXattr);
  if (!removed && removed.error().code != ENODATA) {
    surroundings_.survivors->children().forbid_succession();
    log_error("pool {}: the mark of inode {} cannot be changed ({}): no process can take over from this one",
              name_, entry.policy.ino, sys::error_text(removed.error().code));
  }
  return marked;
}

void CopyMarks::became_dirty(Entry& entry, int fd) {
  // The mark goes first: a successor must not take what is written from now on for what the disk has.
  if (entry.tier != Entry::Tier::kDirty) (void)mark_copy(entry, fd, CopyMark::State::kNone, nullptr);
  entries_.contents().dirtied(entry);
}

void CopyMarks::cut(Entry& entry, int fd, bool to_nothing) {
  // A copy that was asked for while the mark numbers the entry is made after this too.
  const bool numbered = entry.disk.node_id != 0 || numbers_at_open() || is_numbered(entry, fd);
  if (to_nothing && is_supervised() && disk_.tier() != nullptr && entry.disk.node_id != 0) {
    // Contents that are not committed yet may lie between two cuts: the catalog may have the one from before
    // the first of them.
    uint64_t& emptied_as = entry.disk.with_copies().emptied_as;
    const uint64_t now = place_hash_of(fd);
    emptied_as = entry.disk.first_version == 0 || emptied_as == now ? now : 0;
  }
  entries_.contents().cut(entry, to_nothing);
  if (to_nothing && entry.tier == Entry::Tier::kDirty && numbered) (void)number(entry, fd);
  became_dirty(entry, fd);
}

uint64_t CopyMarks::place_hash_of(int fd) const {
  const auto found = find_name(arena_, fd);
  if (!found) return 0;
  const auto parent = sys::stat_of(found->parent.get());
  return parent ? place_hash(parent->st_ino, found->name) : 0;
}

bool CopyMarks::is_numbered(const Entry& entry, int fd) const {
  return !is_supervised() || numbers(copy_mark_of(fd), entry);
}

Result<void> CopyMarks::number(Entry& entry, int fd) {
  if (!is_supervised()) return {};
  const auto mark = copy_mark_of(fd);
  if (numbers(mark, entry) && mark->synced_nameless == entry.disk.synced_nameless) return {};
  uint64_t id = entry.disk.node_id != 0 ? entry.disk.node_id : promised_number(mark);
  if (id == 0) id = disk_.tier()->store->new_id();
  return mark_copy(entry, fd, CopyMark::State::kNone, nullptr, id);
}

bool CopyMarks::numbers_at_open() const {
  return disk_.durability() == Durability::kSync && disk_.tier() != nullptr &&
         !surroundings_.backing_store->needs_write_access();
}

}  // namespace kvcachefs
