// The directories of a pool while its catalog is restored: each by its number there, and its times, which
// change with what is made in it. One thread. Failure: errno; times that cannot be set stay as they are.
#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "alloc/memory_arena.h"
#include "tier/catalog/catalog.h"

namespace kvcachefs {

class RestoredDirectories {
 public:
  explicit RestoredDirectories(const MemoryArena& arena) : arena_(arena) {}

  void add(const CatalogNode& node, sys::Handle handle);
  // Stays open until the next call.
  Result<int> open(uint64_t id);
  // From now on clients make names, too: the restore tells of its own before and after it makes them.
  void are_served();
  void to_be_filled(std::span<const CatalogName> names);
  void filled(std::span<const CatalogName> names);
  // Gives the directories the times that the catalog has, but for those that a client has changed; calls
  // `done` with each that has got them.
  void put_times(const std::function<void(int directory)>& done);

 private:
  struct Times {
    sys::Handle handle;
    uint64_t id = 0;
    timespec accessed{};
    timespec modified{};
  };
  bool was_changed(uint64_t id, int directory);

  const MemoryArena& arena_;
  std::unordered_map<uint64_t, sys::Handle> handles_;
  std::unordered_map<uint64_t, UniqueFd> open_;
  std::vector<Times> times_;
  std::optional<timespec> served_since_;
  std::unordered_map<uint64_t, timespec> filled_;  // by number: its time since the restore made a name there
  std::unordered_set<uint64_t> changed_;           // by a client
};

}  // namespace kvcachefs
