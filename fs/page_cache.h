// A PageCache decides, in daemon I/O, which opens bypass the kernel's page cache (FOPEN_DIRECT_IO). Data that
// bypasses it is copied once less each way, and is not in memory twice. bench/README.md has the figures.
//
//   - From Linux 6.6 on all opens bypass it: the kernel maps such files too, and keeps mappings, reads and
//     writes coherent.
//   - Before, a shared mapping of such a file is ENODEV, and a write that bypasses the cache does not drop
//     the pages that are cached. So only a file that an O_WRONLY open has created bypasses the cache, until
//     its last close (a store, before its rename): no page of it can be cached by then. From its next open on
//     the file is cached as a whole, writes included, and the cache is always right. With -o no_page_cache
//     all opens bypass the cache there too, and shared mappings are given up.
//
// Any thread. Never fails.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "base/mutex.h"

namespace kvcachefs {

class PageCache {
 public:
  // The call comes before the first request other than INIT is answered.
  void decide(bool never) { never_ = never; }

  // A file is about to be opened by the request that has created it, for writing and not for reading.
  void stored(uint64_t nodeid) EXCLUDES(mutex_) {
    if (never_) return;
    MutexLock lock(mutex_);
    first_opens_[nodeid] = 0;
  }
  // True if an open of the file bypasses the cache; such an open is counted until closed().
  bool opened(uint64_t nodeid) EXCLUDES(mutex_) {
    if (never_) return true;
    MutexLock lock(mutex_);
    const auto found = first_opens_.find(nodeid);
    if (found == first_opens_.end()) return false;
    ++found->second;
    return true;
  }
  // The result is the answer that opened() gave, and nothing is counted.
  bool bypasses(uint64_t nodeid) EXCLUDES(mutex_) {
    if (never_) return true;
    MutexLock lock(mutex_);
    return first_opens_.contains(nodeid);
  }
  void closed(uint64_t nodeid) EXCLUDES(mutex_) {
    if (never_) return;
    MutexLock lock(mutex_);
    const auto found = first_opens_.find(nodeid);
    if (found != first_opens_.end() && (found->second == 0 || --found->second == 0))
      first_opens_.erase(found);
  }

 private:
  bool never_ = false;
  Mutex mutex_;
  std::unordered_map<uint64_t, uint32_t> first_opens_ GUARDED_BY(mutex_);
};

}  // namespace kvcachefs
