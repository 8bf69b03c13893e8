// The AccessLog: the events of the entries of all pools, for its present readers. Without a reader an event
// costs one relaxed load, because a thread with an event asks is_read() first. All readers share one list of
// the latest events, and each has its own place in it, so a slow reader loses the oldest events and keeps no
// thread waiting. Any thread; add() may be called with an entry's shard held. Failure: EMFILE for one reader
// too many.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"
#include "tier/entries/entry.h"

namespace kvcachefs {

struct AccessRecord {
  enum class Event : uint8_t { kCreate, kOpen, kStore, kRename, kSpill, kEvict, kPromote, kDiscard, kRemove };
  static constexpr uint64_t kNotMeasured = UINT64_MAX;
  static constexpr uint32_t kNobody = UINT32_MAX;

  static AccessRecord of(Event event, uint16_t pool, const Entry& entry, uint64_t took_ns = kNotMeasured) {
    return {.event = event,
            .tier = entry.tier,
            .pool = pool,
            .ino = entry.policy.ino,
            .bytes = entry.memory.charged_bytes,
            .took_ns = took_ns};
  }

  Event event = Event::kOpen;
  Entry::Tier tier = Entry::Tier::kDirty;
  uint16_t pool = 0;
  uint32_t uid = kNobody;
  int32_t thread = 0;  // of the client; 0: none asked
  uint64_t ino = 0;
  uint64_t bytes = 0;
  uint64_t took_ns = kNotMeasured;
  uint64_t at_ns = 0;     // since 1970; add() sets it
  std::string name = {};  // of what has no name any more; otherwise the reader finds it
};

class AccessLog {
 public:
  static constexpr size_t kMostRecords = 1 << 16;             // 6 MB
  static constexpr size_t kMostNameBytes = size_t{16} << 20;  // of all records' names together
  static constexpr uint32_t kMostReaders = 8;

  bool is_read() const { return readers_.load(std::memory_order_relaxed) > 0; }
  void add(AccessRecord record) EXCLUDES(mutex_);

  // A Reader gets what happens from its begin on. The log outlives it. One thread at a time.
  class Reader {
   public:
    static Result<Reader> begin(AccessLog& log);
    Reader(Reader&& other) noexcept : log_(std::exchange(other.log_, nullptr)), next_(other.next_) {}
    Reader& operator=(Reader&&) = delete;
    ~Reader();

    struct Taken {
      uint64_t lost = 0;  // events before these that the log has no more
      std::vector<AccessRecord> records;
    };
    Taken take(size_t most);

   private:
    Reader(AccessLog* log, uint64_t next) : log_(log), next_(next) {}

    AccessLog* log_;
    uint64_t next_;
  };

 private:
  std::atomic<uint32_t> readers_{0};
  Mutex mutex_;
  std::deque<AccessRecord> records_ GUARDED_BY(mutex_);
  uint64_t first_ GUARDED_BY(mutex_) = 0;  // the number of the first of records_
  size_t name_bytes_ GUARDED_BY(mutex_) = 0;
};

// Work that is logged when it is done, with the time since its begin. Without a log, which no process reads
// then, nothing is logged.
class LoggedWork {
 public:
  explicit LoggedWork(AccessLog* log) : log_(log), begun_ns_(log != nullptr ? now_ns() : 0) {}
  bool is_logged() const { return log_ != nullptr; }
  void done(AccessRecord::Event event, uint16_t pool, const Entry& entry, std::string name = {}) const {
    if (log_ == nullptr) return;
    AccessRecord record = AccessRecord::of(event, pool, entry, now_ns() - begun_ns_);
    record.name = std::move(name);
    log_->add(std::move(record));
  }

 private:
  AccessLog* const log_;
  const uint64_t begun_ns_;
};

}  // namespace kvcachefs
