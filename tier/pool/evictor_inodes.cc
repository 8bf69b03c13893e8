// Inodes of a pool, and its limits of entries and directories (tier/pool/name_limits.h). A tmpfs has a number
// of inodes that goes with its size, and directories take them as files do. Engines that spread their entries
// over a million directories would fill a pool with directories that eviction has emptied. When inodes run
// short, empty directories leave first, then entries.
//
// A directory leaves only if it is empty, which its removal proves, and if no process has it open, watched,
// as its working directory or mounted somewhere: each of these keeps the kernel from forgetting its inode.
// The kernel's caches do so too, so the kernel is asked first to let go of the directory. A directory that a
// client made or looked up less than a minute ago stays, because `mkdir -p` and the create in it are two
// calls.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <unordered_set>

#include "alloc/tree_name.h"
#include "base/clock.h"
#include "base/fault_point.h"
#include "base/log_limit.h"
#include "tier/pool/evictor.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kRestMs = 60'000;
// Directories leave while less than 1/8 of the inodes is free, until 1/4 is free. Entries leave while less
// than 1/kInodeReserve is free.
constexpr uint64_t kShortShare = 8;
constexpr uint64_t kEnoughShare = 4;
constexpr uint64_t kTurnNs = 5'000'000;  // other pools have their turn after this
constexpr size_t kLooksATurn = 256;      // resting directories that settle() looks at in one call
constexpr size_t kMostAsked = 4096;
// The kernel confirms a moment later (FORGET) what it has let go of; this limit is for a FORGET that never
// comes.
constexpr uint64_t kForgetPatienceMs = 10'000;
constexpr uint64_t kWaitNs = 2'000'000'000;
// Requests that wait for an inode had none for so long: then names are dropped beside them.
constexpr uint64_t kInVainMs = 50;
// Dropping a directory's name waits for its parent, which a request that waits for an inode there holds. A
// drop takes microseconds; one that takes longer is done once the request has failed.
constexpr uint64_t kDropWaitMs = 100;
constexpr auto kNamePatience = std::chrono::milliseconds(50);
// So many entries more than requests wait for leave at a limit of entries, and this share of it at most.
constexpr uint64_t kMostPlaces = 1024;
constexpr uint64_t kPlacesShare = 64;
// A symbolic link's target takes a page, and another may be counted ahead.
constexpr uint64_t kLinkBytes = 8192;

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

// One turn of the evictor at the directories.
class DirectoryReclaimer : PoolPart {
 public:
  DirectoryReclaimer(const PoolPart& part, Tree& tree)
      : PoolPart(part), tree_(tree), list_(*tree.empty_directories()) {}

