// Shares: what each user's inodes take of a pool, and which users are over their shares of it. An inode
// counts for its owner; an entry stores the owner's number in the pool. An entry without a name that only
// other users have open counts for one of those, because the owner cannot give its memory back. The shares
// are soft: they decide only whose entries leave first, and which users' requests evict no other user's
// entries. The sums follow each change of what an inode takes, and nothing walks the inodes. Any thread; the
// lock is a leaf. Never fails; a build with KVCACHEFS_CHECK_STATES stops where a sum would drift.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "alloc/memory_arena.h"
#include "base/mutex.h"
#include "tier/entries/entry.h"
#include "tier/entries/entry_table.h"
#include "tier/policies/policy.h"

namespace kvcachefs {

// A tmpfs counts its inodes as space: so much for each name of one, and what xattrs take.
inline constexpr uint64_t kNameSpace = 1024;

struct Taken {
  uint64_t data_bytes = 0;   // memory of the content
  uint64_t inode_space = 0;  // of the kind above
  uint64_t disk_units = 0;
  uint64_t entries = 0;

  uint64_t memory_bytes() const { return data_bytes + inode_space * kInodeBytes / kNameSpace; }
  bool operator==(const Taken&) const = default;
};

// What an entry of a regular file takes; of another inode Shares itself knows it.
Taken taken_of(const Entry& entry);

class Shares {
 public:
  // The number of all users together who came when every other number was somebody's.
  static constexpr uint8_t kManyUsers = kMostOwners - 1;
  using Promises = std::array<uint64_t, kMostOwners>;

  struct User {
    std::optional<uid_t> uid;  // none: kManyUsers
    uint64_t memory_bytes = 0;
    uint64_t disk_bytes = 0;
    bool over = false;
  };
  // What those who are over their shares have beyond them.
  struct Excess {
    uint64_t data_bytes = 0;
    uint64_t inodes = 0;
  };

  void set_share(unsigned percent) { percent_ = percent; }  // 0: no user is ever over
  bool has_shares() const { return percent_ != 0; }
  uint64_t share_of(uint64_t whole) const;  // UINT64_MAX if no user is ever over
  uint64_t share_bytes() const { return has_shares() ? share_of(memory_bytes_) : 0; }
  void set_memory(const ArenaUsage& whole);
  void set_disk(uint64_t units, uint64_t unit_bytes);
  void set_most_entries(uint64_t most) { most_entries_ = most; }  // 0: there is no limit

  bool is_over(uint8_t owner) const EXCLUDES(mutex_);
  bool is_user_over(uid_t uid) const EXCLUDES(mutex_);
  Owners over() const EXCLUDES(mutex_);
  Excess excess() const EXCLUDES(mutex_);
  // What of these promises, by owner, would still lie within the owners' shares.
  uint64_t within(const Promises& promised) const EXCLUDES(mutex_);
  std::vector<User> users() const EXCLUDES(mutex_);

  // While it lives, these bytes count for the user as if they were taken: a user who asks for more than the
  // share has room made of the user's own entries first.
  class Asking {
   public:
    Asking(Shares& shares, uid_t uid, uint64_t bytes)
        : shares_(shares), bytes_(shares.has_shares() ? bytes : 0), owner_(shares.asks(uid, bytes_)) {}
    ~Asking() { shares_.asked(owner_, bytes_); }
    Asking(const Asking&) = delete;
    Asking& operator=(const Asking&) = delete;

   private:
    Shares& shares_;
    const uint64_t bytes_;
    const uint8_t owner_;
  };

  // --- opens of other users' entries; of the owner's own nothing is kept ---
  void opened(uint64_t ino, uint8_t owner, uid_t uid) EXCLUDES(mutex_);
  void closed(uint64_t ino, uid_t uid) EXCLUDES(mutex_);
  // A user who has the entry open, if all its `opens` are of others than the owner.
  std::optional<uid_t> holder(uint64_t ino, uint32_t opens) const EXCLUDES(mutex_);

  // --- of regular files: TakenChange, and Entries ---
  void changed(uint64_t ino, uint8_t owner, const Taken& before, const Taken& after) EXCLUDES(mutex_);
  // Makes this user the inode's owner, and returns the user's number. No other user gets that number while
  // the inode takes something.
  uint8_t given(const PolicyFacts& facts, uid_t uid, const Taken& before, const Taken& after)
      EXCLUDES(mutex_);
  void erase(EntryTable::Shard& shard, uint64_t ino) REQUIRES(shard.mutex) EXCLUDES(mutex_);

  // --- of other inodes, which have entries only while the kernel knows them; the inode's shard is held ---
  void counted(uint64_t ino, uid_t uid, const Taken& taken) EXCLUDES(mutex_);
  void gone(uint64_t ino) EXCLUDES(mutex_);  // its last name; of a file nothing happens

 private:
  struct Sum {
    uid_t uid = 0;
    bool used = false;
    Taken taken;
    uint64_t asked_bytes = 0;
  };
  // Few bytes, because a pool may have a million directories.
  struct Other {
    uint8_t owner = 0;
    uint32_t pages = 0;
    uint32_t inode_space = 0;
  };
  static Taken taken_of(const Other& other);

  uint8_t asks(uid_t uid, uint64_t bytes) EXCLUDES(mutex_);
  void asked(uint8_t owner, uint64_t bytes) EXCLUDES(mutex_);
  bool exceeds(const Sum& sum) const;
  void forget_if_unused(uint8_t owner) REQUIRES(mutex_);
  uint8_t number_of(uid_t uid) REQUIRES(mutex_);
  void add(uint8_t owner, const Taken& taken) REQUIRES(mutex_);
  void subtract(uint8_t owner, const Taken& taken) REQUIRES(mutex_);
  void check(uint64_t ino, const Taken& before, const Taken& after) REQUIRES(mutex_);

  std::atomic<unsigned> percent_{0};
  std::atomic<uint64_t> memory_bytes_{0};
  std::atomic<uint64_t> inodes_{0};
  std::atomic<uint64_t> disk_units_{0};
  std::atomic<uint64_t> unit_bytes_{0};
  std::atomic<uint64_t> most_entries_{0};
  mutable Mutex mutex_;
  // By owner. The first is root, whose an entry is until it is known better.
  std::vector<Sum> sums_ GUARDED_BY(mutex_){Sum{.uid = 0, .used = true, .taken = {}}};
  std::unordered_map<uid_t, uint8_t> numbers_ GUARDED_BY(mutex_){{0, 0}};
  std::unordered_map<uint64_t, Other> others_ GUARDED_BY(mutex_);
  std::atomic<bool> has_holders_{false};  // there were some
  // By inode: the other users who have it open, and how often.
  std::unordered_map<uint64_t, std::vector<std::pair<uid_t, uint32_t>>> holders_ GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Taken> checked_ GUARDED_BY(mutex_);  // empty but in a build that checks
};

// Keeps the sums true over a change of what an entry takes: of its tier, its memory, its copies on the disk.
class TakenChange {
 public:
  TakenChange(Shares& shares, const Entry& entry)
      : shares_(shares), entry_(entry), before_(taken_of(entry)) {}
  ~TakenChange() {
    if (const Taken now = taken_of(entry_); now != before_)
      shares_.changed(entry_.policy.ino, entry_.policy.owner, before_, now);
  }
  TakenChange(const TakenChange&) = delete;
  TakenChange& operator=(const TakenChange&) = delete;

 private:
  Shares& shares_;
  const Entry& entry_;
  const Taken before_;
};

}  // namespace kvcachefs
