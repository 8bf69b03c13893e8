// What a process that died has written down of the opens of a pool's files: how often each is open, and the
// backing id that its opens rest on. begin() comes first; any thread takes what is known of a file when it
// finds that file. Never fails.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "tier/entries/entries.h"
#include "tier/survivors/survivors.h"

namespace kvcachefs {

class KnownOpens {
 public:
  struct Of {
    Entries::Found facts;          // the counts
    uint32_t without_backing = 0;  // of them, opens over a connection that has ended
    int32_t backing = -1;

    bool lacks_backing() const {
      return backing < 0 && facts.open_count > facts.direct_count + without_backing;
    }
  };

  void begin(Survivors& survivors, uint16_t pool) EXCLUDES(mutex_);
  Of take(uint64_t ino) EXCLUDES(mutex_);
  bool is_open(uint64_t ino) EXCLUDES(mutex_);  // what was not taken yet
  // What was not taken is of files that are gone: a client that has the file open goes on without it. Answers
  // the backing ids.
  std::vector<int32_t> end() EXCLUDES(mutex_);
  // The opens for writing over a connection that has ended.
  std::vector<OpenHandle>& lost_writers() { return lost_writers_; }

 private:
  Mutex mutex_;
  std::unordered_map<uint64_t, Of> opens_ GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, int32_t> backings_ GUARDED_BY(mutex_);
  std::vector<OpenHandle> lost_writers_;  // written by begin()
};

}  // namespace kvcachefs
