// Listings keeps, for each open directory, the names that were read and not listed yet, so that a large
// directory is not read anew for each buffer of a client. What is not kept any more is read again, as after a
// takeover: a listing is right without it. Any thread; never fails.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>

#include "base/clock.h"
#include "base/mutex.h"
#include "fs/listed_names.h"

namespace kvcachefs {

class Listings {
 public:
  using Names = std::shared_ptr<const ListedNames>;

  explicit Listings(size_t limit_bytes = 128 << 20) : limit_bytes_(limit_bytes) {}

  // The result is a handle that no process of this host has given since it booted, and never 0.
  uint64_t open() { return next_handle_.fetch_add(1, std::memory_order_relaxed); }
  // The names that are kept for the handle, if the place is among them; nullptr otherwise.
  Names find(uint64_t handle, uint64_t place) EXCLUDES(mutex_);
  // Replaces what was kept for the handle; keeps nothing for 0, which a former version gave to all. The least
  // recently used names leave for it.
  void keep(uint64_t handle, Names names) EXCLUDES(mutex_);
  void drop(uint64_t handle) EXCLUDES(mutex_);
  size_t kept_bytes() const EXCLUDES(mutex_);

 private:
  struct Kept {
    uint64_t handle = 0;
    Names names;
  };
  static size_t bytes_of(const Kept& kept);
  void erase(std::list<Kept>::iterator kept) REQUIRES(mutex_);

  const size_t limit_bytes_;
  // A successor begins later, by more nanoseconds than directories were opened.
  std::atomic<uint64_t> next_handle_{now_ns()};
  mutable Mutex mutex_;
  size_t bytes_ GUARDED_BY(mutex_) = 0;
  std::list<Kept> kept_ GUARDED_BY(mutex_);  // the most recently used one first
  std::unordered_map<uint64_t, std::list<Kept>::iterator> by_handle_ GUARDED_BY(mutex_);
};

}  // namespace kvcachefs
