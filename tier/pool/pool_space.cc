// Room for what clients make in a pool, and what the pool says where it has none.
#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/clock.h"
#include "base/log_limit.h"
#include "base/size.h"
#include "tier/pool/pool.h"

namespace kvcachefs {
namespace {

constexpr int kLinkAttempts = 40;

}  // namespace

int Pool::make_way(int fd, int caller_thread) {
  const uint64_t expected = capacity_.expected_entry_bytes();
  int node = 0;
  if (surroundings_.topology->node_count() > 1) {
    const int near = surroundings_.topology->node_of_thread(caller_thread);
    node = surroundings_.topology->node_with_room(near, std::max(expected, Capacity::kGrowthBytes));
    // Placement is best effort: a file that is not placed lies where its writer runs.
    (void)surroundings_.topology->place_file(fd, node);
  }
  // The result does not matter: after a failure a write may still find memory that was promised and is not
  // used.
  if (expected > 0 && capacity_.promises_expected_size() && entries_.evictable_bytes() > 0)
    (void)capacity_.wait_for_room(expected);
  return node;
}

Result<void> Pool::make_symlink(const char* target, int directory, const char* name) {
  constexpr uint64_t kBlockBytes = 4096;
  for (int attempt = 0;; ++attempt) {
    auto made = sys::symlink_at(target, directory, name);
    if (made || made.error().code != ENOSPC) return made;
    if (!capacity_.wait_for_room(kBlockBytes + Capacity::kCountingSlackBytes) || attempt == kLinkAttempts) {
      insight_.report_full(true);
      return made;
    }
  }
}

}  // namespace kvcachefs
