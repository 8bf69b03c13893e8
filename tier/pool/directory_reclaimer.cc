#include "tier/pool/directory_reclaimer.h"

#include <algorithm>
#include <cerrno>

#include "alloc/tree_name.h"
#include "base/clock.h"
#include "base/fault_point.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kRestMs = 60'000;
constexpr uint64_t kShortRestShare = 60;  // of a rest, while inodes are very short
constexpr size_t kMostAsked = 4096;
// The kernel confirms a moment later (FORGET) what it has let go of; this limit is for a FORGET that never
// comes.
constexpr uint64_t kForgetPatienceMs = 10'000;
constexpr uint64_t kReclaimNs = 5'000'000;  // other pools have their turn after this
constexpr int kHowToLook = O_PATH | O_DIRECTORY | O_NOFOLLOW;

uint64_t rest_ms() {
  const int injected = injected_error("directory rest");  // milliseconds
  return injected > 0 ? static_cast<uint64_t>(injected) : kRestMs;
}

uint64_t age_ms(const timespec& changed) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME_COARSE, &now);
  const int64_t age =
      (int64_t{now.tv_sec} - changed.tv_sec) * 1000 + (now.tv_nsec - changed.tv_nsec) / 1'000'000;
  return static_cast<uint64_t>(std::max<int64_t>(age, 0));
}

}  // namespace

DirectoryReclaimer::DirectoryReclaimer(const PoolPart& part, Tree& tree)
    : PoolPart(part),
      tree_(tree),
      list_(*tree.empty_directories()),
      now_ms_(now_coarse_ms()),
      rest_ms_(rest_ms()) {}

bool DirectoryReclaimer::settle(size_t most) {
  for (; most > 0; --most) {
    const auto directory = list_.next_rested(now_ms_ - std::min(now_ms_, rest_ms_));
    if (!directory) return false;
    auto fd = arena_.open(directory->handle, kHowToLook);
    const auto attributes = fd ? sys::stat_of(fd->get()) : pass(fd);
    if (!attributes || !looks_empty(*attributes)) continue;
    if (directory->age_unknown && age_ms(attributes->st_ctim) < rest_ms_)
      list_.rests({directory->handle}, now_ms_);
    else
      list_.emptied({.handle = directory->handle, .at_top = is_at_top(arena_, fd->get())});
  }
  return true;
}

void DirectoryReclaimer::reclaim(Wanted wanted, bool drops) {
  drops_ = drops;
  uint64_t inodes = wanted.all;
  const auto asked = list_.asked();
  for (const auto& each : asked) hear(each);
  size_t under_way = asked.size();
  const uint64_t begun_ns = now_ns();
  const auto has_time = [&] { return now_ns() - begun_ns < kReclaimNs; };
  has_more_ = true;
  while (removed_ + under_way < inodes && under_way < kMostAsked && has_time()) {
    auto ripe = list_.next_ripe(false);
    if (!ripe && settle(kLooksATurn)) continue;
    if (!ripe) ripe = list_.next_ripe(true);
    if (!ripe && inodes > wanted.even_young) {
      inodes = wanted.even_young;
      rest_ms_ = std::max<uint64_t>(rest_ms_ / kShortRestShare, 1);
      continue;
    }
    if (!ripe) {
      has_more_ = false;
      break;
    }
    const Fate fate = look(ripe->handle, nullptr);
    if (fate == Fate::kHeld) list_.rests(*ripe, now_ms_);
    if (fate == Fate::kKnown && ask(*ripe, !surroundings_.listener->can_let_go())) ++under_way;
  }
  if (!to_let_go_.empty()) surroundings_.listener->let_go(number_, std::move(to_let_go_), told());
  for (const uint64_t parent : parents_) surroundings_.listener->changed(number_, parent);
  count(counters_.directories_reclaimed, removed_);
}

DiscardListener::Told DirectoryReclaimer::told() {
  return [list = tree_.empty_directories()](uint64_t ino, bool known) { list->told(ino, known); };
}

