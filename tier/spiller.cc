#include "tier/spiller.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "base/sys.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kPieceBytes = 1 << 20;
// What is begun at a time: enough for the disk to have its depth of small entries.
constexpr size_t kCopies = 64;
constexpr uint64_t kCopyingBytes = uint64_t{128} << 20;
// Sent before its checksum is made: the disk has 32 pieces, so it does not run dry meanwhile.
constexpr size_t kPiecesARound = 8;
constexpr size_t kBuffers = 32;

constexpr uint64_t kFullPauseMs = 2;  // a transaction gives back what was dropped
constexpr uint64_t kFullPatienceMs = 10'000;
constexpr uint64_t kBusyPauseMs = 1;
// The kernel lets go of an open file a little after it has told of the close; a mapping can end without any
// sign to us.
constexpr std::array<uint64_t, 4> kClosingPausesMs = {1, 4, 16, 64};
constexpr uint64_t kMappedPauseMs = 500;
constexpr unsigned kAttempts = 8;  // of a file that is written or cut short while it is copied
// A controller's reset takes seconds.
constexpr uint64_t kShortestRestMs = 50;
constexpr uint64_t kLongestRestMs = 2000;

// Of pages that are the file's own: looking at them by the mapping would be a SIGBUS after a truncation
// meanwhile, or where memory has run out for a hole.
int hash_file(Hasher& hasher, int fd, uint64_t offset, uint64_t bytes) {
  static thread_local std::array<char, 128 << 10> piece;  // stays in the processor's cache
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t wanted = std::min<uint64_t>(piece.size(), bytes - done);
    auto count = sys::read_at(fd, std::span(piece).first(wanted), offset + done);
    if (!count) return count.error().code;
    if (*count == 0) return EAGAIN;
    hasher.update(std::as_bytes(std::span(piece).first(*count)));
    done += *count;
  }
  return 0;
}

}  // namespace

Spiller::Spiller(SpillStore& store, Residency& residency, std::unique_ptr<BlockChannel> channel)
    : store_(store), residency_(residency), channel_(std::move(channel)) {
  for (size_t slot = 0; slot < slots_.size(); ++slot) free_slots_.push_back(slot);
}

Spiller::~Spiller() = default;

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
                   .not_before_ms = 0,
                   .full_since_ms = 0,
                   .attempts = 0,
                   .closing_tries = 0,
                   .stuck = false};
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
  auto due = std::ranges::find_if(
      later_, [&](const Request& r) { return r.not_before_ms <= now_ms && (!rests || r.waiter); });
  if (due != later_.end()) {
    Request request = std::move(*due);
    later_.erase(due);
    if (std::exchange(request.stuck, false)) {
      --stuck_;
      backlog_bytes_ += request.bytes;
    }
    return request;
  }
  if (rests && urgent_.empty()) return std::nullopt;
  std::deque<Request>& queue = urgent_.empty() ? requests_ : urgent_;
  if (queue.empty()) return std::nullopt;
  Request request = std::move(queue.front());
  queue.pop_front();
  return request;
}

void Spiller::queue_again(Request request, uint64_t pause_ms) {
  request.not_before_ms = now_coarse_ms() + pause_ms;
  MutexLock lock(mutex_);
  later_.push_back(std::move(request));
}

// Between one try and the next, or while one is under way.
bool Spiller::resting() const {
  return rest_ms_ > 0 && (!copies_.empty() || now_coarse_ms() < rest_ends_ms_);
}

void Spiller::was_refused(Request request, std::vector<Extent> extents, int error) {
  if (now_coarse_ms() >= rest_ends_ms_) {
    rest_ms_ = std::clamp(2 * rest_ms_, kShortestRestMs, kLongestRestMs);
    rest_ends_ms_ = now_coarse_ms() + rest_ms_;
  }
  if (request.waiter) std::exchange(request.waiter, {})(fail(error));
  request.urgent = false;
  store_.give_back(std::exchange(request.refused, std::move(extents)));
  MutexLock lock(mutex_);
  requests_.push_back(std::move(request));  // behind the others: it may be the place of this one
}

void Spiller::settle(Request& request, Result<void> outcome) {
  store_.give_back(std::exchange(request.refused, {}));
  backlog_bytes_ -= request.bytes;
  if (request.waiter) request.waiter(std::move(outcome));
  --unfinished_;
}

void Spiller::start_copies() {
  while (copies_.size() < kCopies && copying_bytes_ < kCopyingBytes) {
    auto request = next_request();
    if (!request || !start(std::move(*request))) return;
  }
}

