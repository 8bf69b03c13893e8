// The evictor makes room in a pool: memory, inodes, and space on the disk. A clean entry loses its memory
// copy. A dirty one is spilled first where there is a disk, and discarded where there is none or where the
// disk cannot have it. tidy() belongs to the evictor's thread; any thread may call the others, which wait
// with no lock held, and every wait is bounded. Failure: what cannot go stays, and callers hear that there is
// no room.
//
// An open counts itself under the shard before it opens; a discard checks the count and takes the F_WRLCK
// lease under the shard. So no open of the daemon ever runs into a lease.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "tier/entries/parked.h"
#include "tier/index/entry_index.h"
#include "tier/pool/copy_marks.h"
#include "tier/pool/lifetimes.h"
#include "tier/pool/name_limits.h"
#include "tier/pool/reservations.h"
#include "tier/pool/tree.h"
#include "tier/room.h"

namespace kvcachefs {

class Evictor : DiskPart {
 public:
  Evictor(const DiskPart& part, Reservations& reservations, CopyMarks& marks, Parked& parked, Tree& tree,
          Lifetimes& lifetimes, EntryIndex& index)
      : DiskPart(part),
        reservations_(reservations),
        marks_(marks),
        parked_(parked),
        tree_(tree),
        lifetimes_(lifetimes),
        index_(index) {}

  // One round of background work; true if the next should come at once or within a millisecond.
  bool tidy();
  EvictResult evict_now(EvictOrder order) EXCLUDES(last_mutex_);
  EvictResult last_evict() const EXCLUDES(last_mutex_);
  // Evicts until no more than this is used, until nothing more can go, or until the deadline.
  EvictResult shrink_to(uint64_t size_bytes, uint64_t deadline_ns);
  // Called when a call of this user's that makes a name or an attribute has met ENOSPC, or lacks a place
  // within the limit `of` such names, if they have one. `inodes`: that many of the pool are taken by what is
  // made. Waits a little for them, a page, or a place; kRoom says to try again.
  Waited wait_to_make(Patience patience, uid_t uid = 0, NameLimit* of = nullptr, bool lacks_place = false,
                      uint64_t inodes = 1);
  // True for a user over their share while inodes are short, and for a directory while empty ones hold the
  // inodes: such a call gets none of the last inodes.
  bool gives_way(uid_t uid, const NameLimit* of = nullptr) const;
  // True for a caller that would take the inode that a request before it waits for.
  bool would_overtake(Patience patience) const;
  std::optional<NameLimit::Claim> claim(NameLimit& limit, Patience patience, uid_t uid = 0) const;
  // True: an entry stays as long as another entry is of no use without it (leaf_first=).
  void set_leaf_first(bool leaf_first) { leaf_first_ = leaf_first; }

 private:
  // kNeeded: the entry would have to leave the pool, and another entry is of no use without it.
  enum class Attempt { kFreed, kSpilling, kBusy, kNothing, kNeeded };
  struct Effort {
    bool even_fresh = false;
    bool even_recent = false;
    bool even_unspilled = false;  // discards entries that the disk is too slow for
    bool disk_is_busy = false;    // the disk is asked for nothing more
    bool clean_alone = false;     // evicts clean entries only: to make room on the disk
    bool spares_ordered = false;  // spares entries that a prefetch order has found in memory or brought
    uint64_t orders_ended = 0;    // Promoter::orders_ended() when the lacking memory was last computed
    bool over_alone = false;      // evicts entries only of those who are over their shares
  };

  void publish_grown();
  void look_at_held();
  void see_charged(Entry& entry, int fd);
  bool more_to_come();
  bool make_room();  // true: there is more to do
  // The next step of make_room() after an effort that found no victim: it tries harder, or comes back later,
  // or ends.
  enum class Next { kHarder, kLater, kEnd };
  Next after_nothing(Effort& effort, bool writer_waits, bool more);
  // True while users over their shares have entries that can leave in a moment. Until then no other user's
  // entries leave.
  bool awaits_over();
  uint64_t orders_ended() const;  // of the pool's promoter
  static bool waits_in(const Room& room, bool over_alone);
  // Entries of users over their shares leave first.
  Attempt evict_one(Effort effort, EvictResult& result);
  Attempt evict_entry(EntryTable::Shard& shard, Entry& entry, Effort effort, bool is_needed,
                      EvictResult& result) REQUIRES(shard.mutex);
  bool goes_to_disk_first(Entry& entry, Effort effort);
  Attempt discard(EntryTable::Shard& shard, Entry& entry, RemovalReason reason, EvictResult& result)
      REQUIRES(shard.mutex);
  // Evicts the memory of a clean entry.
  Attempt drop_memory(Entry& entry, EvictResult& result);
  void make_disk_room();
  bool discard_coldest(bool over_alone);  // discards a cold entry; false: there is none

