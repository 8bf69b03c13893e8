// A pool's way back from its disk, and what is served from there.
#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "base/sys_beneath.h"
#include "tier/pool.h"

namespace kvcachefs {

void Pool::promote(uint64_t ino, Waiter waiter) {
  if (away_ != nullptr) return away_->wait(std::move(waiter));
  if (disk() == nullptr) return waiter({});
  count(counters_.promote_waits);
  (void)disk()->promoter.request(ino, Promoter::kOpenPriority, std::move(waiter));
}

std::expected<PromoteTask, Residency::Refusal> Pool::begin_promote(uint64_t ino) {
  EntryTable::Shard& shard = table_.shard(ino);
  MutexLock lock(shard.mutex);
  Entry* entry = shard.find(ino);
  auto copy = shard.copies.find(ino);
  // One that was unlinked while it is served from the disk stays there.
  if (entry == nullptr || entry->removed || entry->tier != Entry::Tier::kCold || entry->promoting ||
      copy == shard.copies.end())
    return std::unexpected(Refusal::kNever);
  auto fd = arena_.open(handle_of(*entry), O_RDWR | O_NONBLOCK);
  if (!fd) return std::unexpected(Refusal::kNever);
  auto attributes = sys::stat_of(fd->get());
  if (!attributes) return std::unexpected(Refusal::kNever);
  if (surroundings_.topology->node_count() > 1) {
    const int node = surroundings_.topology->node_with_room(entry->node, copy->second.size_bytes);
    if (surroundings_.topology->place_file(fd->get(), node)) entry->node = static_cast<int8_t>(node);
  }
  entry->promoting = true;
  show(shard, *entry, *attributes);
  shard.times[ino] = {attributes->st_atim, attributes->st_mtim, attributes->st_ctim};
  fault_point("promotion begun");
  return PromoteTask{.ino = ino,
                     .fd = std::move(*fd),
                     .content = copy->second,
                     .content_epoch = entry->content_epoch,
                     .begun_ns = now_ns()};
}

void Pool::end_promote(const PromoteTask& task, const Result<void>& outcome, bool asked_for) {
  fault_point("copied from the disk");
  if (!outcome) (void)arena_.drop_pages(task.fd.get());
  EntryTable::Shard& shard = table_.shard(task.ino);
  MutexLock lock(shard.mutex);
  const auto kept = shard.times.extract(task.ino);
  Entry* entry = shard.find(task.ino);
  if (entry == nullptr) return;
  entry->promoting = false;
  if (entry->removed) return;
  // To allocate its pages and to write them counted as changes of the file.
  if (!kept.empty()) {
    (void)sys::change_times(task.fd.get(), {kept.mapped().accessed, kept.mapped().modified});
    hide_ctime(*entry, kept.mapped().changed, task.fd.get());
  }
  if (outcome) {
    count(counters_.promotes);
    count(counters_.promoted_bytes, task.content.size_bytes);
    counters_.promote_ns.record(now_ns() - task.begun_ns);
    entry->prefetched = !asked_for;
    entry->looked_up_ms = static_cast<uint32_t>(now_coarse_ms());  // who asked for it is about to open it
    (void)mark_copy(*entry, task.fd.get(), CopyMark::State::kClean, &task.content);
    fault_point("marked promoted");
    Accounted accounted(*this, *entry);
    candidates_.moved(*entry, Entry::Tier::kClean);
    // An open follows, and the kernel asks anew for the attributes of what it has read; in daemon I/O it may
    // have the pages and read nothing.
    const bool is_read_next = asked_for && !surroundings_.backing_store->needs_write_access();
    if (entry->lookup_count > 0 && !is_read_next) surroundings_.listener->changed(number_, task.ino);
    return;
  }
  const int code = outcome.error().code;
  if (!is_damage(code) && !is_disk_error(code)) return;
  count(counters_.promote_errors);
  report_bad_copy(task.content, code, is_damage(code) ? "is discarded" : "stays as it is");
  if (is_damage(code)) (void)discard_cold(shard, *entry);
}

void Pool::report_bad_copy(const CatalogContent& content, int code, const char* remedy) {
  if (code == EILSEQ) count(counters_.checksum_errors);
  LogLimit& limit = is_damage(code) ? disk()->errors.damage : disk()->errors.read;
  const uint64_t place =
      content.extents.empty() ? 0 : content.extents.front().start * disk()->store->unit_bytes();
  limit.error("pool {}: {}: {} at byte {}: an entry of {} bytes there {}", name_, options().spill_path,
              is_damage(code) ? "bytes that are not the entry's" : fmt::format("read error {}", code), place,
              content.size_bytes, remedy);
}

void Pool::read_from_disk(uint64_t ino, uint64_t offset, size_t size, Promoter::ReadWaiter waiter) {
  EntryTable::Shard& shard = table_.shard(ino);
  std::optional<CatalogContent> cold;
  UniqueFd file;
  {
    MutexLock lock(shard.mutex);
    Entry* entry = shard.find(ino);
    auto held = shard.held.find(ino);
    if (entry == nullptr) {
      // Answered below, with no lock held.
    } else if (entry->tier == Entry::Tier::kCold) {
      if (held != shard.held.end()) cold = held->second;
    } else if (auto fd = arena_.open(handle_of(*entry), O_RDONLY | O_NONBLOCK)) {
      file = std::move(*fd);
    }
  }
  // Its open file keeps it held.
  if (cold && disk() == nullptr) return waiter(fail(EIO));
  if (cold) return disk()->promoter.read(std::move(*cold), offset, size, std::move(waiter));
  if (!file) return waiter(fail(away_ != nullptr ? EIO : ESTALE));
  std::vector<char> bytes(size);
  auto count = sys::read_at(file.get(), bytes, offset);
  file.reset();
  if (!count) return waiter(pass(count));
  waiter(std::as_bytes(std::span(bytes).first(*count)));
}

void Pool::open_ahead(uint64_t ino, uint64_t client) {
  DiskTier* const tier = disk();
  if (tier == nullptr || !auto_prefetch_ || client == 0) return;
  for (const uint64_t next : tier->successors.opened(client, ino, now_coarse_ms())) {
    EntryTable::Shard& shard = table_.shard(next);
    bool cold = false;
    {
      MutexLock lock(shard.mutex);
      const Entry* entry = shard.find(next);
      cold = entry != nullptr && !entry->removed && entry->tier == Entry::Tier::kCold && !entry->promoting;
    }
    if (cold) (void)tier->promoter.request(next, kAheadPriority);
  }
}

Result<void> Pool::prefetch(std::span<const PrefetchOrder> orders) {
  if (disk() == nullptr) return refuse_without_disk(away(), name_);
  for (const PrefetchOrder& order : orders) {
    // A link on the way could lead to where a server thread waits for itself.
    auto named = sys::open_beneath(arena_.tree_fd(), order.name.c_str(), O_PATH | O_NOFOLLOW);
    auto handle = named ? sys::handle_of(named->get()) : pass(named);
    if (!handle) {
      ++prefetches_->failed;
      continue;
    }
    ++prefetches_->queued;
    const auto ended = [counters = prefetches_](const Result<void>& outcome) {
      --counters->queued;
      if (outcome)
        ++counters->done;
      else
        ++(is_damage(outcome.error().code) || is_disk_error(outcome.error().code) ? counters->failed
                                                                                  : counters->dropped);
    };
    if (disk()->promoter.request(handle->ino, std::min(order.priority, Promoter::kOpenPriority - 1), ended))
      continue;
    --prefetches_->queued;
    ++prefetches_->dropped;
  }
  return {};
}

PrefetchProgress Pool::prefetch_progress() const {
  return {.queued = prefetches_->queued,
          .done = prefetches_->done,
          .failed = prefetches_->failed,
          .dropped = prefetches_->dropped,
          .bytes = counters_.promoted_bytes};
}

}  // namespace kvcachefs
