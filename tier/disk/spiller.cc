#include "tier/disk/spiller.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "base/sys.h"
#include "tier/blocks.h"
#include "tier/disk/file_checksum.h"

namespace kvcachefs {
namespace {

// The most copies under way at a time: enough to keep the disk at its depth with small entries.
constexpr size_t kCopies = 64;
constexpr uint64_t kCopyingBytes = uint64_t{128} << 20;
// The most pieces sent before their checksums are made: the disk has 32 requests, so it does not run dry
// meanwhile.
constexpr size_t kWritesARound = 8;

constexpr uint64_t kFullPauseMs = 2;  // a transaction gives back dropped space
constexpr uint64_t kFullPatienceMs = 10'000;
constexpr uint64_t kBusyPauseMs = 1;
// The most zeros written because a file has too many holes: as many as the file has data, or this many bytes,
// whichever is more.
constexpr uint64_t kZeroBytesMost = uint64_t{64} << 20;
// The kernel gives up an open file shortly after it has told the daemon of the close. A mapping can end
// without any sign to the daemon.
constexpr std::array<uint64_t, 4> kClosingPausesMs = {1, 4, 16, 64};
constexpr uint64_t kMappedPauseMs = 500;
constexpr unsigned kAttempts = 8;  // of a file that is written or cut short while it is copied
// The rests double up to the longest, because a controller's reset takes seconds.
constexpr uint64_t kShortestRestMs = 50;
constexpr uint64_t kLongestRestMs = 2000;

}  // namespace

Spiller::Spiller(SpillStore& store, Residency& residency, std::unique_ptr<BlockChannel> channel)
    : store_(store), residency_(residency), channel_(std::move(channel)) {
  for (size_t slot = 0; slot < slots_.size(); ++slot) free_slots_.push_back(slot);
}

void Spiller::request(uint64_t ino, uint64_t bytes, bool urgent, Waiter waiter) {
  {
    MutexLock lock(mutex_);
    if (!closed_) {
      backlog_bytes_ += bytes;
      ++unfinished_;
      Request made{.ino = ino,
                   .bytes = bytes,
                   .urgent = urgent,
                   .waiter = std::exchange(waiter, {}),
                   .asked_ms = now_coarse_ms()};
      (urgent ? urgent_ : requests_).push_back(std::move(made));
    }
  }
  if (waiter) return waiter(fail(ESHUTDOWN));
  channel_->wake();
}

std::optional<Spiller::Request> Spiller::next_request() {
  MutexLock lock(mutex_);
  const uint64_t now_ms = now_coarse_ms();
  const bool rests = resting();
  std::deque<Request>* queue = &later_;
  auto next = std::ranges::find_if(
      later_, [&](const Request& r) { return r.not_before_ms <= now_ms && (!rests || r.waiter); });
  if (next == later_.end()) {
    queue = rests || !urgent_.empty() ? &urgent_ : &requests_;
    next = queue->begin();
    if (next == queue->end()) return std::nullopt;
  }
  Request request = std::move(*next);
  queue->erase(next);
  if (std::exchange(request.stuck, false)) {
    --stuck_;
    backlog_bytes_ += request.bytes;
  }
  return request;
}

void Spiller::queue_again(Request request, uint64_t pause_ms) {
  request.not_before_ms = now_coarse_ms() + pause_ms;
  MutexLock lock(mutex_);
  later_.push_back(std::move(request));
}

// The disk rests after a refusal, and while the copy that tries it again is under way.
bool Spiller::resting() const {
  return rest_ms_ > 0 && (!copies_.empty() || now_coarse_ms() < rest_ends_ms_);
}

void Spiller::was_refused(Request request, std::vector<Extent> extents, int error) {
  if (now_coarse_ms() >= rest_ends_ms_) {
    rest_ms_ = std::clamp(2 * rest_ms_, kShortestRestMs, kLongestRestMs);
    rest_ends_ms_ = now_coarse_ms() + rest_ms_;
  }
  if (request.waiter) std::exchange(request.waiter, {})(fail(error));
  {
    // One request for each entry is enough: each keeps the extents that the disk refused it.
    MutexLock lock(mutex_);
    if (std::ranges::find(requests_, request.ino, &Request::ino) == requests_.end()) {
      request.urgent = false;
      request.refused = std::move(extents);
      return requests_.push_back(std::move(request));  // last: its place may be the cause
    }
  }
  store_.give_back(extents);
  settle(request, {});
}

void Spiller::settle(Request& request, Result<void> outcome) {
  store_.give_back(std::exchange(request.refused, {}));
  backlog_bytes_ -= request.bytes;
  if (request.waiter) request.waiter(std::move(outcome));
  --unfinished_;
}

void Spiller::start_copies() {
  while (copies_.size() < kCopies && copying_bytes_ < kCopyingBytes && !store_.log().is_full()) {
    auto request = next_request();
    if (!request || !start(std::move(*request))) return;
  }
}

bool Spiller::start(Request request) {
  auto task = residency_.begin_spill(request.ino, request.urgent);
  if (!task) {
    if (task.error() == Residency::Refusal::kNever) {
      settle(request, {});
    } else if (task.error() == Residency::Refusal::kCannot) {
      settle(request, fail(EBUSY));
    } else if (task.error() == Residency::Refusal::kSoon) {
      queue_again(std::move(request), kBusyPauseMs);
    } else if (request.closing_tries < kClosingPausesMs.size()) {
      const uint64_t pause_ms = kClosingPausesMs[request.closing_tries++];
      queue_again(std::move(request), pause_ms);
    } else {
      // The copy is tried again for ever, because the mapping will end.
      backlog_bytes_ -= request.bytes;
      ++stuck_;
      request.stuck = true;
      queue_again(std::move(request), kMappedPauseMs);
    }
    return true;
  }
  const ContentLayout layout = layout_of_file(task->fd.get(), task->size_bytes, store_.unit_bytes())
                                   .value_or(layout_without_holes(store_.units_for(task->size_bytes)));
  if (is_unchanged(*task, layout)) {
    task->before->version = task->version;
    SpillOutcome same{.kind = SpillOutcome::Kind::kUnchanged, .content = *task->before};
    settle_or_repeat(std::move(request), residency_.end_spill(*task, std::move(same)));
    return true;
  }
  const uint64_t data_bytes = layout.data_units * store_.unit_bytes();
  auto space = is_wasteful(layout) ? std::nullopt : store_.allocate(data_bytes);
  store_.give_back(std::exchange(request.refused, {}));
  if (!space) return wait_for_space(std::move(request), *task, layout);
  Copy& copy = copies_.emplace_back();
  copy.request = std::move(request);
  copy.task = std::move(*task);
  copy.extents = lay_out(layout, *space);
  copy.data_bytes = data_bytes;
  copying_bytes_ += data_bytes;
  if (copy.task.mappable && layout.is_whole && copy.task.size_bytes > kBufferedBytesMax) {
    auto mapping = Mapping::of_file(copy.task.fd.get(), copy.task.size_bytes, Mapping::Access::kRead);
    if (mapping)
      copy.mapping = std::move(*mapping);
    else
      copy.error = mapping.error().code;
  }
  // The snapshot is void if the file is cut short at this moment: its layout was read before the cut.
  if (!copy.task.proven)
    if (const auto now = sys::stat_of(copy.task.fd.get()); now && size_of(*now) < copy.task.size_bytes)
      copy.written = true;
  if (copy.is_over()) finish(copy);
  return true;
}

bool Spiller::wait_for_space(Request request, const SpillTask& task, const ContentLayout& layout) {
  const uint64_t now_ms = now_coarse_ms();
  if (request.full_since_ms == 0) request.full_since_ms = now_ms;
  if (full_since_ms_ == 0) full_since_ms_ = now_ms;
  const bool hopeless = is_wasteful(layout) || layout.data_units >= store_.space().units();
  const bool too_long = now_ms - request.full_since_ms > kFullPatienceMs;
  if (too_long && request.waiter) std::exchange(request.waiter, {})(fail(ENOSPC));
  // A catalog that cannot be written now may be holding back freed space. Giving up would discard the entry.
  if (hopeless || (too_long && store_.log().idle())) {
    (void)residency_.end_spill(task, {.kind = SpillOutcome::Kind::kNoRoom});
    settle(request, fail(ENOSPC));
    return true;
  }
  (void)residency_.end_spill(task, {.kind = SpillOutcome::Kind::kAgain});
  residency_.want_disk_room(layout.data_units * store_.unit_bytes());
  queue_again(std::move(request), kFullPauseMs);
  return false;
}

bool Spiller::is_wasteful(const ContentLayout& layout) const {
  return layout.zero_units > layout.data_units / 2 &&
         layout.zero_units * store_.unit_bytes() > kZeroBytesMost;
}

bool Spiller::is_unchanged(const SpillTask& task, const ContentLayout& layout) const {
  if (!task.before || task.before->size_bytes != task.size_bytes || !has_layout(task.before->extents, layout))
    return false;
  return checksum_of_file(task.fd.get(), task.size_bytes, layout, store_.unit_bytes()) ==
         task.before->checksum;
}

void Spiller::pass_holes(Copy& copy) {
  const auto& extents = copy.extents;
  for (; copy.extent < extents.size() && is_hole(extents[copy.extent]); ++copy.extent) {
    const uint64_t units = extents[copy.extent].count;
    hashing_.push_back({.copy = &copy, .content = {}, .hole_units = units});
    copy.sent_bytes = std::min(copy.task.size_bytes, copy.sent_bytes + units * store_.unit_bytes());
    passed_holes_ = true;
  }
}

bool Spiller::send_piece(Copy& copy) {
  pass_holes(copy);
  if (copy.extent == copy.extents.size()) return true;
  if (free_slots_.empty()) return false;
  const uint64_t alignment = std::max<uint64_t>(store_.device().alignment_bytes(), 4096);
  const Extent& extent = copy.extents[copy.extent];
  const uint64_t unit = store_.unit_bytes();
  const uint64_t left = copy.task.size_bytes - copy.sent_bytes;
  const uint64_t size =
      std::min({PieceBuffers::kBytes, extent.count * unit - copy.within_extent, rounded_up(left, alignment)});
  const uint64_t used = std::min(size, left);

  std::optional<size_t> buffer;
  if (!copy.mapping && !(buffer = buffers_.take())) return false;
  const std::span<std::byte> memory =
      buffer ? buffers_.memory(*buffer).first(size) : copy.mapping.bytes().subspan(copy.sent_bytes, size);
  if (buffer) {
    auto count =
        sys::read_at(copy.task.fd.get(), {reinterpret_cast<char*>(memory.data()), used}, copy.sent_bytes);
    if (!count || *count < used) {
      copy.written = count.has_value();
      if (!count) copy.error = count.error().code;
      buffers_.give_back(*buffer);
      return true;
    }
    std::ranges::fill(memory.subspan(used), std::byte{0});
  }
  const size_t slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[slot] = {&copy, buffer};
  sending_.push_back({.kind = BlockRequest::Kind::kWrite,
                      .offset = extent.start * unit + copy.within_extent,
                      .memory = memory,
                      .tag = slot});
  hashing_.push_back({.copy = &copy, .content = memory.first(used)});
  ++copy.flying;
  copy.sent_bytes += used;
  copy.within_extent += size;
  if (copy.within_extent == extent.count * unit) {
    ++copy.extent;
    copy.within_extent = 0;
  }
  return true;
}

bool Spiller::feed() {
  bool stuck = false;
  for (Copy& copy : copies_)
    while (!stuck && !copy.is_over() && sending_.size() < kWritesARound) stuck = !send_piece(copy);
  const bool more = std::exchange(passed_holes_, false) || (sending_.size() == kWritesARound && !stuck);
  channel_->submit(sending_);
  for (const Piece& piece : hashing_) {
    Copy& copy = *piece.copy;
    if (piece.hole_units > 0) {
      hash_hole(copy.hasher, piece.hole_units);
    } else if (!copy.mapping) {
      copy.hasher.update(piece.content);
    } else {
      const uint64_t offset = static_cast<uint64_t>(piece.content.data() - copy.mapping.bytes().data());
      const auto whole = hash_file(copy.hasher, copy.task.fd.get(), offset, piece.content.size());
      if (!whole) copy.error = whole.error().code;
      if (whole && !*whole) copy.written = true;
    }
  }
  sending_.clear();
  hashing_.clear();
  return more;
}

void Spiller::collect(std::chrono::milliseconds at_most) {
  completions_.clear();
  (void)channel_->reap(completions_, at_most);
  for (const BlockCompletion& completion : completions_) {
    Slot& slot = slots_[completion.tag];
    if (slot.buffer) buffers_.give_back(*slot.buffer);
    --slot.copy->flying;
    // A truncation took the mapped pages.
    if (completion.error == EFAULT && slot.copy->mapping)
      slot.copy->written = true;
    else if (completion.error != 0)
      slot.copy->error = completion.error;
    free_slots_.push_back(completion.tag);
  }
  for (auto next = copies_.begin(); next != copies_.end();) {
    Copy& copy = *next++;
    if (copy.flying == 0 && copy.is_over()) finish(copy);
  }
}

SpillOutcome Spiller::outcome_of(const Copy& copy) const {
  using Kind = SpillOutcome::Kind;
  if (copy.error != 0) {
    // That of a thinly provisioned disk may be ENOSPC, which no discard of ours mends.
    if (copy.extents.empty()) return {.kind = Kind::kRefused, .why = {copy.error, {}}};
    const uint64_t place = first_place_of(copy.extents, store_.unit_bytes());
    return {.kind = Kind::kRefused, .why = {copy.error, fmt::format(" at byte {}", place)}};
  }
  if (copy.written) return {.kind = copy.request.attempts + 1 < kAttempts ? Kind::kAgain : Kind::kBusy};
  return {.content = {.size_bytes = copy.task.size_bytes,
                      .checksum = copy.hasher.digest(),
                      .version = copy.task.version,
                      .extents = copy.extents}};
}

void Spiller::finish(Copy& copy) {
  copy.mapping = Mapping();  // an eviction that follows at once must not find it mapped
  copying_bytes_ -= copy.data_bytes;
  const bool taken = residency_.end_spill(copy.task, outcome_of(copy));
  Request request = std::move(copy.request);
  const int error = copy.error;
  const bool written = copy.written;
  std::vector<Extent> extents = taken ? std::vector<Extent>() : std::move(copy.extents);
  std::erase_if(copies_, [&](const Copy& other) { return &other == &copy; });
  if (error != 0) return was_refused(std::move(request), std::move(extents), error);
  store_.give_back(extents);
  if (!written) rest_ms_ = 0;
  if (taken) full_since_ms_ = 0;
  settle_or_repeat(std::move(request), taken);
}

// A copy that was not taken had a writer that was faster. At the next try a waiting fsync gets a snapshot,
// and an entry that is closed by then gets its copy.
void Spiller::settle_or_repeat(Request request, bool taken) {
  if (!taken && ++request.attempts < kAttempts) return queue_again(std::move(request), kBusyPauseMs);
  settle(request, taken ? Result<void>() : fail(EBUSY));
}

// Many copies may wait for space, each for its time, one after the other. A disk that is merely slow, and
// takes one copy after the other, is waited for.
void Spiller::tell_the_patient() {
  const uint64_t now_ms = now_coarse_ms();
  if (full_since_ms_ == 0 || now_ms <= full_since_ms_ + waiter_patience_ms_) return;
  std::vector<Waiter> told;
  {
    MutexLock lock(mutex_);
    for (auto* queue : {&urgent_, &later_})  // the others have no waiters
      for (Request& request : *queue)
        if (request.waiter && now_ms > request.asked_ms + waiter_patience_ms_)
          told.push_back(std::exchange(request.waiter, {}));
  }
  for (Waiter& waiter : told) waiter(fail(ENOSPC));
}

void Spiller::step(std::chrono::milliseconds at_most) {
  tell_the_patient();
  start_copies();
  collect(feed() ? std::chrono::milliseconds(0) : std::min(at_most, pause()));
}

std::chrono::milliseconds Spiller::pause() const {
  MutexLock lock(mutex_);
  const uint64_t now_ms = now_coarse_ms();
  uint64_t ends_ms = now_ms + kMappedPauseMs;
  if (rest_ms_ > 0) ends_ms = std::min(ends_ms, rest_ends_ms_);
  for (const Request& request : later_) ends_ms = std::min(ends_ms, request.not_before_ms);
  // A request that is due may have to wait for copies under way.
  return std::chrono::milliseconds(std::max(ends_ms, now_ms + 1) - now_ms);
}

void Spiller::close() {
  std::vector<Waiter> told;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    for (auto* queue : {&urgent_, &requests_, &later_}) {
      for (Request& request : *queue) told.push_back(std::move(request.waiter));
      queue->clear();
    }
  }
  // The copies stay, because the disk may use their memory until the channel is destroyed.
  for (Copy& copy : copies_) told.push_back(std::exchange(copy.request.waiter, {}));
  for (Waiter& waiter : told)
    if (waiter) waiter(fail(ESHUTDOWN));
}

}  // namespace kvcachefs
