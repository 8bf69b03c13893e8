#include "tier/pool/disk_requests.h"

#include <fmt/format.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "base/progress.h"
#include "tier/catalog/content_layout.h"
#include "tier/children.h"

namespace kvcachefs {
namespace {

// Calls the waiter when the last of several outcomes has come, with the first error among them.
class Together {
 public:
  explicit Together(Waiter waiter) : waiter_(std::move(waiter)) {}
  ~Together() { waiter_(std::move(outcome_)); }
  void ended(Result<void> outcome) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (outcome_ && !outcome) outcome_ = std::move(outcome);
  }

 private:
  Waiter waiter_;
  Mutex mutex_;
  Result<void> outcome_;
};

}  // namespace

void DiskRequests::promote(uint64_t ino, PromoteWaiter waiter, Room::Whose whose, uint64_t patience_ends_ms) {
  if (disk_.away() != nullptr) return disk_.away()->wait(std::move(waiter));
  if (disk_.tier() == nullptr && disk_.before_use().verify(ino, waiter)) return;
  if (disk_.tier() == nullptr) return waiter({});
  count(counters_.promote_waits);
  const int priority = whose == Room::Whose::kWriter ? Promoter::kWriterPriority : Promoter::kOpenPriority;
  (void)disk_.tier()->promoter.request(ino, priority, std::move(waiter), patience_ends_ms);
}

void DiskRequests::read_from_disk(uint64_t ino, uint64_t offset, size_t size, Promoter::ReadWaiter waiter) {
  std::optional<CatalogContent> cold;
  UniqueFd file;
  {
    const LockedEntry entry(entries_.shard(ino), ino);
    if (entry == nullptr) {
      // The answer comes below, with no lock held.
    } else if (entry->tier == Entry::Tier::kCold) {
      if (entry->disk.held() != nullptr) cold = *entry->disk.held();
    } else if (auto fd = arena_.open(handle_of(*entry), O_RDONLY | O_NONBLOCK)) {
      file = std::move(*fd);
    }
  }
  // The open file keeps the extents held.
  if (cold && disk_.tier() == nullptr && disk_.before_use().read(*cold, offset, size, waiter)) return;
  if (cold && disk_.tier() == nullptr) return waiter(fail(EIO));
  if (cold) return disk_.tier()->promoter.read(std::move(*cold), offset, size, std::move(waiter));
  const bool is_lacking = disk_.away() != nullptr || disk_.before_use().lasts();
  if (!file) return waiter(fail(is_lacking ? EIO : ESTALE));
  std::vector<char> bytes(size);
  auto count = sys::read_at(file.get(), bytes, offset);
  file.reset();
  if (!count) return waiter(pass(count));
  waiter(std::as_bytes(std::span(bytes).first(*count)));
}

Result<uint64_t> DiskRequests::seek_on_disk(uint64_t ino, uint64_t offset, int whence) {
  const LockedEntry entry(entries_.shard(ino), ino);
  if (entry == nullptr) return fail(ESTALE);
  if (entry->tier != Entry::Tier::kCold) {
    auto fd = arena_.open(handle_of(*entry), O_RDONLY | O_NONBLOCK);
    return fd ? sys::seek(fd->get(), offset, whence) : Result<uint64_t>(pass(fd));
  }
  const CatalogContent* const held = entry->disk.held();
  if (held == nullptr || disk_.tier() == nullptr) return fail(EIO);
  const auto at = seek_in_content(*held, disk_.tier()->store->unit_bytes(), offset, whence == SEEK_DATA);
  return at ? Result<uint64_t>(*at) : fail(ENXIO);
}

DiskTier* DiskRequests::durable_tier(Waiter& waiter) {
  if (capacity_.closed() || !disk_.exists()) {
    waiter({});
    return nullptr;
  }
  DiskTier* const tier = disk_.tier();
  if (tier == nullptr)
    disk_.away()->wait([its = std::move(waiter)](const PromoteOutcome& outcome) mutable {
      its(fail(outcome.kind == PromoteOutcome::Kind::kEnding ? ESHUTDOWN : EIO));
    });
  return tier;
}

void DiskRequests::when_committed(Waiter waiter) {
  if (DiskTier* const tier = durable_tier(waiter)) tier->store->log().when_committed(std::move(waiter));
}

// The catalog of a removed pool may stay full, so its waiters get ESHUTDOWN and do not ask again.
void DiskRequests::when_catalog_takes_more(Waiter waiter) {
  if (capacity_.closed()) return waiter(fail(ESHUTDOWN));
  if (DiskTier* const tier = durable_tier(waiter)) tier->store->log().when_it_takes_more(std::move(waiter));
}

std::optional<uint64_t> DiskRequests::claim_copy(Entry& entry) {
  if (!entry.is_file() || entry.tier != Entry::Tier::kDirty) return std::nullopt;
  entries_.contents().spill_asked(entry, DiskFacts::Spill::kUrgent);
  return entry.memory.charged_bytes;
}

Result<void> DiskRequests::make_copyable(Entry& entry, bool locked) {
  if (!entry.is_file() || (entry.tier != Entry::Tier::kDirty && !entry.removed)) return {};
  auto fd = arena_.open(handle_of(entry), O_PATH);
  if (!fd) return pass(fd);
  const bool synced_before = entry.disk.synced_nameless;
  if (entry.removed) entry.disk.synced_nameless = true;
  if (entry.tier != Entry::Tier::kDirty) return {};
  if (locked || surroundings_.backing_store->needs_write_access()) {
    auto numbered = marks_.number(entry, fd->get());
    if (!numbered) entry.disk.synced_nameless = synced_before;
    return numbered;
  }
  if (entry.removed || marks_.is_numbered(entry, fd->get())) return {};
  return fail(EIO, fmt::format("pool {}: inode {} was opened for writing before durability was sync, or "
                               "while the disk was away, so that its close is not durable: fsync is",
                               name_, entry.policy.ino));
}

