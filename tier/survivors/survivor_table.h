// A table of records in the memory that outlives a serving process (tier/survivors/survivors.h). Because a
// process may be killed between any two instructions, storing a record's key makes the record true, after all
// its other fields are written; clearing the key makes it false. Each process keeps its own list of the free
// places. Any thread. Failure: ENFILE when the table is full.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"

namespace kvcachefs {

// The place of an inode, numbered as in fs/nodeid.h.
struct PoolInode {
  uint16_t pool = 0;
  uint64_t ino = 0;
  bool operator==(const PoolInode&) const = default;

  static constexpr int kInoBits = 48;
  static PoolInode from_key(uint64_t key) {
    return {static_cast<uint16_t>(key >> kInoBits), key & ((uint64_t{1} << kInoBits) - 1)};
  }
  uint64_t key() const { return uint64_t{pool} << kInoBits | ino; }
};

template <class Record>
class SurvivorTable {
 public:
  // The table has as many places as the daemon may have descriptors. A record, some tens of bytes, takes
  // memory once used.
  static constexpr int kPlaceBits = 20;
  static constexpr uint32_t kPlaces = 1 << kPlaceBits;

  struct Shared {
    std::atomic<uint32_t> used;  // how many places have ever been taken
    Record places[kPlaces];
  };

  explicit SurvivorTable(Shared* shared) : shared_(shared) {}  // none: without a supervisor
  explicit operator bool() const { return shared_ != nullptr; }

  // find_free() rebuilds the list of free places; places that an earlier process has filled stay taken.
  void find_free() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    free_.clear();
    for (uint32_t place = used(); place-- > 0;)
      if (shared_->places[place].key == 0) free_.push_back(place);
  }
  // take() answers a free place; the caller fills it in and publishes it by storing its key.
  Result<uint32_t> take() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (free_.empty()) return used() == kPlaces ? Result<uint32_t>(fail(ENFILE)) : shared_->used++;
    const uint32_t place = free_.back();
    free_.pop_back();
    return place;
  }
  void free(uint32_t place) EXCLUDES(mutex_) {
    shared_->places[place].key = 0;
    MutexLock lock(mutex_);
    free_.push_back(place);
  }
  Record& operator[](uint32_t place) { return shared_->places[place]; }
  // Visits the records that are true: visit(place, inode, record).
  template <class Visit>
  void for_each(Visit visit) const {
    for (uint32_t place = 0; place < used(); ++place) {
      const Record& record = shared_->places[place];
      if (const uint64_t key = record.key; key != 0) visit(place, PoolInode::from_key(key), record);
    }
  }

 private:
  uint32_t used() const { return shared_ != nullptr ? shared_->used.load() : 0; }

  Shared* const shared_;
  Mutex mutex_;
  std::vector<uint32_t> free_ GUARDED_BY(mutex_);
};

}  // namespace kvcachefs
