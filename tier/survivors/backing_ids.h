// The backing ids that the kernel holds for the serving process, for its successor. Any thread. Failure:
// ENFILE when the table is full. Without a supervisor nothing is kept and nothing fails.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <unordered_map>

#include "base/mutex.h"
#include "base/result.h"
#include "tier/survivors/survivor_table.h"

namespace kvcachefs {

struct HeldBacking {
  PoolInode inode;
  int32_t id = -1;
};

class BackingIds {
 public:
  struct Record {
    std::atomic<uint64_t> key;
    int32_t id;
    std::atomic<uint32_t> closing;
  };
  struct Shared {
    std::atomic<int32_t> highest;
    SurvivorTable<Record>::Shared records;
  };

  explicit BackingIds(Shared* shared)  // none: without a supervisor
      : shared_(shared), records_(shared != nullptr ? &shared->records : nullptr) {}
  void begin_generation() EXCLUDES(mutex_);

  Result<void> held(const HeldBacking& backing) EXCLUDES(mutex_);
  void giving_back(int32_t id) EXCLUDES(mutex_);  // the id is about to be closed
  void given_back(int32_t id) EXCLUDES(mutex_);
  // `closing`: the id is about to be closed, or is closed already.
  void for_each(const std::function<void(const HeldBacking&, bool closing)>& visit);
  // The connection has ended, and its ids are closed. No process serves meanwhile.
  void connection_ended();
  int32_t highest() const { return shared_ != nullptr ? shared_->highest.load() : 0; }

 private:
  Shared* const shared_;
  SurvivorTable<Record> records_;
  Mutex mutex_;
  std::unordered_map<int32_t, uint32_t> place_of_ GUARDED_BY(mutex_);
};

}  // namespace kvcachefs
