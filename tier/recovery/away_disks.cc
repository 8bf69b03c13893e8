#include "tier/recovery/away_disks.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "tier/pool/open_disk_tier.h"

namespace kvcachefs {
namespace {

constexpr unsigned kMostDoublings = 8;
// The pause between looks once opens no longer wait for the disk.
constexpr std::chrono::milliseconds kUsualPause{2000};

uint64_t in_ns(std::chrono::milliseconds time) {
  return static_cast<uint64_t>(std::chrono::nanoseconds(time).count());
}

}  // namespace

AwayDisks::AwayDisks(Pools& pools, unsigned vain)
    : pools_(pools),
      pause_(std::min(kFirstPause * (1 << std::min(vain, kMostDoublings)), kLongestPause)),
      next_look_ns_(now_ns() + in_ns(pause_)),
      try_all_ns_(now_ns() + in_ns(kLongestPause)) {}

bool AwayDisks::step() {
  bool any = false;
  const bool due = now_ns() >= next_look_ns_;
  for (const auto& pool : pools_.list()) {
    AwayDisk* const away = pool->disk().away();
    if (away == nullptr) continue;
    any = true;
    away->step();
    if (!due || found()) continue;
    if (!away->may_be_waited_for()) pause_ = std::max(pause_, kUsualPause);
    if (now_ns() >= try_all_ns_) try_catalog_again(pool->settings().options());
    if (look(*pool)) found_.store(true, std::memory_order_release);
  }
  if (due) next_look_ns_ = now_ns() + in_ns(pause_);
  return any;
}

bool AwayDisks::look(Pool& pool) {
  auto there = probe_disk_tier(pool.settings().options());
  if (there) {
    log_info("pool {}: its disk can be had again", pool.name());
    return true;
  }
  std::string& reason = reasons_[pool.name()];
  if (std::exchange(reason, there.error().message) != reason)
    log_warning("pool {}: still without its disk: {}", pool.name(), reason);
  return false;
}

}  // namespace kvcachefs
