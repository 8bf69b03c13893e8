// The store of a small disk tier, on a disk in memory, for the unit tests of the tier's parts. One thread.
// The constructor and put() throw std::runtime_error if they fail.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "tests/support/disks.h"
#include "tests/support/faulty_disk.h"
#include "tier/disk/spill_store.h"

namespace kvcachefs::test {

class SmallStore {
 public:
  static constexpr uint64_t kUnitBytes = 8192;
  static constexpr auto kNow = std::chrono::milliseconds(0);

  explicit SmallStore(uint64_t units = 512) {
    auto disk = std::make_unique<FaultyDisk>(FaultyDiskOptions{.size_bytes = units * kUnitBytes});
    disk_ = disk.get();
    auto catalog = Catalog::open(directory_ / "catalog");
    if (!catalog) throw std::runtime_error(catalog.error().message);
    store_ = std::make_unique<SpillStore>(std::move(disk), std::move(*catalog), kUnitBytes, counters_);
  }
  SpillStore& operator*() { return *store_; }
  SpillStore* operator->() { return store_.get(); }
  FaultyDisk& disk() { return *disk_; }
  std::unique_ptr<BlockChannel> channel() { return std::move(*disk_->channel(8)); }

  // put() writes a content to the disk, in extents of one unit in descending order. What fills its last unit
  // up is not zeros.
  CatalogContent put(const std::string& bytes) {
    CatalogContent content{.size_bytes = bytes.size(),
                           .checksum = checksum_of(std::as_bytes(std::span(bytes))),
                           .version = 1,
                           .extents = {}};
    auto space = store_->allocate(bytes.size());
    if (!space) throw std::runtime_error("the disk is full");
    for (const Extent& extent : *space)
      for (uint64_t unit = extent.start; unit < extent.end(); ++unit) content.extents.push_back({unit, 1});
    std::ranges::reverse(content.extents);
    AlignedMemory memory(kUnitBytes);
    for (size_t at = 0; at < bytes.size(); at += kUnitBytes) {
      std::ranges::fill(memory.all(), std::byte{0xa5});
      std::ranges::copy(std::as_bytes(std::span(bytes)).subspan(at, std::min(kUnitBytes, bytes.size() - at)),
                        memory.all().begin());
      if (write_blocks(*disk_, content.extents[at / kUnitBytes].start * kUnitBytes, memory.all()) != 0)
        throw std::runtime_error("the disk cannot be written");
    }
    return content;
  }
  // The bytes that the disk has of a content; those of a hole are zeros.
  std::string bytes_of(const CatalogContent& content) const {
    std::string bytes;
    for (const Extent& extent : content.extents) {
      std::string piece(extent.count * kUnitBytes, '\0');
      if (extent.start != 0) disk_->peek(extent.start * kUnitBytes, std::as_writable_bytes(std::span(piece)));
      bytes += piece;
    }
    bytes.resize(content.size_bytes);
    return bytes;
  }

 private:
  DiskDirectory directory_;
  PoolCounters counters_;
  FaultyDisk* disk_ = nullptr;
  std::unique_ptr<SpillStore> store_;
};

}  // namespace kvcachefs::test
