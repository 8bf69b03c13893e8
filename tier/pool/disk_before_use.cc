#include "tier/pool/disk_before_use.h"

#include <cerrno>
#include <span>
#include <utility>

namespace kvcachefs {

void DiskBeforeUse::readable(DiskTier& tier, std::function<void()> end_threads) {
  std::vector<PromoteWaiter> waiting;
  {
    MutexLock lock(mutex_);
    tier_ = &tier;
    end_threads_ = std::move(end_threads);
    waiting.swap(waiting_);
  }
  let_look_again(std::move(waiting));
}

void DiskBeforeUse::withdraw() {
  std::function<void()> end_threads;
  {
    MutexLock lock(mutex_);
    withdrawn_ = true;
    tier_ = nullptr;
    end_threads = std::exchange(end_threads_, {});
  }
  if (end_threads) end_threads();
}

void DiskBeforeUse::end() {
  std::vector<PromoteWaiter> waiting;
  {
    MutexLock lock(mutex_);
    lasts_.store(false, std::memory_order_release);
    tier_ = nullptr;
    waiting.swap(waiting_);
  }
  let_look_again(std::move(waiting));
}

bool DiskBeforeUse::verify(uint64_t ino, PromoteWaiter& waiter) {
  MutexLock lock(mutex_);
  if (!lasts()) return false;
  if (tier_ == nullptr)
    waiting_.push_back(std::move(waiter));
  else
    (void)tier_->promoter.request(ino, Promoter::kOpenPriority, std::move(waiter));
  return true;
}

bool DiskBeforeUse::read(const CatalogContent& content, uint64_t offset, size_t size,
                         Promoter::ReadWaiter& waiter) {
  MutexLock lock(mutex_);
  if (tier_ == nullptr) return false;
  // A client that reads knows nothing of an end.
  tier_->promoter.read(content, offset, size,
                       [its = std::move(waiter)](Result<std::span<const std::byte>> bytes) mutable {
                         const bool is_closed = !bytes && bytes.error().code == ESHUTDOWN;
                         its(is_closed ? fail(EIO) : std::move(bytes));
                       });
  return true;
}

void DiskBeforeUse::hold(const CatalogContent& content) {
  MutexLock lock(mutex_);
  if (tier_ != nullptr) tier_->store->hold(content);
}

void DiskBeforeUse::let_go(const CatalogContent& content) {
  MutexLock lock(mutex_);
  if (tier_ != nullptr) tier_->store->let_go(content);
}

void DiskBeforeUse::let_look_again(std::vector<PromoteWaiter> waiting) {
  for (PromoteWaiter& waiter : waiting) waiter({});
}

}  // namespace kvcachefs
