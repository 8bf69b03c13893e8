// The EntryIndex of a pool stores the metadata of its entries (tier/index/metadata.h), so that one call
// answers which entries a prompt can reuse. It observes the entries. The indexer's step() reads an entry with
// metadata after it was published. A query first reads the entries that no step() has read yet, so it knows
// all that were published before it. An entry that was replaced or rewritten, or is gone, is never in an
// answer, because each is looked at before it is named. After a restart or a takeover the index is rebuilt
// from the xattrs.
//
// Any thread. No lock of the index is held while a query looks at entries: the query copies some candidates,
// looks at them without the lock, and comes back for more. It may miss an entry that comes or leaves in
// between. Only `reading_mutex_` is held over system calls on the tmpfs, while one changed entry is read.
// Failure: an entry that would exceed the index's memory is counted and left out; it is added when there is
// room again. The memory counts as the pool's (ArenaUsage::index_bytes).
#pragma once

#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "alloc/memory_arena.h"
#include "base/checksum.h"
#include "base/mutex.h"
#include "tier/entries/entries.h"
#include "tier/index/entry_groups.h"
#include "tier/index/index_room.h"
#include "tier/index/metadata.h"
#include "tier/index/missing_entries.h"
#include "tier/index/owner_names.h"
#include "tier/index/prefix_tree.h"
#include "tier/index/query_work.h"
#include "tier/index/similar_index.h"

namespace kvcachefs {

class EntryIndex final : public EntryObserver {
 public:
  static constexpr size_t kBlockTokens = 16;

  // Called whenever an entry with metadata is read: with the time until which it is kept (user.kv.ttl) and
  // the time at which it is removed (user.kv.expires), in now_coarse_ms(); 0: none. An entry that is gone is
  // reported with another generation.
  using TellTimes = std::function<void(const sys::Handle&, uint64_t kept_until_ms, uint64_t expires_ms)>;
  // A thread that works long for one query reports progress by `still_at_it`.
  EntryIndex(MemoryArena& arena, Entries& entries, std::function<void()> still_at_it, TellTimes tell_times)
      : arena_(arena),
        entries_(entries),
        index_bytes_(arena.index_bytes()),
        still_at_it_(std::move(still_at_it)),
        tell_times_(std::move(tell_times)),
        room_(arena, entries.shares()) {}

  // --- EntryObserver ---
  void opened(const Entry& entry, bool, uint64_t) override {
    if (entry.described) groups_.opened(entry.policy.ino);
  }
  void stored(const Entry& entry) override { changed(entry); }
  void published(const Entry& entry) override { changed(entry); }
  void renamed(const Entry& entry) override { changed(entry); }
  void described(const Entry& entry) override { changed(entry); }
  void removed(const Entry& entry, RemovalReason) override { changed(entry); }

  // Reads changed entries, and touches the groups that were used, for a millisecond each. Returns true if
  // there is more to do.
  bool step() EXCLUDES(reading_mutex_, mutex_);
  uint64_t waiting() const { return waiting_; }      // changes that have not been read
  uint64_t cut_short() const { return cut_short_; }  // queries that were answered from less than all entries

  // Returns what the stat(2) of a query's caller returns for the name; EACCES also if the caller may not read
  // the file.
  using Look = std::function<Result<struct stat>(const std::string& name)>;
  // The caller of a query, and the work that the query may take. An entry that is unreadable to the caller by
  // its owner and mode is not looked at, so the time of an answer does not depend on it.
  struct Asker {
    Look look;
    PrefixTree::WhoseIs whose_is;
    QueryWork& work;
  };
  QueryWork work_until(const std::atomic<bool>& ended, QueryWork::Charge charge = nullptr) const {
    return {still_at_it_, ended, std::move(charge)};
  }
  // An entry that is there now, and that the caller may open.
  struct Found {
    sys::Handle handle;
    std::string name;  // in the pool
    Entry::Tier tier = Entry::Tier::kDirty;
    uint32_t version = 0;
    uint64_t size_bytes = 0;
    uint32_t hits = 0;
    uint64_t stored_ms = 0;
  };
  struct Piece {
    Found entry;
    size_t first_token = 0, end_token = 0;
  };
  // The entries of the model that hold the longest prefix of the tokens, in order and without a gap. An entry
  // that follows another counts only for a caller who may read that entry, too. Otherwise its place in a
  // prompt would prove which tokens that entry holds.
  std::vector<Piece> match(const std::string& model, std::span<const uint32_t> tokens, const Asker& asker)
      EXCLUDES(reading_mutex_, mutex_);
  // The indexed blocks that are nearly one of the query's, the nearest first, of entries whose content holds
  // at any position (user.kv.pre_rope).
  struct SimilarQuery {
    std::string model;
    std::vector<uint32_t> tokens;
    unsigned most_distance = 8;  // in bits of 64; SimilarIndex::kMostDistance at most
    std::string excluded = {};   // an owner: its entries and those of its roles are left out
    size_t most_results = 100;   // kMostSimilar at most
  };
  struct SimilarBlockOf {
    Found entry;
    Similar block;
    std::string owner;
  };
  struct SimilarFound {
    std::vector<SimilarBlockOf> blocks;
    uint64_t truncated = 0;  // blocks of the query for which not all blocks were compared
    // If the answer has no blocks: at least how many it would have, most_results at most, if their entries
    // had user.kv.pre_rope=1.
    uint64_t not_pre_rope = 0;
  };
  static constexpr size_t kMostSimilar = 4096;
  SimilarFound similar(const SimilarQuery& query, const Asker& asker) EXCLUDES(reading_mutex_, mutex_);

