#include "tier/pool/copy_marks.h"

#include <cerrno>

namespace kvcachefs {

Result<void> CopyMarks::mark_copy(Entry& entry, int fd, CopyMark::State state,
                                  const CatalogContent* content) {
  if (!is_supervised()) return {};
  CopyMark mark{.state = state,
                .node_id = entry.node_id,
                .first_version = entry.first_version,
                .synced_nameless = entry.synced_nameless,
                .content = {}};
  if (content != nullptr) mark.content = *content;
  keep_ctime(entry.kept, fd, true);
  auto marked = put_copy_mark(fd, mark);
  if (marked || state == CopyMark::State::kCold) return marked;
  // A mark that could not be written is replaced by kNone, or else removed, but not for a cold entry. The
  // pages of any other entry are its content, and that is what kNone and a missing mark say.
  if (state == CopyMark::State::kClean) return mark_copy(entry, fd, CopyMark::State::kNone, nullptr);
  auto removed = sys::remove_xattr(fd, kCopyXattr);
  if (!removed && removed.error().code != ENODATA) surroundings_.survivors->children().forbid_succession();
  return marked;
}

void CopyMarks::mark_dirty(Entry& entry) {
  if (!is_supervised()) return;
  if (const auto fd = arena_.open(handle_of(entry), O_PATH))
    (void)mark_copy(entry, fd->get(), CopyMark::State::kNone, nullptr);
  else
    surroundings_.survivors->children().forbid_succession();
}

void CopyMarks::became_dirty(Entry& entry) {
  // The mark goes first: a successor must not take what is written from now on for what the disk has.
  if (entry.tier != Entry::Tier::kDirty) mark_dirty(entry);
  entries_.dirtied(entry);
}

}  // namespace kvcachefs
