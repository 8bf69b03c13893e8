// The directories of a pool while its catalog is restored: each by its number there, and its times, which
// change with what is made in it. A directory that no client has changed has its times back after each name:
// so a successor can tell it from others. One thread. Failure: errno; times that cannot be set stay as they
// are.
#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "alloc/memory_arena.h"
#include "base/unique_fd.h"
#include "tier/catalog/catalog.h"
#include "tier/pool/restoring.h"

namespace kvcachefs {

class RestoredDirectories {
 public:
  explicit RestoredDirectories(const MemoryArena& arena) : arena_(arena) {}

  void add(const CatalogNode& node, sys::Handle handle);
  const std::unordered_map<uint64_t, sys::Handle>& all() const { return handles_; }  // by number
  // Stays open until the next call.
  Result<int> open(uint64_t id);
  // Gives all directories the times that the catalog has, but for those that clients have changed.
  void put_times(Restoring& restoring);
  // The restore tells of its own names before and after it makes them.
  void to_be_filled(std::span<const CatalogName> names);
  void filled();
  // Calls `visit` with each directory, and whether a client has changed its time.
  void visit(const std::function<void(int directory, bool is_changed)>& visit);

 private:
  struct Times {
    timespec accessed{};
    timespec modified{};
  };
  bool has_its_time(uint64_t id, int directory) const;

  const MemoryArena& arena_;
  std::unordered_map<uint64_t, sys::Handle> handles_;
  std::unordered_map<uint64_t, UniqueFd> open_;
  std::unordered_map<uint64_t, Times> times_;
  std::vector<uint64_t> to_be_put_back_;
};

}  // namespace kvcachefs