  // Directories that have rested become ripe if they are empty and are struck off if not. True: more have
  // rested.
  bool settle(size_t most) {
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

  // `drops`: names may be dropped.
  void reclaim(uint64_t inodes, bool drops) {
    drops_ = drops;
    const auto asked = list_.asked();
    for (const auto& each : asked) hear(each);
    size_t under_way = asked.size();
    const uint64_t begun_ns = now_ns();
    const auto has_time = [&] { return now_ns() - begun_ns < kTurnNs; };
    has_more_ = true;
    while (removed_ + under_way < inodes && under_way < kMostAsked && has_time()) {
      auto ripe = list_.next_ripe(false);
      if (!ripe && settle(kLooksATurn)) continue;
      if (!ripe) ripe = list_.next_ripe(true);
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

  uint64_t removed() const { return removed_; }
  bool has_more() const { return has_more_; }  // to look at in the next turn

 private:
  static constexpr int kHowToLook = O_PATH | O_DIRECTORY | O_NOFOLLOW;
  // kOver: the directory is gone or not empty. kHeld: it cannot go now. kKnown: the kernel has to let go of
  // it first.
  enum class Fate { kOver, kHeld, kKnown, kRemoved };

  DiscardListener::Told told() {
    return [list = tree_.empty_directories()](uint64_t ino, bool known) { list->told(ino, known); };
  }

  bool ask(const EmptyDirectories::Directory& directory, bool by_name) {
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

  void hear(const EmptyDirectories::Asked& asked) {
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

  // Says whether the kernel may have kept the directory though no process holds it: the kernel cannot be
  // asked to let go, or remembers misses in it.
  bool may_be_dropped(const EmptyDirectories::Asked& asked) {
    if (!surroundings_.listener->can_let_go()) return true;
    if (!drops_) return false;
    const LockedEntry entry(entries_.shard(asked.directory.handle.ino), asked.directory.handle.ino);
    return entry != nullptr && entry->kernel.missed_in;
  }

  Fate look(sys::Handle handle, const EmptyDirectories::Asked* asked) {
    EntryTable::Shard& shard = entries_.shard(handle.ino);
    const LockedEntry entry(shard, handle.ino);
    if (entry != nullptr && entry->removed) return Fate::kOver;
    if (entry != nullptr && entry->kernel.lookup_count > 0) {
      const uint64_t now_ms = now_coarse_ms();
      const auto unused_ms = static_cast<uint32_t>(now_ms) - entry->kernel.looked_up_ms;
      // The FORGET that the kernel's answer announced may have come before a later lookup.
      const bool in_use_again = asked != nullptr && unused_ms <= now_ms - asked->asked_ms;
      if (unused_ms < rest_ms_ || in_use_again) return Fate::kHeld;
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

  Fate remove(EntryTable::Shard& shard, Entry* entry, uint64_t ino, int fd) REQUIRES(shard.mutex) {
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

  Tree& tree_;
  EmptyDirectories& list_;
  const uint64_t now_ms_ = now_coarse_ms();
  const uint64_t rest_ms_ = rest_ms();
  std::vector<uint64_t> to_let_go_;
  std::unordered_set<uint64_t> parents_;
  uint64_t removed_ = 0;
  bool has_more_ = false;
  bool drops_ = false;
};

// Who waits for room hears that there is some, or that none can be made. `made`: there was some, which others
// may have taken by now.
void answer(Room& room, bool made, bool more) {
  if (room.wanted_bytes() == 0) return;
  if (made)
    room.room_made();
  else if (!more)
    room.nothing_to_evict(Room::Whose::kWriter);
}

}  // namespace

bool Evictor::make_inode_room() {
  NameLimit& limit = limits_.directories;
  const uint64_t wanted = inode_room_.wanted_bytes();
  const uint64_t wanted_directories = limit.room().wanted_bytes();
  const ArenaUsage now = arena_.usage();
  if (now.free_inodes < now.inodes / kShortShare) reclaiming_ = true;
  if (now.free_inodes >= now.inodes / kEnoughShare) reclaiming_ = false;
  // The limit of directories is kept by the same shares. A small one has a place at least for who waits.
  const uint64_t most = limit.most(), places = std::max(most / kEnoughShare, wanted_directories);
  if (limit.lack(std::max(most / kShortShare, wanted_directories)) > 0) reclaiming_directories_ = true;
  if (limit.lack(places) == 0) reclaiming_directories_ = false;
  const EmptyDirectories::Counts before = tree_.empty_directories()->counts();
  uint64_t removed = 0;
  bool has_more = false;
  if ((reclaiming_ || reclaiming_directories_) && !disk_.lacks_names()) {
    DirectoryReclaimer reclaimer(*this, tree_);
    reclaimer.reclaim(std::max(reclaiming_ ? now.inodes / kEnoughShare - now.free_inodes : 0,
                               reclaiming_directories_ ? limit.lack(places) : 0),
                      wanted + wanted_directories == 0 || now_coarse_ms() > reclaimed_ms_ + kInVainMs);
    removed = reclaimer.removed();
    has_more = reclaimer.has_more();
  } else if (before.resting > 0) {
    DirectoryReclaimer(*this, tree_).settle(kLooksATurn);
  }
  if (wanted + wanted_directories == 0 || removed > 0) reclaimed_ms_ = now_coarse_ms();
  const auto free_inodes = [this] { return arena_.usage().free_inodes; };
  const Discarded discarded = discard_entries(
      {.room = inode_room_,
       .has_one = [&] { return free_inodes() > 0; },
       .has_enough = [&](bool even_over) { return free_inodes() >= wanted_inodes(even_over); }});
  const bool more = discarded == Discarded::kMore;
  const bool reclaims = has_more || removed > 0 || tree_.empty_directories()->counts().asked > 0;
  if (wanted > 0) {
    const uint64_t free = free_inodes();
    const bool even_over = free >= now.inodes / kInodeReserve;
    if (free > 0 && (even_over || inode_room_.wanted_bytes(Room::Whose::kWriter) > 0))
      inode_room_.room_made();
    else if (!more && !reclaims)
      inode_room_.nothing_to_evict(free > 0 ? Room::Whose::kOver : Room::Whose::kWriter);
  }
  answer(limit.room(), limit.free() > 0, reclaims);
  return more || reclaims;
}

uint64_t Evictor::wanted_inodes(bool even_over) const {
  const uint64_t reserve = arena_.usage().inodes / kInodeReserve;
  if (even_over) return std::max(reserve, inode_room_.wanted_bytes());
  const uint64_t excess = entries_.shares().excess().inodes;
  return std::max(reserve - std::min(reserve, excess), inode_room_.wanted_bytes(Room::Whose::kWriter));
}

// Entries leave when a request waits for the place of one, and then some more, so that not each waits.
bool Evictor::keep_entry_limit() {
  NameLimit& limit = limits_.entries;
  const auto places_for = [&limit](uint64_t wanted) {
    return wanted == 0 ? 0 : wanted + std::min(limit.most() / kPlacesShare, kMostPlaces);
  };
  const uint64_t of_others = places_for(limit.room().wanted_bytes(Room::Whose::kWriter));
  const bool over_waits = limit.room().wanted_bytes(Room::Whose::kOver) > 0;
  const uint64_t kept = over_waits ? places_kept(limit) : 0;
  const uint64_t of_all = places_for(limit.room().wanted_bytes()) + kept;
  const auto has_one = [&] { return limit.free() > (of_others > 0 ? 0 : kept); };
  const Discarded discarded =
      discard_entries({.room = limit.room(), .has_one = has_one, .has_enough = [&](bool even_over) {
                         // An entry counts before its claim goes, so that both may count. Where nobody of
                         // those who count waits, what is there counts alone: no entry leaves for a claim.
                         const uint64_t wanted = even_over ? of_all : of_others;
                         return wanted > 0 ? limit.lack(wanted) == 0 : limit.excess() == 0;
                       }});
  const bool more = discarded == Discarded::kMore;
  if (of_others == 0 && over_waits && !has_one() && !more)
    limit.room().nothing_to_evict(Room::Whose::kOver);
  else
    answer(limit.room(), discarded == Discarded::kEnough || has_one(), more);
  return more;
}

uint64_t Evictor::places_kept(const NameLimit& limit) const {
  return &limit == &limits_.entries ? std::max<uint64_t>(limit.most() / kInodeReserve, 1) : 0;
}

Evictor::Discarded Evictor::discard_entries(const Goal& goal) {
  const uint64_t begun_ns = now_ns();
  Effort effort{.over_alone = entries_.shares().over().any()};
  bool even_over = true;
  EvictResult evicted;
  bool discarded = false;  // others may have taken the place, but some can leave
  // What was closed this second leaves for those alone who wait.
  while (!(effort.even_fresh ? goal.has_one() : goal.has_enough(even_over))) {
    if (now_ns() - begun_ns > kTurnNs) return Discarded::kMore;
    // Eviction alone frees no inode of an entry with a copy on the disk: cold entries are discarded for it.
    if (disk_.takes_more() && discard_coldest(effort.over_alone)) {
      discarded = true;
      continue;
    }
    const bool more = more_to_come();
    const Attempt attempt = evict_one(effort, evicted);
    if (attempt == Attempt::kSpilling) return Discarded::kMore;
    discarded |= attempt == Attempt::kFreed;
    if (attempt != Attempt::kNothing) continue;
    const bool was_over = effort.over_alone;
    const Next next = after_nothing(effort, waits_in(goal.room, was_over), more);
    if (next == Next::kLater) return Discarded::kMore;
    if (next == Next::kEnd) return discarded ? Discarded::kMore : Discarded::kNone;
    if (was_over && !effort.over_alone) even_over = false;
  }
  return Discarded::kEnough;
}

bool Evictor::would_overtake(Patience patience) const {
  const WaitingLane& lane = capacity_.waiting();
  return lane.goes_before(patience) && arena_.usage().free_inodes <= lane.size();
}

std::optional<NameLimit::Claim> Evictor::claim(NameLimit& limit, Patience patience, uid_t uid) const {
  const WaitingLane& lane = capacity_.waiting();
  const uint64_t ahead = lane.goes_before(patience) ? lane.size() : 0;
  return limit.claim(ahead + (entries_.shares().is_user_over(uid) ? places_kept(limit) : 0));
}

bool Evictor::gives_way(uid_t uid) const {
  if (!entries_.shares().is_user_over(uid)) return false;
  const ArenaUsage now = arena_.usage();
  return now.free_inodes < now.inodes / kInodeReserve;
}

Waited Evictor::wait_to_make(Patience patience, uid_t uid, NameLimit* limit) {
  // Of the places of directories nobody has a share.
  const auto whose = limit != &limits_.directories && entries_.shares().is_user_over(uid)
                         ? Room::Whose::kOver
                         : Room::Whose::kWriter;
  const bool lacks_inode = limit == nullptr && (arena_.usage().free_inodes == 0 || gives_way(uid));
  Room& room = limit != nullptr ? limit->room() : lacks_inode ? inode_room_ : capacity_.room();
  const auto asked = tree_.empty_directories()->counts();
  const uint64_t since_ms = std::max(asked.heard_ms, patience.begun_ns / 1'000'000);
  const bool for_a_drop =
      limit != &limits_.entries && asked.asked_by_name > 0 && now_coarse_ms() > since_ms + kDropWaitMs;
  const bool ended = capacity_.closed() || capacity_.waiting().waits_ended();
  if (!ended && !for_a_drop && now_ns() - patience.begun_ns < kWaitNs) {
    if (!patience.may_wait) return Waited::kWouldWait;
    const Room::Ticket ticket = room.ticket();
    const uint64_t kept = limit != nullptr && whose == Room::Whose::kOver ? places_kept(*limit) : 0;
    if (limit != nullptr && limit->free() > kept) return Waited::kRoom;
    surroundings_.still_at_it();
    const Room::Demand demand(room, whose, limit != nullptr || lacks_inode ? 1 : kLinkBytes);
    surroundings_.evictor->wake();
    const Room::Answer answer = room.wait(whose, ticket, kNamePatience);
    const bool is_over_no_more = whose == Room::Whose::kOver && !entries_.shares().is_user_over(uid);
    if (answer == Room::Answer::kTryAgain || is_over_no_more) return Waited::kRoom;
  }
  if (limit != nullptr) {
    warn_of_limit(*limit);
  } else if (lacks_inode) {
    const auto counts = tree_.empty_directories()->counts();
    static LogLimit log_limit;
    log_limit.warning(
        "pool {}: no inode is left: {} of {} are entries, and of the directories none can go: {} were made "
        "or "
        "looked up within a minute, or are held by a client",
        name_, entries_.sums().files(), arena_.usage().inodes, counts.resting + counts.asked);
  }
  return Waited::kNoRoom;
}

void Evictor::warn_of_limit(const NameLimit& limit) const {
  static LogLimit log_limit;
  if (&limit == &limits_.entries)
    log_limit.warning("pool {}: max_entries {} is reached and no entry can leave: {} are there, {} open",
                      name_, limit.most(), limit.count(), entries_.sums().open_files());
  else
    log_limit.warning(
        "pool {}: max_directories {} is reached and none of {} can leave: those that are empty "
        "were made or looked up within a minute, or are held by a client",
        name_, limit.most(), limit.count());
}

}  // namespace kvcachefs
