// A pool's way back from its disk, and what it serves from there.
#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "base/sys_beneath.h"
#include "tier/catalog/content_layout.h"
#include "tier/pool/pool.h"

namespace kvcachefs {

void Pool::promote(uint64_t ino, PromoteWaiter waiter, Room::Whose whose) {
  if (away() != nullptr) return away()->wait(std::move(waiter));
  if (disk() == nullptr) return waiter({});
  count(counters_.promote_waits);
  const int priority = whose == Room::Whose::kWriter ? Promoter::kWriterPriority : Promoter::kOpenPriority;
  (void)disk()->promoter.request(ino, priority, std::move(waiter));
}

Result<std::optional<PromoteTask>> Pool::begin_promote(uint64_t ino) {
  EntryTable::Shard& shard = entries_.shard(ino);
  MutexLock lock(shard.mutex);
  Entry* entry = shard.find(ino);
  auto copy = shard.copies.find(ino);
  // An entry that was unlinked while it is served from the disk stays there.
  if (entry == nullptr || entry->removed || entry->tier != Entry::Tier::kCold || entry->promoting ||
      copy == shard.copies.end())
    return std::nullopt;
  auto fd = arena_.open(handle_of(*entry), O_RDWR | O_NONBLOCK | O_NOATIME);
  if (!fd) return pass(fd);
  auto attributes = sys::stat_of(fd->get());
  if (!attributes) return pass(attributes);
  if (surroundings_.topology->node_count() > 1) {
    const int node = surroundings_.topology->node_with_room(
        entry->node, data_bytes_of(copy->second, disk()->store->unit_bytes()));
    if (surroundings_.topology->place_file(fd->get(), node)) entry->node = static_cast<int8_t>(node);
  }
  entries_.promotion_begun(*entry);
  inodes_.show(shard, *entry, *attributes);
  shard.times[ino] = {attributes->st_atim, attributes->st_mtim, attributes->st_ctim};
  begin_unseen(entry->kept, fd->get(), *attributes, is_supervised());
  fault_point("promotion begun");
  return PromoteTask{.ino = ino,
                     .fd = std::move(*fd),
                     .content = copy->second,
                     .content_epoch = entry->content_epoch,
                     .begun_ns = now_ns()};
}

void Pool::end_promote(const PromoteTask& task, const PromoteOutcome& outcome, bool asked_for) {
  const bool promoted = outcome.kind == PromoteOutcome::Kind::kPromoted;
  fault_point("copied from the disk");
  if (!promoted) (void)arena_.drop_pages(task.fd.get());
  EntryTable::Shard& shard = entries_.shard(task.ino);
  MutexLock lock(shard.mutex);
  const auto kept = shard.times.extract(task.ino);
  Entry* entry = shard.find(task.ino);
  if (entry == nullptr) return;
  entries_.promotion_ended(*entry);
  if (entry->removed) return;
  // Allocating and writing the pages counted as changes of the file: the times of before come back.
  if (!kept.empty()) end_unseen(entry->kept, task.fd.get(), kept.mapped().modified, is_supervised());
  if (promoted) {
    count(counters_.promotes);
    count(counters_.promoted_bytes, data_bytes_of(task.content, disk()->store->unit_bytes()));
    counters_.promote_ns.record(now_ns() - task.begun_ns);
    (void)marks_.mark_copy(*entry, task.fd.get(), CopyMark::State::kClean, &task.content);
    fault_point("marked promoted");
    entries_.promoted(*entry, asked_for);
    return;
  }
  if (outcome.kind != PromoteOutcome::Kind::kFailed) return;
  count(counters_.promote_errors);
  const bool damaged = outcome.finding.is_damage();
  report_bad_copy(task.content, outcome.finding, damaged ? "is discarded" : "stays as it is");
  if (damaged) (void)tree_.discard_cold(shard, *entry, RemovalReason::kDamaged);
}

void Pool::waiters_told(uint64_t ino) {
  EntryTable::Shard& shard = entries_.shard(ino);
  MutexLock lock(shard.mutex);
  Entry* entry = shard.find(ino);
  if (entry != nullptr) entries_.waiters_told(*entry);
}

void Pool::report_bad_copy(const CatalogContent& content, Finding finding, const char* remedy) {
  if (finding.kind == Finding::Kind::kWrongBytes) count(counters_.checksum_errors);
  LogLimit& limit = finding.is_damage() ? disk()->errors.damage : disk()->errors.read;
  const uint64_t place = first_place_of(content.extents, disk()->store->unit_bytes());
  limit.error(
      "pool {}: {}: {} at byte {}: an entry of {} bytes there {}", name_, options().spill_path,
      finding.is_damage() ? "bytes that are not the entry's" : fmt::format("read error {}", finding.error),
      place, content.size_bytes, remedy);
}

void Pool::read_from_disk(uint64_t ino, uint64_t offset, size_t size, Promoter::ReadWaiter waiter) {
  EntryTable::Shard& shard = entries_.shard(ino);
  std::optional<CatalogContent> cold;
  UniqueFd file;
  {
    MutexLock lock(shard.mutex);
    Entry* entry = shard.find(ino);
    auto held = shard.held.find(ino);
    if (entry == nullptr) {
      // The answer comes below, with no lock held.
    } else if (entry->tier == Entry::Tier::kCold) {
      if (held != shard.held.end()) cold = held->second;
    } else if (auto fd = arena_.open(handle_of(*entry), O_RDONLY | O_NONBLOCK)) {
      file = std::move(*fd);
    }
  }
  // The open file keeps the extents held.
  if (cold && disk() == nullptr) return waiter(fail(EIO));
  if (cold) return disk()->promoter.read(std::move(*cold), offset, size, std::move(waiter));
  if (!file) return waiter(fail(away() != nullptr ? EIO : ESTALE));
  std::vector<char> bytes(size);
  auto count = sys::read_at(file.get(), bytes, offset);
  file.reset();
  if (!count) return waiter(pass(count));
  waiter(std::as_bytes(std::span(bytes).first(*count)));
}

Result<uint64_t> Pool::seek_on_disk(uint64_t ino, uint64_t offset, int whence) {
  EntryTable::Shard& shard = entries_.shard(ino);
  MutexLock lock(shard.mutex);
  const Entry* const entry = shard.find(ino);
  if (entry == nullptr) return fail(ESTALE);
  if (entry->tier != Entry::Tier::kCold) {
    auto fd = arena_.open(handle_of(*entry), O_RDONLY | O_NONBLOCK);
    return fd ? sys::seek(fd->get(), offset, whence) : Result<uint64_t>(pass(fd));
  }
  const auto held = shard.held.find(ino);
  if (held == shard.held.end() || disk() == nullptr) return fail(EIO);
  const auto at = seek_in_content(held->second, disk()->store->unit_bytes(), offset, whence == SEEK_DATA);
  return at ? Result<uint64_t>(*at) : fail(ENXIO);
}

}  // namespace kvcachefs
