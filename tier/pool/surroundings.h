// What a pool and its parts use of the process around them. A plain value; what it points to outlives the
// pool.
#pragma once

#include <functional>
#include <string>

#include "alloc/numa_topology.h"
#include "base/result.h"
#include "tier/children.h"
#include "tier/entries/access_log.h"
#include "tier/pool/kernel_side.h"
#include "tier/room.h"
#include "tier/survivors/survivors.h"

namespace kvcachefs {

struct PoolSurroundings {
  std::string arena_path = {};
  const NumaTopology* topology = nullptr;
  BackingStore* backing_store = nullptr;
  DiscardListener* listener = nullptr;
  Wakeup* evictor = nullptr;
  unsigned cores = 1;
  // For what a takeover looks at.
  OnSeveralThreads on_several_threads = [](const auto& work) { work(); };
  Survivors* survivors = nullptr;  // none: nothing outlives this process
  // Called when the pool's options have changed, to write them down for a successor.
  std::function<Result<void>()> options_changed = [] { return Result<void>(); };

  AccessLog* access_log = nullptr;  // null: no process can read one

  // The log if anybody reads it at present.
  AccessLog* read_log() const {
    return access_log != nullptr && access_log->is_read() ? access_log : nullptr;
  }
  bool is_supervised() const { return survivors != nullptr && survivors->supervised(); }
  // A thread that works long for one request says so: it does not hang.
  void still_at_it() const {
    if (survivors != nullptr) survivors->requests().still_at_it();
  }
};

}  // namespace kvcachefs
