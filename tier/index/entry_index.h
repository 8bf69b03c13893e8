// The EntryIndex of a pool: what its entries say of their content (tier/index/metadata.h), so that one call
// answers which of them a prompt can reuse. It observes the entries. One that has metadata is read by the
// indexer's step() after it was published; before that step a query reads it itself, so that it knows what
// was published before it. An entry that was replaced or rewritten, or has gone, is never in an answer: each
// is looked at before it is named. After a restart and a takeover the index is made anew from the xattrs.
//
// Any thread. No lock of the index is held while a query looks at entries: it copies some candidates, looks
// at them without the lock, and comes back for more. An entry that comes or goes in between may be missed.
// `reading_mutex_` alone is held over system calls on the tmpfs, for one entry that has changed at a time.
// Failure: an entry that would exceed the index's memory is not in it, and counted; it comes to it when there
// is room again. The memory counts as the pool's (ArenaUsage::index_bytes).
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

  // Hears of each entry that has metadata, whenever it is read: until when it is kept (user.kv.ttl) and when
  // it is removed (user.kv.expires), in now_coarse_ms(); 0: not.
  // What has gone is told with another generation.
  using TellTimes = std::function<void(const sys::Handle&, uint64_t kept_until_ms, uint64_t expires_ms)>;
  // A thread that works long for one query says so, by `still_at_it`.
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

  // Reads what has changed, and touches the groups that were used, for a millisecond each; true: there is
  // more.
  bool step() EXCLUDES(reading_mutex_, mutex_);
  uint64_t waiting() const { return waiting_; }      // so many changes have not been read
  uint64_t cut_short() const { return cut_short_; }  // so many queries were answered from less than all

  // What a stat of the name tells whom it answers for; EACCES also if he may not read that file.
  using Look = std::function<Result<struct stat>(const std::string& name)>;
  // Whom a query is answered for, and what it may cost. An entry that is unreadable to the caller by its
  // owner and mode is not looked at, so the time of an answer does not depend on it.
  struct Asker {
    Look look;
    PrefixTree::WhoseIs whose_is;
    QueryWork& work;
  };
  QueryWork work_until(const std::atomic<bool>& ended, QueryWork::Charge charge = nullptr) const {
    return {still_at_it_, ended, std::move(charge)};
  }
  // An entry that is there now, and may be opened by whom `look` answers for.
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
  // that follows another counts only for a caller who may read that one too, or its place in a prompt would
  // prove which tokens the other holds.
  std::vector<Piece> match(const std::string& model, std::span<const uint32_t> tokens, const Asker& asker)
      EXCLUDES(reading_mutex_, mutex_);
  // The indexed blocks that are nearly one of the query's, the nearest first, of entries whose content holds
  // at any position (user.kv.pre_rope).
  struct SimilarQuery {
    std::string model;
    std::vector<uint32_t> tokens;
    unsigned most_distance = 8;  // in bits of 64; SimilarIndex::kMostDistance at most
    std::string excluded = {};   // an owner; neither his entries nor those of his roles are in the answer
    size_t most_results = 100;   // kMostSimilar at most
  };
  struct SimilarBlockOf {
    Found entry;
    Similar block;
    std::string owner;
  };
  struct SimilarFound {
    std::vector<SimilarBlockOf> blocks;
    uint64_t truncated = 0;  // blocks of the query for which not all was looked at
    // So many blocks at least would be in an answer that has none, most_results at most, if their entries
    // had user.kv.pre_rope=1.
    uint64_t not_pre_rope = 0;
  };
  static constexpr size_t kMostSimilar = 4096;
  SimilarFound similar(const SimilarQuery& query, const Asker& asker) EXCLUDES(reading_mutex_, mutex_);

  // Tells of the entries for which each attribute has this value; at least one is given. Of more than
  // kMostListed any. The Metadata are the attributes alone. The list ends where `tell` returns false.
  static constexpr size_t kMostListed = 65'536;
  using Filter = std::pair<Attribute, std::string>;
  using TellListed = std::function<bool(const Found&, const Metadata&)>;
  void list(std::span<const Filter> filters, const Asker& asker, const TellListed& tell)
      EXCLUDES(reading_mutex_, mutex_);
  // The inodes of all of them, looked at by nobody; none if the query's work has no memory for them.
  std::vector<uint64_t> having(std::span<const Filter> filters, QueryWork* work = nullptr)
      EXCLUDES(reading_mutex_, mutex_);

  EntryGroups& groups() { return groups_; }
  // An entry that is of no use without this one, or without one that is of no use without it, and so on, and
  // without which no other is useless; if there is none, the entry itself. Of a longer chain it is the one
  // after kMostLinks: the evictor of all pools waits for this, for some milliseconds.
  static constexpr size_t kMostLinks = 16'384;
  uint64_t leaf_below(uint64_t ino) EXCLUDES(reading_mutex_, mutex_);

  // An entry that is stored, whether it has metadata or not, and where its content is.
  std::optional<std::pair<sys::Handle, Entry::Tier>> stored(uint64_t ino);

  struct Usage {
    uint64_t entries = 0;
    uint64_t blocks = 0;
    uint64_t bytes = 0;    // of the daemon's memory
    uint64_t refused = 0;  // so often an entry had no room in it
    uint64_t missing = 0;  // so many have none now, of more than MissingEntries::kMost one more than these
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
  // By their users, because a user's entry follows his own first: others may call theirs the same.
  using ByKey = std::unordered_map<Checksum, std::set<std::pair<uid_t, uint64_t>>, KeyHash>;
  struct Model {
    std::string name;
    PrefixTree tree{kBlockTokens};
    std::unique_ptr<SimilarIndex> similar = {};  // of entries that hold at any position, if there are any
    // Entries that others of the model can follow, and those that wait for one, or for one of their user's. A
    // key may be that of many.
    ByKey leading = {}, awaiting = {};
    std::vector<PrefixTree::Place> uncovered = {};  // the entries that start there have lost their place
    uint64_t records = 0;
    uint64_t counted_bytes = 0, counted_blocks = 0;  // in the sums
  };
  using ByValue = std::unordered_map<std::string, std::unordered_set<uint64_t>>;  // the attribute's first
  struct Record {
    uint32_t content_epoch = 0;
    uint32_t generation = 0;
    uid_t uid = 0;
    PrefixTree::Access access = {};
    uint64_t room_bytes = 0;
    Model* model = nullptr;  // none: it has no tokens
    std::optional<PrefixTree::Member> member = std::nullopt;
    std::optional<OwnerNumber> owner = std::nullopt;  // it is in the model's SimilarIndex, as this owner's
    std::optional<Checksum> follows = std::nullopt;   // the key of the entry that precedes it
    std::optional<Checksum> awaits = std::nullopt;
    bool leads = false;  // others can follow it, and name it by keys_of(name)
    bool has_group = false;
    // In the pool, as it was when it was read. A directory above it may have another by now.
    std::string name = {};
    std::array<ByValue::value_type*, kAttributes> values = {};
  };

  void changed(const Entry& entry) EXCLUDES(queue_mutex_);
  std::optional<uint64_t> next() EXCLUDES(queue_mutex_);
  void again(uint64_t ino) EXCLUDES(queue_mutex_);
  void refuse(uint64_t ino) REQUIRES(mutex_);                     // there is no room for all of it
  bool seek_refused() REQUIRES(mutex_);                           // true: there is more
  bool work(uint64_t until_ns) EXCLUDES(reading_mutex_, mutex_);  // true: there is more
  // Some entries that have lost their place await their parents again; true: there may be more.
  bool vacate() REQUIRES(reading_mutex_) EXCLUDES(mutex_);
  void lose_place(uint64_t ino) REQUIRES(mutex_);
  void catch_up() EXCLUDES(reading_mutex_, mutex_);  // before a query
  void count(Model& model) REQUIRES(mutex_);         // it has changed
  struct Reading {
    Record record;
    Metadata metadata;
    struct stat file {};
    bool has_gone = false;
  };
  std::optional<Reading> reading_of(uint64_t ino) const EXCLUDES(mutex_);
  void read(uint64_t ino) REQUIRES(reading_mutex_) EXCLUDES(mutex_);
  // The place that an entry had in a model when it was read before.
  struct OldPlace {
    Model* model = nullptr;  // none: it had no tokens
    std::optional<PrefixTree::Member> member = std::nullopt;
  };
  // False: there is no room for it.
  bool insert(uint64_t ino, Record record, const Metadata& metadata, const OldPlace& old) REQUIRES(mutex_);
  uint64_t room_for(const Record& record, const Metadata& metadata) const REQUIRES(mutex_);
  void join_group(uint64_t ino, const struct stat& file, const Metadata& metadata) REQUIRES(mutex_);
  void insert_similar(uint64_t ino, Record& record, Model& model, const Metadata& metadata) REQUIRES(mutex_);
  void insert_tokens(uint64_t ino, Record& record, const Metadata& metadata) REQUIRES(mutex_);
  void insert_after_parent(uint64_t ino, Record& record, Model& model, const Metadata& metadata)
      REQUIRES(mutex_);
  // The entry that one of the user's follows by this key.
  const Record* leading(const Checksum& key, const Model& model, uid_t user) const REQUIRES(mutex_);
  static void erase(ByKey& from, const Checksum& key, uid_t user, uint64_t ino);
  // The entry's old place is left by leave(): if it is the new one too, those that follow it keep theirs.
  OldPlace drop(uint64_t ino) REQUIRES(mutex_);
  void drop_tokens(uint64_t ino, const Record& record) REQUIRES(mutex_);
  void stop_leading(uint64_t ino, const Record& record) REQUIRES(mutex_);
  void leave(const OldPlace& old) REQUIRES(mutex_);
  bool is_named(uint64_t ino, const std::string& name) const;  // whoever may see that
  // The index knows this of an entry; a look without the lock needs it.
  struct Candidate {
    sys::Handle handle;
    uint32_t content_epoch = 0;
    std::string name;
  };
  std::optional<Candidate> candidate(uint64_t ino) const REQUIRES(mutex_);
  // Those that the caller may read, by their access.
  std::vector<Candidate> candidates(std::span<const uint64_t> inodes, const Asker& asker) const
      EXCLUDES(mutex_);
  std::optional<Found> look_at(Candidate candidate, const Asker& asker) EXCLUDES(mutex_);
  // Of these entries those of the model that have tokens and no block in its SimilarIndex.
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
  // The longest prefix, as far as the looks say. Candidates that were not looked at count as usable or, not
  // `hopeful`, as unusable, and are added to `unknown`, as many as fit.
  std::vector<PrefixTree::Piece> longest(const std::string& model, std::span<const uint32_t> tokens,
                                         const Asker& asker, bool hopeful, size_t most_unknown,
                                         Matching& matching) const EXCLUDES(mutex_);
  // The entry that this one follows, if that is still there.
  std::optional<uint64_t> parent_of(const Record& record) const REQUIRES(mutex_);
  // Of an entry with all that it follows, by what is said of each alone.
  using UseOf = std::function<PrefixTree::Use(uint64_t ino)>;
  PrefixTree::Use use_of_chain(uint64_t ino, const UseOf& use_of, const Asker& asker,
                               std::unordered_map<uint64_t, PrefixTree::Use>& known) const REQUIRES(mutex_);

  MemoryArena& arena_;
  Entries& entries_;
  std::atomic<uint64_t>& index_bytes_;  // as it was after the last change
  const std::function<void()> still_at_it_;
  const TellTimes tell_times_;
  EntryGroups groups_;
  // Of two readings of an entry the later one stays, because one is made at a time.
  FairMutex reading_mutex_ ACQUIRED_BEFORE(mutex_);
  mutable FairMutex mutex_;
  std::map<std::string, Model> models_ GUARDED_BY(mutex_);
  std::unordered_set<Model*> to_vacate_ GUARDED_BY(mutex_);  // those with `uncovered` places
  std::unordered_map<uint64_t, Record> records_ GUARDED_BY(mutex_);
  ByValue by_value_ GUARDED_BY(mutex_);
  OwnerNames owners_ GUARDED_BY(mutex_);
  std::atomic<uint64_t> indexed_entries_{0}, indexed_blocks_{0}, refused_{0};
  MissingEntries missing_;  // under mutex_, but for count()
  // What had no room is sought, shard after shard, once there is some for the least of it.
  IndexRoom room_ GUARDED_BY(mutex_);
  size_t sought_shard_ GUARDED_BY(mutex_) = EntryTable::kShards;  // the next; kShards: there is none
  mutable Mutex queue_mutex_;
  std::deque<uint64_t> queue_ GUARDED_BY(queue_mutex_);
  std::unordered_set<uint64_t> queued_
      GUARDED_BY(queue_mutex_);  // an inode waits once, however often it changes
  std::atomic<uint64_t> waiting_{0}, cut_short_{0};
};

}  // namespace kvcachefs