  // Entries that leave with another entry, or at a time (evictor_together.cc).
  uint64_t first_to_leave(uint64_t victim);
  Attempt evict_leaf(uint64_t leaf, Effort effort, EvictResult& result);
  void give_back(uint64_t victim, Attempt leaf);
  // Called when an entry of the group has left the memory, or the pool: has the other entries do the same,
  // and then `last`, if that has expired. Returns false if they do so already.
  bool others_follow(std::shared_ptr<const EntryGroups::Group> group, bool removes,
                     std::optional<sys::Handle> last = {}) EXCLUDES(followers_mutex_);
  std::optional<Attempt> evict_follower(Effort effort, EvictResult& result) EXCLUDES(followers_mutex_);
  bool evict_followers() EXCLUDES(followers_mutex_);  // true: there is more to do
  bool remove_expired();                              // the same
  void expire(const sys::Handle& expired, const std::shared_ptr<const EntryGroups::Group>& group)
      EXCLUDES(followers_mutex_);
  Attempt has_expired(const Entry& entry, uint64_t& again_ms) const;
  bool may_go_now(const Entry& entry) const;
  // With `group`, only an entry that is still in that group.
  Attempt remove_with_another(uint64_t ino, RemovalReason reason, EvictResult& result,
                              const EntryGroups::Group* group = nullptr);
  Attempt remove_now(EntryTable::Shard& shard, Entry& entry, RemovalReason reason, EvictResult& result)
      REQUIRES(shard.mutex);

  // Reclaiming inodes, and keeping the limits of names (evictor_inodes.cc). True: there is more to do.
  bool make_inode_room();
  bool keep_entry_limit();
  // This many places are left to users within their shares: otherwise a user who holds the entries of all
  // places open keeps all other users from creating any.
  uint64_t places_kept(const NameLimit& limit) const;
  bool empty_directories_hold(uint64_t inodes) const;  // a quarter of these
  uint64_t wanted_inodes(bool even_over) const;        // that are to be free; as Capacity::pressure_bytes()
  // Requests wait in `room` for an inode or a place. The evictor goes on until there are enough.
  struct Goal {
    const Room& room;
    std::function<bool()> has_one;
    std::function<bool(bool even_over)> has_enough;
  };
  // kMore: more entries can go; kNone: none can, and there are not enough.
  enum class Discarded { kEnough, kMore, kNone };
  Discarded discard_entries(const Goal& goal);
  void warn_of_limit(const NameLimit& limit) const;

  Reservations& reservations_;
  CopyMarks& marks_;
  Parked& parked_;
  Tree& tree_;
  Lifetimes& lifetimes_;
  EntryIndex& index_;
  std::atomic<bool> leaf_first_{false};
  struct Followers {
    std::shared_ptr<const EntryGroups::Group> group;
    bool removes;
    std::vector<uint64_t> left;
    std::optional<sys::Handle> last;
  };
  Mutex followers_mutex_;
  std::deque<Followers> followers_ GUARDED_BY(followers_mutex_);
  std::set<std::pair<const EntryGroups::Group*, bool>> groups_ GUARDED_BY(followers_mutex_);  // in followers_
  Room inode_room_;  // counts inodes, not bytes
  // Used by the evictor's thread alone:
  bool has_read_all_ = false;            // the index has read all entries that came back at a start
  bool reclaiming_ = false;              // true between the two marks of free inodes
  bool reclaiming_directories_ = false;  // the same for the limit of directories
  uint64_t reclaimed_ms_ = 0;            // when a directory left, or no request waited for one to
  uint64_t awaits_over_since_ms_ = 0;
  mutable Mutex last_mutex_;
  EvictResult last_evict_ GUARDED_BY(last_mutex_);
};

}  // namespace kvcachefs
