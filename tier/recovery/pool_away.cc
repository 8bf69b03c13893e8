// A pool that was taken over without its disk, which cannot be had, goes on with what is in memory. The marks
// of its files (tier/catalog/copy_mark.h) say what the disk has, and stay true: what is written is marked
// dirty, and nothing becomes cold. So a process that finds the disk again reconciles as after any death: the
// names, contents and removals made meanwhile are in the tmpfs.
#include <algorithm>
#include <cerrno>

#include "base/fault_point.h"
#include "base/log.h"
#include "base/sys_disk.h"
#include "tier/catalog/content_layout.h"
#include "tier/children.h"
#include "tier/pool/recovery.h"

namespace kvcachefs {
namespace {

// More versions than a file gets between two truncations to 0 bytes.
constexpr uint32_t kUnseenVersions = uint32_t{1} << 24;

}  // namespace

Result<void> Recovery::go_on_without_disk(const PoolOptions& spill, const Error& why) {
  disk_.is_away(
      std::make_unique<AwayDisk>(why.code == EBUSY ? AwayDisk::kLockPatience : AwayDisk::kPatience));
  (void)disk_.exchange_durability(durability_of(spill));
  // Names that the catalog has are kept if a restore is unfinished: the process that goes on with the restore
  // would bring removed ones back.
  disk_.set_restoring(restoring_up_to(arena_.tree_fd()).has_value());
  Result<void> opened;
  const auto walked = walk_tree(arena_, [&](int directory, uint64_t, const Child& child) {
    if (!child.is_regular) return;
    auto fd = sys::open_at(directory, child.name.c_str(), kReadForFacts);
    if (!fd) {
      opened = pass(fd);
      return;
    }
    auto mark = copy_mark_of(fd->get());
    if (mark) adopt_mark(child.ino, child.name, std::move(*mark));
  });
  if (const Result<void>& whole = walked ? opened : walked; !whole)
    return fail(EIO, "not all of its files can be looked at: " + sys::error_text(whole.error().code));
  fault_point("without its disk");
  const SpillUsage usage = parts_.insight.spill_usage();
  log_error(
      "pool {}: without its disk: {} ({}); served from memory, and tried again: {} dirty entries, {} clean, "
      "{} cold, which cannot be opened meanwhile",
      name_, why.message, sys::error_text(why.code), usage.dirty_entries, usage.clean_entries,
      usage.cold_entries);
  return {};
}

bool Recovery::may_be_to_come(uint64_t directory_ino, const std::string& name) const {
  if (!disk_.restoring() || disk_.away() == nullptr) return false;
  const auto directory = parts_.inodes.directory(directory_ino);
  if (!directory || sys::stat_at(directory->fd, name.c_str())) return false;
  return directory_ino == root_ino() || copy_mark_of(directory->fd).has_value();
}

void Recovery::adopt_mark(uint64_t ino, const std::string& name, CopyMark mark) {
  const LockedEntry entry(entries_.shard(ino), ino);
  if (entry == nullptr || entry->removed || entry->disk.node_id != 0) return;  // another name of the file
  entry->disk.node_id = mark.node_id;
  const bool has_copy = mark.state == CopyMark::State::kClean || mark.state == CopyMark::State::kCold;
  uint32_t version = has_copy ? mark.content.version : entry->version;
  // Which version of a dirty entry the catalog has only the disk tells: a truncation to 0 bytes comes after
  // it.
  if (mark.state == CopyMark::State::kNone) version = mark.first_version + kUnseenVersions;
  entries_.contents().found_version(*entry, version, mark.first_version);
  if (!has_copy) return;
  // An entry that is open otherwise than from the disk has all its pages.
  const bool cold = mark.state == CopyMark::State::kCold && entry->open_count <= entry->direct_count;
  entry->disk.name_hash = name_hash_of(name);
  // A cold entry may have pages of a promotion that a death cut short: the process that finds the disk drops
  // them and puts the times back.
  const uint64_t data_bytes = data_bytes_of(mark.content, parts_.settings.options().spill_unit_bytes);
  if (entry->direct_count > 0) (void)entries_.contents().held_on_disk(*entry, mark.content);
  (void)entries_.contents().copied(*entry, std::move(mark.content));
  entries_.contents().found_copy(*entry, cold ? std::optional(rounded_up(data_bytes)) : std::nullopt);
}

}  // namespace kvcachefs