bool Spiller::start(Request request) {
  auto task = residency_.begin_spill(request.ino, request.urgent);
  if (!task) {
    if (task.error() == Residency::Refusal::kSoon) {
      queue_again(std::move(request), kBusyPauseMs);
    } else if (task.error() == Residency::Refusal::kLater &&
               request.closing_tries < kClosingPausesMs.size()) {
      const uint64_t pause_ms = kClosingPausesMs[request.closing_tries++];
      queue_again(std::move(request), pause_ms);
    } else if (task.error() == Residency::Refusal::kLater) {
      // Tried again for ever: the mapping ends one day.
      backlog_bytes_ -= request.bytes;
      ++stuck_;
      request.stuck = true;
      queue_again(std::move(request), kMappedPauseMs);
    } else {
      settle(request, {});
    }
    return true;
  }
  if (is_unchanged(*task)) {
    CatalogContent same = *task->before;
    same.version = task->version;
    const bool taken = residency_.end_spill(*task, std::move(same), false);
    if (!taken && ++request.attempts < kAttempts)
      queue_again(std::move(request), kBusyPauseMs);
    else
      settle(request, taken ? Result<void>() : fail(EBUSY));
    return true;
  }
  auto extents = store_.allocate(task->size_bytes);
  store_.give_back(std::exchange(request.refused, {}));
  if (!extents) return wait_for_space(std::move(request), *task);
  Copy& copy = copies_.emplace_back();
  copy.request = std::move(request);
  copy.task = std::move(*task);
  copy.extents = std::move(*extents);
  copying_bytes_ += copy.task.size_bytes;
  if (copy.task.mappable && copy.task.size_bytes > kBufferedBytesMax) {
    auto mapping = Mapping::of_file(copy.task.fd.get(), copy.task.size_bytes, Mapping::Access::kRead);
    if (mapping)
      copy.mapping = std::move(*mapping);
    else
      copy.error = mapping.error().code;
  }
  if (copy.task.size_bytes == 0 || copy.error != 0) finish(copy);
  return true;
}

bool Spiller::wait_for_space(Request request, const SpillTask& task) {
  const uint64_t now_ms = now_coarse_ms();
  if (request.full_since_ms == 0) request.full_since_ms = now_ms;
  const bool hopeless = store_.units_for(task.size_bytes) >= store_.space().units();
  const bool too_long = now_ms - request.full_since_ms > kFullPatienceMs;
  if (too_long && request.waiter) std::exchange(request.waiter, {})(fail(ENOSPC));
  // Space may be on its way back from a catalog that cannot be written now: who gave up would have its entry
  // discarded.
  if (hopeless || (too_long && store_.log().idle())) {
    (void)residency_.end_spill(task, fail(ENOSPC), false);
    settle(request, fail(ENOSPC));
    return true;
  }
  (void)residency_.end_spill(task, fail(EAGAIN), false);
  residency_.want_disk_room(task.size_bytes);
  queue_again(std::move(request), kFullPauseMs);
  return false;
}

bool Spiller::is_unchanged(const SpillTask& task) {
  if (!task.before || task.before->size_bytes != task.size_bytes) return false;
  Hasher hasher;
  std::vector<char> piece(std::min(task.size_bytes, kPieceBytes));
  for (uint64_t offset = 0; offset < task.size_bytes;) {
    auto count = sys::read_at(task.fd.get(), piece, offset);
    if (!count || *count == 0) return false;
    const uint64_t used = std::min<uint64_t>(*count, task.size_bytes - offset);
    hasher.update(std::as_bytes(std::span(piece).first(used)));
    offset += used;
  }
  return hasher.digest() == task.before->checksum;
}

std::optional<size_t> Spiller::take_buffer() {
  if (free_buffers_.empty() && buffers_.size() < kBuffers) {
    auto made = Mapping::of_memory(kPieceBytes);
    if (!made) return std::nullopt;
    buffers_.push_back(std::move(*made));
    free_buffers_.push_back(buffers_.size() - 1);
  }
  if (free_buffers_.empty()) return std::nullopt;
  const size_t buffer = free_buffers_.back();
  free_buffers_.pop_back();
  return buffer;
}

