// The prefetcher asks for cold entries before clients do: by order, and where one client's opens have
// followed one another before. Any thread, with no shard held but for opened(). Failure: as
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

  void set_auto(bool on) { auto_ = on; }
  // The client has opened the inode: what it opened next the last time is asked for.
  void open_ahead(uint64_t ino, uint64_t client);
  Result<void> prefetch(std::span<const PrefetchOrder> orders);
  PrefetchProgress progress() const;

 private:
  struct Ordered {
    std::atomic<uint64_t> queued{0}, done{0}, failed{0}, dropped{0};
  };

  std::atomic<bool> auto_{true};
  const std::shared_ptr<Ordered> ordered_ = std::make_shared<Ordered>();
};

}  // namespace kvcachefs
