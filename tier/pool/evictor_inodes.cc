// Inodes of a pool, and its limits of entries and directories (tier/pool/name_limits.h). A tmpfs has a number
// of inodes that goes with its size, and directories take them as files do. Engines that spread their entries
// over a million directories would fill a pool with directories that eviction has emptied. When inodes run
// short, empty directories leave first, then entries.
//
// While empty directories hold a quarter of the inodes, mkdir gets none of the last inodes: an entry that
// left for the inode would be lost for one more empty directory.
#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/clock.h"
#include "base/log_limit.h"
#include "tier/pool/directory_reclaimer.h"
#include "tier/pool/evictor.h"

namespace kvcachefs {
namespace {

// Directories leave while less than 1/8 of the inodes is free, until 1/4 is free. Entries leave while less
// than 1/kInodeReserve is free. Young directories leave before that, while less than 1/16 is free.
constexpr uint64_t kShortShare = 8;
constexpr uint64_t kVeryShortShare = 16;
constexpr uint64_t kEnoughShare = 4;
constexpr uint64_t kTurnNs = 5'000'000;  // other pools have their turn after this
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
  const uint64_t even_young = std::max(now.inodes / kVeryShortShare, wanted);
  const DirectoryReclaimer::Wanted leaving = {
      .all = std::max(reclaiming_ ? now.inodes / kEnoughShare - now.free_inodes : 0,
                      reclaiming_directories_ ? limit.lack(places) : 0),
      .even_young = std::max(even_young - std::min(even_young, now.free_inodes),
                             limit.lack(std::max(most / kVeryShortShare, wanted_directories)))};
  const EmptyDirectories::Counts before = tree_.empty_directories()->counts();
  uint64_t removed = 0;
  bool has_more = false;
  if ((reclaiming_ || reclaiming_directories_) && !disk_.lacks_names()) {
    DirectoryReclaimer reclaimer(*this, tree_);
    reclaimer.reclaim(leaving,
                      wanted + wanted_directories == 0 || now_coarse_ms() > reclaimed_ms_ + kInVainMs);
    removed = reclaimer.removed();
    has_more = reclaimer.has_more();
  } else if (before.resting > 0) {
    DirectoryReclaimer(*this, tree_).settle(DirectoryReclaimer::kLooksATurn);
  }
  if (wanted + wanted_directories == 0 || removed > 0) reclaimed_ms_ = now_coarse_ms();
  const auto free_inodes = [this] { return arena_.usage().free_inodes; };
  const Discarded discarded = discard_entries(
      {.room = inode_room_,
       .has_one = [&] { return free_inodes() > 0; },
       .has_enough = [&](bool even_over) { return free_inodes() >= wanted_inodes(even_over); }});
  const bool more = discarded == Discarded::kMore;
  const EmptyDirectories::Counts after = tree_.empty_directories()->counts();
  const bool reclaims = has_more || removed > 0 || after.asked > 0;
  const bool may_reclaim = reclaims || after.resting > 0;  // those that rest may leave in a second
  if (wanted > 0) {
    const uint64_t free = free_inodes();
    const bool even_over = free >= now.inodes / kInodeReserve;
    if (free > 0 && (even_over || inode_room_.wanted_bytes(Room::Whose::kWriter) > 0))
      inode_room_.room_made();
    else if (!more && !may_reclaim)
      inode_room_.nothing_to_evict(free > 0 ? Room::Whose::kOver : Room::Whose::kWriter);
  }
  answer(limit.room(), limit.free() > 0, may_reclaim);
  return more || reclaims;
}

uint64_t Evictor::wanted_inodes(bool even_over) const {
  // While empty directories hold the inodes, mkdir leaves the reserve alone, and half of it is enough.
  const uint64_t inodes = arena_.usage().inodes;
  const uint64_t reserve = inodes / kInodeReserve / (empty_directories_hold(inodes) ? 2 : 1);
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
                         // An entry counts before its claim ends, so both may count. If no request of this
                         // kind waits, only the entries count, so that none leaves for a claim.
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

bool Evictor::gives_way(uid_t uid, const NameLimit* of) const {
  const ArenaUsage now = arena_.usage();
  if (now.free_inodes >= now.inodes / kInodeReserve) return false;
  if (entries_.shares().is_user_over(uid)) return true;
  return of == &limits_.directories && empty_directories_hold(now.inodes);
}

// Some of those that rest may have become other than empty.
bool Evictor::empty_directories_hold(uint64_t inodes) const {
  const EmptyDirectories::Counts empty = tree_.empty_directories()->counts();
  return empty.resting + empty.ripe + empty.asked >= inodes / kEnoughShare;
}

Waited Evictor::wait_to_make(Patience patience, uid_t uid, NameLimit* of, bool lacks_place, uint64_t inodes) {
  NameLimit* const limit = lacks_place ? of : nullptr;
  const bool gives = limit == nullptr && gives_way(uid, of);
  const bool lacks_inode = limit == nullptr && (gives || arena_.usage().free_inodes < inodes);
  // The places of directories have no shares.
  const bool is_over = limit != &limits_.directories && entries_.shares().is_user_over(uid);
  const auto whose = is_over || gives ? Room::Whose::kOver : Room::Whose::kWriter;
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
    const Room::Demand demand(room, whose, limit != nullptr ? 1 : lacks_inode ? inodes : kLinkBytes);
    surroundings_.evictor->wake();
    const Room::Answer answer = room.wait(whose, ticket, kNamePatience);
    const bool is_over_no_more = is_over && !entries_.shares().is_user_over(uid);
    if (answer == Room::Answer::kTryAgain || is_over_no_more) return Waited::kRoom;
  }
  if (limit != nullptr) {
    warn_of_limit(*limit);
  } else if (lacks_inode) {
    const auto counts = tree_.empty_directories()->counts();
    static LogLimit log_limit;
    log_limit.warning(
        "pool {}: no inode is left: {} of {} are entries, and none of the directories can leave: {} were "
        "made or looked up within a second, or are held by a client",
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
        "were made or looked up within a second, or are held by a client",
        name_, limit.most(), limit.count());
}

}  // namespace kvcachefs
