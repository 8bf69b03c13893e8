// Entries: all entries of a pool, and with EntryContents the only code that changes what state an entry is in
// (tier/entries/entry.h): the verbs here whether it is stored, open, pinned or gone, those of contents()
// where its bytes are. Each verb is an event in an entry's life. It changes the entry, keeps the pool's sums
// true, tells Candidates, and then every EntryObserver. Any thread; the caller of a verb holds the entry's
// shard. Verbs never fail, unless they say so. A build with KVCACHEFS_CHECK_STATES stops after a verb that
// leaves an entry in an impossible state, and prints it.
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
#include "tier/entries/entry_contents.h"
#include "tier/entries/entry_observer.h"
#include "tier/entries/entry_sums.h"
#include "tier/entries/entry_table.h"
#include "tier/entries/shares.h"

namespace kvcachefs {

class Entries {
 public:
  using Shard = EntryTable::Shard;

  explicit Entries(std::string_view policy) : candidates_(policy) {}

  Shard& shard(uint64_t ino) { return table_.shards[ino % EntryTable::kShards]; }
  std::array<Shard, EntryTable::kShards>& shards() { return table_.shards; }
  // The observer stays until the Entries go. Events that are under way in other threads may pass it by.
  void observe(EntryObserver& observer);

  const EntrySums& sums() const { return sums_; }
  Shares& shares() { return shares_; }
  EntryContents& contents() { return contents_; }
  // Callers take the next candidate from it, ask whether there is a fresh one, and set the policy. What
  // changes an entry goes by a verb.
  Candidates& candidates() { return candidates_; }

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

  // --- what its users want ---
  // False: with it more than `pinned_max_bytes` would be pinned, and it is not.
  enum class Pin : uint8_t { kUsers, kLease };
  bool pinned(Entry& entry, uint64_t whole_bytes, uint64_t pinned_max_bytes, Pin pin = Pin::kUsers)
      EXCLUDES(pins_mutex_);
  void unpinned(Entry& entry, Pin pin = Pin::kUsers) EXCLUDES(pins_mutex_);
  // Its writer has given it this priority or, without one, said something else of it.
  void described(Entry& entry, std::optional<int> priority = std::nullopt);

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
    bool described = false;
    // kCandidate: only the disk has it. kOther: it is no regular file.
    Entry::Stage stage = Entry::Stage::kWritten;
  };
  // A file that is not open is published afterwards, by found_stored().
  void found(Entry& entry, const Found& facts);
  void found_stored(Entry& entry);

  // --- candidates for eviction ---
  // `busy_tries`: how often it was found in use since its last open, if that is another number now.
  void park(Entry& entry, std::optional<uint8_t> busy_tries = std::nullopt);
  void unpark(Entry& entry) { candidates_.unpark(entry); }

 private:
  class Change;  // tier/entries/entry_change.h
  friend EntryContents;

  template <class... Facts>
  void tell(const Entry& entry, void (EntryObserver::*event)(const Entry&, Facts...),
            std::type_identity_t<Facts>... facts) const {
    for (const auto& observer : observers_)
      if (EntryObserver* const its = observer.load(std::memory_order_acquire)) (its->*event)(entry, facts...);
  }
  void lost_its_pin(Entry& entry);

  EntryTable table_;
  Candidates candidates_;
  std::array<std::atomic<EntryObserver*>, 8> observers_{};
  EntrySums sums_;
  Shares shares_;
  EntryContents contents_{*this};
  Mutex pins_mutex_;  // held from the look at the sum of pinned bytes until a new pin is in it
};

inline Entries::FileBytes bytes_of(const struct stat& file) {
  return {.charged = allocated_bytes_of(file), .whole = rounded_up(size_of(file))};
}

}  // namespace kvcachefs