  // Calls `tell` for each entry that passes all filters; at least one is given. Of more than kMostListed
  // entries, any kMostListed are listed. The Metadata contains the attributes alone. The list ends where
  // `tell` returns false.
  static constexpr size_t kMostListed = 65'536;
  using Filter = std::pair<Attribute, std::string>;
  using TellListed = std::function<bool(const Found&, const Metadata&)>;
  void list(std::span<const Filter> filters, const Asker& asker, const TellListed& tell)
      EXCLUDES(reading_mutex_, mutex_);
  // Returns the inodes of all such entries, without a look at them; none if the query's work has no memory
  // for them.
  std::vector<uint64_t> having(std::span<const Filter> filters, QueryWork* work = nullptr)
      EXCLUDES(reading_mutex_, mutex_);

  EntryGroups& groups() { return groups_; }
  // Returns the end of a chain of entries that follow one another from this entry on: no further entry
  // follows it. Returns the entry itself if none follows. The search ends after kMostLinks, because the
  // evictor of all pools waits for it, for some milliseconds.
  static constexpr size_t kMostLinks = 16'384;
  uint64_t leaf_below(uint64_t ino) EXCLUDES(reading_mutex_, mutex_);

  // Returns a stored entry, with metadata or without, and the tier of its content.
  std::optional<std::pair<sys::Handle, Entry::Tier>> stored(uint64_t ino);

  struct Usage {
    uint64_t entries = 0;
    uint64_t blocks = 0;
    uint64_t bytes = 0;    // of the daemon's memory
    uint64_t refused = 0;  // how often an entry had no room
    uint64_t missing = 0;  // entries that have no room now (MissingEntries::count())
  };
  // As it was after the last change.
  Usage usage() const {
    return {.entries = indexed_entries_,
            .blocks = indexed_blocks_,
            .bytes = index_bytes_,
            .refused = refused_,
            .missing = missing_.count()};
  }

 private:
  static constexpr uint64_t kModelBytes = 1024;  // with a name of 255 bytes, which is there twice
  struct KeyHash {
    size_t operator()(const Checksum& key) const { return key.low; }
  };
  // Ordered by user, because an entry first follows one of the same user: other users may use the same name.
  using ByKey = std::unordered_map<Checksum, std::set<std::pair<uid_t, uint64_t>>, KeyHash>;
  struct Model {
    std::string name;
    PrefixTree tree{kBlockTokens};
    std::unique_ptr<SimilarIndex> similar = {};  // of entries that hold at any position, if there are any
    // `leading`: entries that others of the model can follow. `awaiting`: entries that wait for such an
    // entry, or for one of the same user. Many entries may have the same key.
    ByKey leading = {}, awaiting = {};
    uint64_t records = 0;
    uint64_t counted_bytes = 0, counted_blocks = 0;  // in the sums
  };
  // The number of a change of an entry. The entries that follow that entry are read for it, and so on.
  using Cause = uint64_t;
  using ByValue = std::unordered_map<std::string, std::unordered_set<uint64_t>>;  // the attribute's first
  struct Record {
    uint32_t content_epoch = 0;
    uint32_t generation = 0;
    uid_t uid = 0;
    PrefixTree::Access access = {};
    uint64_t room_bytes = 0;
    Model* model = nullptr;  // none: it has no tokens
    std::optional<PrefixTree::Member> member = std::nullopt;
    std::optional<OwnerNumber> owner = std::nullopt;  // set: in the model's SimilarIndex, as this owner's
    std::optional<Checksum> follows = std::nullopt;   // the key of the entry that precedes it
    std::optional<Checksum> awaits = std::nullopt;
    // The entry that it comes after in the tree, and those that come after it, as a list; 0: none.
    uint64_t parent = 0, first_follower = 0;
    uint64_t next_follower = 0, previous_follower = 0;  // of its parent's
    Cause cause = 0;                                    // for which it was read,
    unsigned rereads = 0;                               // and how often again
    bool leads = false;                                 // others can follow it, and name it by keys_of(name)
    bool has_group = false;
    // The name in the pool when the entry was read. A directory above it may have been renamed since.
    std::string name = {};
    std::array<ByValue::value_type*, kAttributes> values = {};
  };

