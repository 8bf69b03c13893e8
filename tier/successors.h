// Which entry is opened after which: learned from the order in which each client opens them, for the follower
// to be promoted before it is asked for. An entry has one follower at most; that another comes instead
// weakens the link until it is replaced. All in fixed memory (3 MiB); what was not used for longest makes
// room. Thread safety: any thread; one lock inside, held for a fraction of a microsecond. Failure: none. The
// answers are guesses: they may name entries that are in memory already or gone.
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
  // Opens further apart have little to do with each other: a prefill reads its blocks within milliseconds.
  static constexpr uint64_t kCloseMs = 2000;
  static constexpr size_t kDepth = 4;

  // Multiples of 4.
  explicit Successors(size_t links = kDefaultLinks, size_t clients = kDefaultClients);

  // Learns that this client opened `ino` (never 0) now; answers what is likely to come next, the nearest
  // first.
  std::vector<uint64_t> opened(uint64_t client, uint64_t ino, uint64_t now_ms) EXCLUDES(mutex_);
  // Forgets what followed it, and that it was the last one's follower.
  void removed(uint64_t ino) EXCLUDES(mutex_);

 private:
  struct Link {
    uint64_t ino = 0;          // 0: none
    uint64_t follower = 0;     // 0: not known
    uint64_t predecessor = 0;  // the last one that this one followed; 0: not known
    uint64_t used = 0;         // number of the use
    uint8_t confidence = 0;
  };
  struct Client {
    uint64_t client = 0;
    uint64_t ino = 0;  // opened last; 0: no client
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