bool Spiller::send_piece(Copy& copy) {
  if (free_slots_.empty()) return false;
  const uint64_t alignment = std::max<uint64_t>(store_.device().alignment_bytes(), 4096);
  const Extent& extent = copy.extents[copy.extent];
  const uint64_t unit = store_.unit_bytes();
  const uint64_t left = copy.task.size_bytes - copy.sent_bytes;
  const uint64_t padded = (left + alignment - 1) / alignment * alignment;
  const uint64_t size = std::min({kPieceBytes, extent.count * unit - copy.within_extent, padded});
  const uint64_t used = std::min(size, left);

  size_t buffer = kNoBuffer;
  std::span<std::byte> memory;
  if (copy.mapping) {
    memory = copy.mapping.bytes().subspan(copy.sent_bytes, size);
  } else {
    const auto taken = take_buffer();
    if (!taken) return false;
    buffer = *taken;
    memory = buffers_[buffer].bytes().first(size);
    auto count =
        sys::read_at(copy.task.fd.get(), {reinterpret_cast<char*>(memory.data()), used}, copy.sent_bytes);
    if (!count || *count < used) {
      copy.error = count ? EAGAIN : count.error().code;
      free_buffers_.push_back(buffer);
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
  hashing_.push_back({&copy, memory.first(used)});
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
  for (Copy& copy : copies_) {
    while (copy.error == 0 && copy.sent_bytes < copy.task.size_bytes && sending_.size() < kPiecesARound &&
           !stuck)
      stuck = !send_piece(copy);
  }
  const bool more = sending_.size() == kPiecesARound && !stuck;
  channel_->submit(sending_);
  for (const Piece& piece : hashing_) {
    Copy& copy = *piece.copy;
    if (!copy.mapping) {
      copy.hasher.update(piece.content);
      continue;
    }
    const uint64_t offset = static_cast<uint64_t>(piece.content.data() - copy.mapping.bytes().data());
    const int error = hash_file(copy.hasher, copy.task.fd.get(), offset, piece.content.size());
    if (error != 0) copy.error = error;
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
    if (slot.buffer != kNoBuffer) free_buffers_.push_back(slot.buffer);
    --slot.copy->flying;
    // Its mapped pages went with a truncation.
    if (completion.error == EFAULT && slot.copy->mapping)
      slot.copy->error = EAGAIN;
    else if (completion.error != 0)
      slot.copy->error = completion.error;
    free_slots_.push_back(completion.tag);
  }
  for (auto copy = copies_.begin(); copy != copies_.end();) {
    auto next = std::next(copy);
    if (copy->flying == 0 && (copy->error != 0 || copy->sent_bytes == copy->task.size_bytes)) finish(*copy);
    copy = next;
  }
}

void Spiller::finish(Copy& copy) {
  copy.mapping = Mapping();  // an eviction that follows at once must not meet it
  copying_bytes_ -= copy.task.size_bytes;
  Request request = std::move(copy.request);
  if (copy.error == EAGAIN && request.attempts + 1 >= kAttempts) copy.error = EBUSY;
  Result<CatalogContent> content =
      fail(copy.error, copy.extents.empty()
                           ? ""
                           : fmt::format(" at byte {}", copy.extents.front().start * store_.unit_bytes()));
  if (copy.error == 0)
    content = CatalogContent{.size_bytes = copy.task.size_bytes,
                             .checksum = copy.hasher.digest(),
                             .version = copy.task.version,
                             .extents = copy.extents};
  const bool taken = residency_.end_spill(copy.task, std::move(content), true);
  const int error = copy.error;
  std::vector<Extent> extents = taken ? std::vector<Extent>() : std::move(copy.extents);
  std::erase_if(copies_, [&](const Copy& other) { return &other == &copy; });
  // A writer was faster: who waits for an fsync gets a snapshot then, and what is closed by now its copy.
  if (error != 0 && error != EAGAIN && error != EBUSY)
    return was_refused(std::move(request), std::move(extents), error);
  store_.give_back(extents);
  if (error == 0) rest_ms_ = 0;
  const bool again = error == EAGAIN || (error == 0 && !taken);
  if (again && ++request.attempts < kAttempts) return queue_again(std::move(request), kBusyPauseMs);
  if (again) return settle(request, fail(EBUSY));
  settle(request, error == 0 ? Result<void>() : fail(error));
}

void Spiller::step(std::chrono::milliseconds at_most) {
  start_copies();
  const bool more = feed();
  if (more) return collect(std::chrono::milliseconds(0));
  collect(std::min(at_most, pause()));
}

std::chrono::milliseconds Spiller::pause() const {
  MutexLock lock(mutex_);
  uint64_t pause_ms = kMappedPauseMs;
  const uint64_t now_ms = now_coarse_ms();
  if (rest_ms_ > 0) pause_ms = std::min(pause_ms, rest_ends_ms_ - std::min(rest_ends_ms_, now_ms));
  for (const Request& request : later_)
    pause_ms = std::min(pause_ms, request.not_before_ms - std::min(request.not_before_ms, now_ms));
  // One that is due may have to wait for those under way.
  return std::chrono::milliseconds(std::max<uint64_t>(pause_ms, 1));
}

void Spiller::close() {
  std::vector<Request> left;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    for (auto* queue : {&urgent_, &requests_, &later_}) {
      for (Request& request : *queue) left.push_back(std::move(request));
      queue->clear();
    }
  }
  for (Request& request : left)
    if (request.waiter) request.waiter(fail(ESHUTDOWN));
  // The copies stay: their memory is the disk's until the channel goes.
  for (Copy& copy : copies_)
    if (Waiter waiter = std::exchange(copy.request.waiter, {})) waiter(fail(ESHUTDOWN));
}

}  // namespace kvcachefs