  void changed(const Entry& entry) EXCLUDES(queue_mutex_);
  struct Next {
    uint64_t ino = 0;
    Cause cause = 0;  // 0: it has changed itself
  };
  std::optional<Next> next(bool even_followers) EXCLUDES(queue_mutex_);
  void again(uint64_t ino) EXCLUDES(queue_mutex_);
  void follows_again(uint64_t ino, const Record& record, Cause cause) EXCLUDES(queue_mutex_);
  void refuse(uint64_t ino) REQUIRES(mutex_);  // there is no room for all of it
  bool seek_refused() REQUIRES(mutex_);        // true: there is more
  // Returns false if no change is waiting, nor, if those are to be read too, an entry whose parent has come.
  bool read_next(bool even_followers) EXCLUDES(reading_mutex_, mutex_);
  bool work(uint64_t until_ns) EXCLUDES(reading_mutex_, mutex_);  // true: there is more
  // Removes some entries that have lost their parents from the tree. Returns true if there may be more.
  bool vacate() REQUIRES(reading_mutex_) EXCLUDES(mutex_);
  void lose_place(uint64_t ino, Cause cause) REQUIRES(mutex_);
  void catch_up() EXCLUDES(reading_mutex_, mutex_);  // before a query
  void count(Model& model) REQUIRES(mutex_);         // it has changed
  struct Reading {
    Record record;
    Metadata metadata;
    struct stat file {};
    bool has_gone = false;
  };
  std::optional<Reading> reading_of(uint64_t ino) const EXCLUDES(mutex_);
  void read(Next next) REQUIRES(reading_mutex_) EXCLUDES(mutex_);
  // The place that an entry had in a model when it was read before.
  struct OldPlace {
    Model* model = nullptr;  // none: it had no tokens
    std::optional<PrefixTree::Member> member = std::nullopt;
    std::string name = {};
    uint64_t parent = 0, first_follower = 0;
    Cause cause = 0;
    unsigned rereads = 0;
  };
  // False: there is no room for it.
  bool insert(uint64_t ino, Record record, const Metadata& metadata, const OldPlace& old) REQUIRES(mutex_);
  uint64_t room_for(const Record& record, const Metadata& metadata) const REQUIRES(mutex_);
  void join_group(uint64_t ino, const struct stat& file, const Metadata& metadata) REQUIRES(mutex_);
  void insert_similar(uint64_t ino, Record& record, Model& model, const Metadata& metadata) REQUIRES(mutex_);
  void insert_tokens(uint64_t ino, Record& record, const Metadata& metadata, uint64_t old_parent)
      REQUIRES(mutex_);
  void insert_after_parent(uint64_t ino, Record& record, const Metadata& metadata, uint64_t old_parent)
      REQUIRES(mutex_);
  // Returns the entry that an entry of this user follows by this key: one of the same user, or else the one
  // that it followed before, if it can be followed still. 0: there is none.
  uint64_t leading(const Checksum& key, const Model& model, uid_t user, uint64_t old_parent) const
      REQUIRES(mutex_);
  void follow(uint64_t ino, Record& record, uint64_t parent) REQUIRES(mutex_);
  void stop_following(uint64_t ino, Record& record) REQUIRES(mutex_);
  static void erase(ByKey& from, const Checksum& key, uid_t user, uint64_t ino);
  // Removes the record, but not its place, which leave() gives up after the insertion: if the entry has the
  // same place again, the entries that follow it keep theirs.
  OldPlace drop(uint64_t ino) REQUIRES(mutex_);
  void drop_tokens(uint64_t ino, const Record& record) REQUIRES(mutex_);
  void stop_leading(uint64_t ino, const Record& record) REQUIRES(mutex_);
  void leave(uint64_t ino, const OldPlace& old, Cause cause) REQUIRES(mutex_);
  bool is_named(uint64_t ino, const std::string& name) const;  // by the daemon's rights
  // The part of a record that a look without the lock needs.
  struct Candidate {
    sys::Handle handle;
    uint32_t content_epoch = 0;
    std::string name;
  };
  std::optional<Candidate> candidate(uint64_t ino) const REQUIRES(mutex_);
  // Returns those of the entries that the caller may read by their access.
  std::vector<Candidate> candidates(std::span<const uint64_t> inodes, const Asker& asker) const
      EXCLUDES(mutex_);
  std::optional<Found> look_at(Candidate candidate, const Asker& asker) EXCLUDES(mutex_);
  // Returns those of the entries that belong to the model, and have tokens but no block in its SimilarIndex.
  std::vector<Candidate> unmarked(std::span<const uint64_t> inodes, const std::string& model,
                                  const Asker& asker) const EXCLUDES(mutex_);
  uint64_t count_unmarked(const SimilarQuery& query, const Asker& asker) EXCLUDES(mutex_);
  // The entries that a match has looked at: an entry that may not be in the answer has no Found.
  using LookedAt = std::unordered_map<uint64_t, std::optional<Found>>;
  struct Matching {
    LookedAt looked_at = {};
    std::vector<Candidate> unknown = {};
    uint64_t runs = 0;  // of the tree that the memory taken is enough for
  };
  // Returns the longest prefix by the looks so far. A candidate that was not looked at counts as usable if
  // `hopeful`, and is added to `unknown`, which takes `most_unknown` at most.
  std::vector<PrefixTree::Piece> longest(const std::string& model, std::span<const uint32_t> tokens,
                                         const Asker& asker, bool hopeful, size_t most_unknown,
                                         Matching& matching) const EXCLUDES(mutex_);
  // Returns the entry that this one comes after, if that is still where it was; else 0.
  uint64_t parent_of(const Record& record) const REQUIRES(mutex_);
  // use_of_chain() judges an entry together with all that it follows; `use_of` judges each alone.
  using UseOf = std::function<PrefixTree::Use(uint64_t ino)>;
  PrefixTree::Use use_of_chain(uint64_t ino, const UseOf& use_of, const Asker& asker,
                               std::unordered_map<uint64_t, PrefixTree::Use>& known) const REQUIRES(mutex_);

