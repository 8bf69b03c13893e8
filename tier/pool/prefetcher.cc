#include "tier/pool/prefetcher.h"

#include <algorithm>

#include "base/clock.h"
#include "base/sys_beneath.h"

namespace kvcachefs {

constexpr int kAheadPriority = -1000;  // below all ordered prefetches

void Prefetcher::opened(const Entry& entry, bool, uint64_t client) {
  // Threads that meet here may pass the limit by a few.
  if (entry.disk.guessed && credit_ < kMostCredit) credit_ += kGainOfOpen;
  DiskTier* const tier = disk_.tier();
  if (tier != nullptr && auto_ && client != 0)
    tier->successors.opened(client, entry.policy.ino, now_coarse_ms());
}

bool Prefetcher::may_guess() {
  if (credit_.fetch_sub(1) > 0) return true;
  ++credit_;
  if (++not_followed_ % kGuessesPerTrial == 0) ++credit_;
  return false;
}

void Prefetcher::open_ahead(uint64_t ino, uint64_t client) {
  DiskTier* const tier = disk_.tier();
  if (tier == nullptr || !auto_ || client == 0) return;
  for (const uint64_t next : tier->successors.after(ino)) {
    const auto is_wanted = [&] {
      const LockedEntry entry(entries_.shard(next), next);
      const bool is_cold = entry != nullptr && !entry->removed && entry->tier == Entry::Tier::kCold &&
                           !entry->disk.promoting();
      // A guess whose promotion found no memory is made again, and counts once.
      if (!is_cold || (!entry->disk.guessed && !may_guess())) return false;
      entry->disk.guessed = true;
      return true;
    };
    if (is_wanted()) (void)tier->promoter.request(next, kAheadPriority);
  }
}

Result<void> Prefetcher::prefetch(std::span<const PrefetchOrder> orders) {
  auto tier = disk_.needed();
  if (!tier) return pass(tier);
  enum class Place : uint8_t { kNone, kMemory, kDisk };
  const auto find = [this](uint64_t ino) {
    const LockedEntry entry(entries_.shard(ino), ino);
    if (entry == nullptr || !entry->is_file() || entry->removed) return Place::kNone;
    if (entry->tier == Entry::Tier::kCold) return Place::kDisk;
    entries_.contents().found_in_memory(*entry);
    return Place::kMemory;
  };
  std::vector<Promoter::Order> cold;
  std::vector<uint64_t> found;
  for (const PrefetchOrder& order : orders) {
    // O_NOFOLLOW: a link on the way could lead to a place where a server thread waits for itself.
    auto named = sys::open_beneath(arena_.tree_fd(), order.name.c_str(), O_PATH | O_NOFOLLOW);
    auto handle = named ? sys::handle_of(named->get()) : pass(named);
    // A user who gives orders may list the entries (.pool/entries), even in directories that the user may not
    // search. An order tells nothing of other files there.
    const Place place = handle ? find(handle->ino) : Place::kNone;
    if (place != Place::kDisk) {
      ++(place == Place::kMemory ? ordered_->done : ordered_->failed);
      if (place == Place::kMemory) found.push_back(handle->ino);
      continue;
    }
    ++ordered_->queued;
    auto ended = [counters = ordered_](const PromoteOutcome& outcome) {
      --counters->queued;
      if (outcome.kind == PromoteOutcome::Kind::kPromoted)
        ++counters->done;
      else
        ++(outcome.kind == PromoteOutcome::Kind::kFailed ? counters->failed : counters->dropped);
    };
    cold.push_back({handle->ino, std::min(order.priority, Promoter::kOpenPriority - 1), std::move(ended)});
  }
  (*tier)->promoter.order(std::move(cold), found);
  return {};
}

PrefetchProgress Prefetcher::progress() const {
  return {.queued = ordered_->queued,
          .done = ordered_->done,
          .failed = ordered_->failed,
          .dropped = ordered_->dropped,
          .bytes = counters_.promoted_bytes};
}

}  // namespace kvcachefs