void DiskRequests::sync(uint64_t ino, Waiter waiter, bool locked) {
  DiskTier* const tier = durable_tier(waiter);
  if (tier == nullptr) return;
  std::optional<uint64_t> dirty_bytes;
  Result<void> copyable;
  {
    const LockedEntry entry(entries_.shard(ino), ino);
    if (entry != nullptr) copyable = make_copyable(*entry, locked);
    if (copyable && entry != nullptr && !entry->removed) dirty_bytes = claim_copy(*entry);
  }
  if (!copyable) return waiter(std::move(copyable));
  if (!dirty_bytes) return when_committed(std::move(waiter));
  tier->spiller.request(ino, *dirty_bytes, true, committed_after(std::move(waiter)));
}

Waiter DiskRequests::committed_after(Waiter waiter) {
  return [this, its = std::move(waiter)](Result<void> outcome) mutable {
    if (!outcome && outcome.error().code == ENOSPC) count(counters_.no_space_errors);
    if (!outcome) return its(std::move(outcome));
    when_committed(std::move(its));
  };
}

void DiskRequests::sync_name(int directory, const char* name, Waiter waiter) {
  auto attributes = sys::stat_at(directory, name);
  if (!attributes || !S_ISREG(attributes->st_mode)) return when_committed(std::move(waiter));
  sync(attributes->st_ino, std::move(waiter));
}

void DiskRequests::sync_directory(uint64_t ino, Waiter waiter) {
  DiskTier* const tier = durable_tier(waiter);
  if (tier == nullptr) return;
  auto fd = inodes_.open_inode(ino, O_RDONLY | O_DIRECTORY);
  if (!fd) return waiter(pass(fd));
  tier->names.keep_directory(fd->get());
  auto together = std::make_shared<Together>(committed_after(std::move(waiter)));
  // A file that is still being written is left to its own fsync and close. A close of which the daemon has
  // heard may have been of a copy of the descriptor, as a fork makes one, and a stalled write would hold the
  // spiller up. Once it is closed no write can be under way, but a writer may come before its copy is made.
  const auto claim = [&](Entry& entry) -> std::optional<uint64_t> {
    const bool past = entry.writer_count > 0 && !surroundings_.backing_store->needs_write_access();
    const bool closed = entry.may_be_closed() && !(past && inodes_.may_be_written_past(entry));
    if (!closed && !entry.disk.synced_nameless) return std::nullopt;
    auto copyable = make_copyable(entry, closed);
    if (copyable) return claim_copy(entry);
    together->ended(std::move(copyable));
    return std::nullopt;
  };
  const auto spill = [&](uint64_t inode, uint64_t dirty_bytes) {
    tier->spiller.request(inode, dirty_bytes, true,
                          [together](Result<void> outcome) { together->ended(std::move(outcome)); });
  };
  if (ino == root_ino()) {
    // Because the kernel passes on no sync(2) or syncfs(2), an fsync of the root is the only request for a
    // whole pool.
    if (disk_.durability() == Durability::kNone)
      if (auto told = disk_.tell_names(false); !told) together->ended(std::move(told));
    for (EntryTable::Shard& shard : entries_.shards()) {
      std::vector<std::pair<uint64_t, uint64_t>> dirty;
      {
        MutexLock lock(shard.mutex);
        for (auto& [inode, entry] : shard.entries)
          if (const auto bytes = claim(entry)) dirty.emplace_back(inode, *bytes);
      }
      for (const auto& [inode, bytes] : dirty) spill(inode, bytes);
    }
    return;
  }
  const int directory = fd->get();
  auto read = for_each_child(std::move(*fd), [&](const Child& child) {
    // Without durability the catalog has not been told of inodes without content.
    if (!child.is_regular) {
      tier->names.keep(directory, child.name);
      return;
    }
    std::optional<uint64_t> dirty_bytes;
    if (const LockedEntry entry{entries_.shard(child.ino), child.ino}) dirty_bytes = claim(*entry);
    if (dirty_bytes) spill(child.ino, *dirty_bytes);
  });
  if (!read) together->ended(std::move(read));
}

void DiskRequests::spill_all() {
  if (disk_.tier() == nullptr || disk_.durability() == Durability::kNone) return;
  for (EntryTable::Shard& shard : entries_.shards()) {
    count_step();
    MutexLock lock(shard.mutex);
    for (auto& [ino, entry] : shard.entries) {
      if (entry.stage == Entry::Stage::kFresh && !entry.removed) disk_.publish(entry);
      // An entry that the spiller keeps for later (a writer or a mapping) is asked for again: it may be the
      // last chance.
      if (entry.is_file()) disk_.queue_spill(entry, false, entry.closed());
    }
  }
}

void DiskRequests::run_near_disk() {
  const int node = disk_.owned()->store->device().node();
  if (node >= 0) surroundings_.topology->run_on(node);
}

Result<void> DiskRequests::start_scrub(uint64_t rate_bytes_per_s) {
  auto tier = disk_.needed();
  if (!tier) return pass(tier);
  if (auto started = (*tier)->scrubber.start(rate_bytes_per_s); !started)
    return fail(started.error().code, fmt::format("pool {}: {}", name_, started.error().message));
  return {};
}

Result<void> DiskRequests::stop_scrub() {
  auto tier = disk_.needed();
  if (!tier) return pass(tier);
  (*tier)->scrubber.stop();
  return {};
}

ScrubProgress DiskRequests::scrub_progress() const {
  return disk_.tier() == nullptr ? ScrubProgress{} : disk_.tier()->scrubber.progress();
}

}  // namespace kvcachefs