  MemoryArena& arena_;
  Entries& entries_;
  std::atomic<uint64_t>& index_bytes_;  // as it was after the last change
  const std::function<void()> still_at_it_;
  const TellTimes tell_times_;
  EntryGroups groups_;
  // One entry is read at a time, so that of two readings of an entry the later one stays.
  FairMutex reading_mutex_ ACQUIRED_BEFORE(mutex_);
  mutable FairMutex mutex_;
  std::map<std::string, Model> models_ GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Record> records_ GUARDED_BY(mutex_);
  struct Orphans {
    uint64_t first = 0;  // the others follow it in its list
    Cause cause = 0;
  };
  std::vector<Orphans> orphans_ GUARDED_BY(mutex_);  // what vacate() takes out of the tree
  Cause causes_ GUARDED_BY(reading_mutex_) = 0;
  ByValue by_value_ GUARDED_BY(mutex_);
  OwnerNames owners_ GUARDED_BY(mutex_);
  std::atomic<uint64_t> indexed_entries_{0}, indexed_blocks_{0}, refused_{0};
  MissingEntries missing_;  // under mutex_, but for count()
  // Entries that had no room are sought, shard after shard, once there is room for the smallest.
  IndexRoom room_ GUARDED_BY(mutex_);
  size_t sought_shard_ GUARDED_BY(mutex_) = EntryTable::kShards;  // the next; kShards: there is none
  mutable Mutex queue_mutex_;
  std::deque<uint64_t> queue_ GUARDED_BY(queue_mutex_);
  // Entries that have not changed themselves, but their parent has come. Any user can have thousands of them
  // read again and again, so changed entries go before them.
  std::deque<Next> followers_ GUARDED_BY(queue_mutex_);
  std::unordered_set<uint64_t> queued_
      GUARDED_BY(queue_mutex_);  // an inode waits once, however often it changes
  std::atomic<uint64_t> waiting_{0}, cut_short_{0};
};

}  // namespace kvcachefs
