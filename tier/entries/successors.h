// Successors learns which entry is opened after which, from the order in which each client opens them, so
// that the follower can be promoted before it is asked for. An entry has one follower at most; each open of
// another one instead weakens the link, until that one replaces it. All lies in fixed memory (3 MiB), where
// the link that was not used for longest makes room. Thread safety: any thread; one lock inside, held for a
// fraction of a microsecond. Failure: none. The answers are guesses: they may name entries that are in memory
// or gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/mutex.h"

namespace kvcachefs {

class Successors {
 public:
  static constexpr size_t kDefaultLinks = 64 * 1024;
  static constexpr size_t kDefaultClients = 4 * 1024;
  // Opens further apart than this are hardly related: a prefill reads its blocks within milliseconds.
  static constexpr uint64_t kCloseMs = 2000;
  static constexpr size_t kDepth = 4;

  // Both numbers are multiples of 4.
  explicit Successors(size_t links = kDefaultLinks, size_t clients = kDefaultClients);

  // Learns that this client opened `ino` (never 0) now.
  void opened(uint64_t client, uint64_t ino, uint64_t now_ms) EXCLUDES(mutex_);
  std::vector<uint64_t> after(uint64_t ino) EXCLUDES(mutex_);  // the likely next entries, the nearest first
  // Forgets the entry's follower, and that the entry followed its latest predecessor.
  void removed(uint64_t ino) EXCLUDES(mutex_);

 private:
  struct Link {
    uint64_t ino = 0;          // 0: none
    uint64_t follower = 0;     // 0: unknown
    uint64_t predecessor = 0;  // the latest entry that this one followed; 0: unknown
    uint64_t used = 0;         // value of uses_ at its last use
    uint8_t confidence = 0;
  };
  struct Client {
    uint64_t client = 0;
    uint64_t ino = 0;  // the entry it opened last; 0: an unused slot
    uint64_t opened_ms = 0;
    uint64_t used = 0;
  };

  Link* find_link(uint64_t ino) REQUIRES(mutex_);
  Link& link_of(uint64_t ino) REQUIRES(mutex_);
  Client& client_of(uint64_t client) REQUIRES(mutex_);
  void learn(uint64_t before, uint64_t ino) REQUIRES(mutex_);

  Mutex mutex_;
  std::vector<Link> links_ GUARDED_BY(mutex_);
  std::vector<Client> clients_ GUARDED_BY(mutex_);
  uint64_t uses_ GUARDED_BY(mutex_) = 0;
};

}  // namespace kvcachefs
