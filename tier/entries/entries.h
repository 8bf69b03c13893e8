// Entries: all entries of a pool, and the only code that changes what state an entry is in: whether it is
// stored, open, pinned or gone, and where its bytes are (tier/entries/entry.h). Each verb below is an event
// in an entry's life. It changes the entry, keeps the pool's sums true, tells Candidates, and then every
// EntryObserver. Any thread; the caller of a verb holds the entry's shard. Verbs never fail, unless they say
// so. A build with KVCACHEFS_CHECK_STATES stops after a verb that leaves an entry in an impossible state, and
// prints it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

#include "base/mutex.h"
#include "tier/blocks.h"
#include "tier/entries/candidates.h"
#include "tier/entries/entry_observer.h"
#include "tier/entries/entry_table.h"

namespace kvcachefs {

class Entries {
 public:
  using Shard = EntryTable::Shard;

  explicit Entries(std::string_view policy) : candidates_(policy) {}

  Shard& shard(uint64_t ino) { return table_.shards[ino % EntryTable::kShards]; }
  std::array<Shard, EntryTable::kShards>& shards() { return table_.shards; }
  // The observer stays until the Entries go. Events that are under way in other threads may pass it by.
  void observe(EntryObserver& observer);

  // --- sums over the entries; each is exact by itself ---
  uint64_t files() const { return files_; }
  uint64_t open_files() const { return open_files_; }
  uint64_t evictable_bytes() const { return evictable_bytes_; }
  uint64_t pinned_bytes() const { return pinned_bytes_; }
  uint64_t stored_entries(Entry::Tier tier) const { return tier_entries_[static_cast<size_t>(tier)]; }
  uint64_t stored_bytes(Entry::Tier tier) const { return tier_bytes_[static_cast<size_t>(tier)]; }

  // --- a client's opens and closes ---
  // A client has made the file. One that is not open (mknod) is stored at once.
  void created(Entry& entry, bool is_named, bool is_open, bool is_writer);
  void opened(Entry& entry, bool writer, bool from_disk, uint64_t client = 0);
  // True: it was the entry's last writer, and the caller says that it is stored before its close ends.
  bool writer_closed(Entry& entry);
  void flushed(Entry& entry);                 // a writer has closed a descriptor
  bool closed(Entry& entry, bool from_disk);  // true: it was the last open
  struct FileBytes {
    uint64_t charged = 0;  // memory that the file takes
    uint64_t whole = 0;    // its size in whole pages
  };
  // The last writer has closed the entry. False: it was pinned, and is not any more, because more than
  // `pinned_max_bytes` would be pinned.
  bool stored(Entry& entry, FileBytes bytes, uint64_t pinned_max_bytes) EXCLUDES(pins_mutex_);
  // The same for a file that was cut or made longer without being open.
  bool resized(Entry& entry, FileBytes bytes, uint64_t pinned_max_bytes) EXCLUDES(pins_mutex_);
  void published(Entry& entry);
  void renamed(Entry& entry, uint32_t name_hash);  // a stored entry is published by it
  // A nameless file got its first name. False: as from stored().
  bool named(Entry& entry, uint64_t pinned_max_bytes) EXCLUDES(pins_mutex_);
  // The entry's last name is gone. The caller erases the entry if the kernel does not know it and no process
  // has it open.
  void removed(Entry& entry, RemovalReason reason);

  // --- where its bytes are ---
  void charged(Entry& entry, uint64_t bytes);  // its file takes this much memory now
  void shrunk(const Entry& entry) const { tell(entry, &EntryObserver::shrunk); }  // by the daemon itself
  void dirtied(Entry& entry);               // a process may write it from now on: no copy is true any more
  void cut(Entry& entry, bool to_nothing);  // and dirtied; the epoch of its content changes with that
  // One that the spiller is not asked for any more may be a victim again.
  void spill_asked(Entry& entry, DiskFacts::Spill asked);
  void moves(Entry& entry, DiskFacts::Move move);
  void spilled(Entry& entry);  // the disk has what the memory has
  void evicted(Entry& entry);  // only the disk has it
  // Memory has it again. It cannot be evicted before waiters_told().
  void promoted(Entry& entry, bool asked_for);
  void waiters_told(Entry& entry);

  // --- what its users want ---
  // False: with it more than `pinned_max_bytes` would be pinned, and it is not.
  bool pinned(Entry& entry, uint64_t whole_bytes, uint64_t pinned_max_bytes) EXCLUDES(pins_mutex_);
  void unpinned(Entry& entry) EXCLUDES(pins_mutex_);
  void reprioritised(Entry& entry, int priority) { candidates_.reprioritised(entry, priority); }

  // --- entries that another process has left, or that only the disk has ---
  struct Found {
    uint32_t open_count = 0;
    uint32_t writer_count = 0;
    uint32_t direct_count = 0;
    uint64_t charged_bytes = 0;
    uint64_t whole_bytes = 0;  // see FileBytes
    uint64_t stored_ms = 0;
    bool cold = false;
    bool pinned = false;
    bool named = true;
    // kCandidate: only the disk has it. kOther: it is no regular file.
    Entry::Stage stage = Entry::Stage::kWritten;
  };
  // A file that is not open is published afterwards, by found_stored().
  void found(Entry& entry, const Found& facts);
  void found_stored(Entry& entry);
  void found_version(Entry& entry, uint32_t version, uint32_t first_version);  // before found_copy()
  // What the disk has of a found file: it is clean, or cold with these bytes.
  void found_copy(Entry& entry, std::optional<uint64_t> cold_bytes);

  // --- candidates for eviction ---
  // `busy_tries`: how often it was found in use since its last open, if that is another number now.
  void park(Entry& entry, std::optional<uint8_t> busy_tries = std::nullopt);
  void unpark(Entry& entry) { candidates_.unpark(entry); }
  std::optional<Candidates::Victim> next_victim(bool even_fresh) {
    return candidates_.next_victim(even_fresh);
  }
  std::optional<uint64_t> next_cold() { return candidates_.next_cold(); }
  std::optional<uint64_t> next_grown(uint64_t now_ms) { return candidates_.next_grown(now_ms); }
  bool has_fresh() const { return candidates_.has_fresh(); }
  void set_policy(std::string_view name) { candidates_.set_policy(name); }

 private:
  class Change;

  template <class... Facts>
  void tell(const Entry& entry, void (EntryObserver::*event)(const Entry&, Facts...),
            std::type_identity_t<Facts>... facts) const {
    for (const auto& observer : observers_)
      if (EntryObserver* const its = observer.load(std::memory_order_acquire)) (its->*event)(entry, facts...);
  }
  void lost_its_pin(Entry& entry);
  void unpark_if_evictable(Entry& entry);

  EntryTable table_;
  Candidates candidates_;
  std::array<std::atomic<EntryObserver*>, 6> observers_{};
  std::atomic<uint64_t> files_{0};
  std::atomic<uint64_t> open_files_{0};
  std::atomic<uint64_t> evictable_bytes_{0};
  std::atomic<uint64_t> pinned_bytes_{0};
  std::array<std::atomic<uint64_t>, 3> tier_entries_{};
  std::array<std::atomic<uint64_t>, 3> tier_bytes_{};
  Mutex pins_mutex_;  // held from the look at pinned_bytes_ until a new pin is in it
};

inline Entries::FileBytes bytes_of(const struct stat& file) {
  return {.charged = allocated_bytes_of(file), .whole = rounded_up(size_of(file))};
}

}  // namespace kvcachefs
