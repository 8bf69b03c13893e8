// The prefetcher asks for cold entries before clients do: by order, and where one client's opens have
// followed one another before. Such guesses stop where clients do not open what was guessed, but for a few
// that find out whether the order comes again. Any thread, with no shard held but for opened(). Failure: as
// PoolDisk::needed(); what cannot be prefetched is counted.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "tier/disk/spill_orders.h"
#include "tier/pool/pool_disk.h"

namespace kvcachefs {

class Prefetcher : public EntryObserver, DiskPart {
 public:
  explicit Prefetcher(const DiskPart& part) : DiskPart(part) {}

  void opened(const Entry& entry, bool writer, uint64_t client) override;  // learns what follows what

  void set_auto(bool on) {
    auto_ = on;
    credit_ = kFirstCredit;
  }
  // The client has opened the inode: what it opened next the last time is asked for.
  void open_ahead(uint64_t ino, uint64_t client);
  Result<void> prefetch(std::span<const PrefetchOrder> orders);
  PrefetchProgress progress() const;

 private:
  struct Ordered {
    std::atomic<uint64_t> queued{0}, done{0}, failed{0}, dropped{0};
  };

  // A guess costs one credit, and the open of a guessed entry earns kGainOfOpen, so that guesses go on where
  // half of them come true. When no credit is left, every kGuessesPerTrial guesses that are not followed earn
  // one. By chance alone fewer come true than half, unless most entries are in memory anyway.
  static constexpr int kFirstCredit = 16;
  static constexpr int kMostCredit = 64;
  static constexpr int kGainOfOpen = 2;
  static constexpr uint64_t kGuessesPerTrial = 256;

  bool may_guess();

  std::atomic<bool> auto_{true};
  std::atomic<int> credit_{kFirstCredit};
  std::atomic<uint64_t> not_followed_{0};
  const std::shared_ptr<Ordered> ordered_ = std::make_shared<Ordered>();
};

}  // namespace kvcachefs