bool DirectoryReclaimer::ask(const EmptyDirectories::Directory& directory, bool by_name) {
  if (!by_name) {
    if (!list_.ask(directory, false, now_ms_)) return false;
    to_let_go_.push_back(directory.handle.ino);
    return true;
  }
  auto fd = arena_.open(directory.handle, kHowToLook);
  auto found = fd ? find_name(arena_, fd->get()) : pass(fd);
  auto parent = found ? sys::stat_of(found->parent.get()) : pass(found);
  if (!parent) return false;  // the directory is gone, or its name is not known yet
  if (!list_.ask(directory, true, now_ms_)) return false;
  surroundings_.listener->drop_name(number_, parent->st_ino, directory.handle.ino, std::move(found->name),
                                    told());
  return true;
}

void DirectoryReclaimer::hear(const EmptyDirectories::Asked& asked) {
  const bool impatient = now_ms_ - asked.asked_ms > kForgetPatienceMs;
  if (!asked.told && !impatient) return;
  const Fate fate = look(asked.directory.handle, &asked);
  const bool forgets = asked.told && !asked.known && !impatient;
  if (fate == Fate::kKnown && forgets) return;  // the FORGET is on its way
  list_.take_asked(asked.directory.handle.ino);
  if (fate == Fate::kOver || fate == Fate::kRemoved) return;
  if (fate == Fate::kKnown && asked.told && asked.known && !asked.by_name && may_be_dropped(asked) &&
      ask(asked.directory, true))
    return;
  list_.rests(asked.directory, now_ms_);
}

bool DirectoryReclaimer::may_be_dropped(const EmptyDirectories::Asked& asked) {
  if (!surroundings_.listener->can_let_go()) return true;
  if (!drops_) return false;
  const LockedEntry entry(entries_.shard(asked.directory.handle.ino), asked.directory.handle.ino);
  return entry != nullptr && entry->kernel.missed_in;
}

DirectoryReclaimer::Fate DirectoryReclaimer::look(sys::Handle handle, const EmptyDirectories::Asked* asked) {
  EntryTable::Shard& shard = entries_.shard(handle.ino);
  const LockedEntry entry(shard, handle.ino);
  if (entry != nullptr && entry->removed) return Fate::kOver;
  if (entry != nullptr && entry->kernel.lookup_count > 0) {
    const uint64_t now_ms = now_coarse_ms();
    const auto unused_ms = static_cast<uint32_t>(now_ms) - entry->kernel.looked_up_ms;
    // The FORGET that the kernel's answer announced may have come before a later lookup.
    if (unused_ms < rest_ms_ && asked == nullptr) return Fate::kHeld;
    if (asked != nullptr && unused_ms <= now_ms - asked->asked_ms) return Fate::kHeld;
    // A predecessor of this process may have got the FORGET of an adopted directory: then the kernel's
    // answer that it does not know the directory counts.
    const bool forgotten = asked != nullptr && asked->told && !asked->known &&
                           entry->kernel.lookups_unknown && unused_ms > now_ms - asked->asked_ms;
    if (!forgotten) return Fate::kKnown;
  }
  const auto fd = arena_.open(handle, kHowToLook);
  if (!fd) return fd.error().code == ESTALE || fd.error().code == ENOTDIR ? Fate::kOver : Fate::kHeld;
  const auto attributes = sys::stat_of(fd->get());
  if (!attributes || !looks_empty(*attributes)) return Fate::kOver;
  return remove(shard, entry, handle.ino, fd->get());
}

DirectoryReclaimer::Fate DirectoryReclaimer::remove(EntryTable::Shard& shard, Entry* entry, uint64_t ino,
                                                    int fd) {
  fault_point("directory found empty");
  const auto parent_ino = tree_.remove_directory(shard, entry, ino, fd);
  if (!parent_ino) {
    const int code = parent_ino.error().code;
    return code == ENOTEMPTY || code == ENOENT ? Fate::kOver : Fate::kHeld;
  }
  fault_point("directory reclaimed");
  ++removed_;
  parents_.insert(*parent_ino);
  return Fate::kRemoved;
}

}  // namespace kvcachefs
