#include "tier/scrubber.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kPieceBytes = 256 << 10;
// What may be read at once after a pause: a tenth of a second's worth, and a piece at least.
constexpr uint64_t kBurstShare = 10;
constexpr uint64_t kMostBytesPerSecond = uint64_t{1} << 40;
constexpr uint64_t kNsPerSecond = 1'000'000'000;

}  // namespace

Scrubber::Scrubber(SpillStore& store, Residency& residency, std::unique_ptr<BlockChannel> channel)
    : store_(store), residency_(residency), channel_(std::move(channel)) {}

Scrubber::~Scrubber() = default;

Result<void> Scrubber::start(uint64_t rate_bytes_per_s) {
  {
    MutexLock lock(mutex_);
    if (progress_.running) return fail(EBUSY, "a scrub runs already");
    progress_ = {};
    progress_.running = true;
    rate_bytes_per_s_ = std::clamp<uint64_t>(rate_bytes_per_s, 1, kMostBytesPerSecond);
    ++order_;
  }
  channel_->wake();
  return {};
}

void Scrubber::stop() {
  {
    MutexLock lock(mutex_);
    progress_.running = false;
    ++order_;
  }
  channel_->wake();
}

ScrubProgress Scrubber::progress() const {
  MutexLock lock(mutex_);
  return progress_;
}

bool Scrubber::take_order() {
  bool running = false;
  {
    MutexLock lock(mutex_);
    if (order_ == following_) return copy_ || !left_.empty();
    running = progress_.running;
    rate_ = rate_bytes_per_s_;
    following_ = order_;
  }
  abandon();
  if (!running) return false;
  if (!memory_) {
    auto memory = Mapping::of_memory(kDepth * kPieceBytes);
    if (!memory) {
      log_error("no memory to scrub with");
      stop();
      return false;
    }
    memory_ = std::move(*memory);
  }
  left_ = residency_.copied_entries();
  allowed_bytes_ = 0;
  refilled_ns_ = now_ns();
  MutexLock lock(mutex_);
  if (order_ != following_) return true;
  progress_.entries_total = left_.size();
  if (left_.empty()) progress_.running = false;
  return !left_.empty();
}

// Of an order that is no longer followed. The disk is waited for: it reads into memory that comes next.
void Scrubber::abandon() {
  while (sent_ > consumed_) collect(std::chrono::milliseconds(100));
  if (copy_) (void)residency_.end_verify(copy_->ino, copy_->content, ECANCELED);
  copy_.reset();
  left_.clear();
}

void Scrubber::next_copy() {
  while (!copy_ && !left_.empty()) {
    const uint64_t ino = left_.back();
    left_.pop_back();
    if (auto content = residency_.begin_verify(ino)) {
      copy_.emplace();
      copy_->ino = ino;
      copy_->content = std::move(*content);
      hasher_.reset();
      if (copy_->content.size_bytes == 0) end_copy();
      continue;
    }
    // It has gone, or was written again, since it was listed: nothing of it is on the disk to be checked.
    MutexLock lock(mutex_);
    if (order_ != following_) return;
    ++progress_.entries_done;
    if (left_.empty()) progress_.running = false;
  }
}

void Scrubber::refill() {
  const uint64_t now = now_ns();
  const auto burst = static_cast<int64_t>(std::max(rate_ / kBurstShare, kPieceBytes));
  const uint64_t passed_ns = std::min(now - refilled_ns_, kNsPerSecond);
  const uint64_t earned =
      rate_ / 1000 * passed_ns / (kNsPerSecond / 1000) + rate_ % 1000 * passed_ns / kNsPerSecond;
  if (earned == 0) return;
  refilled_ns_ = now;
  allowed_bytes_ = std::min(allowed_bytes_ + static_cast<int64_t>(earned), burst);
}

std::chrono::milliseconds Scrubber::until_allowed() const {
  if (allowed_bytes_ > 0) return std::chrono::milliseconds(0);
  return std::chrono::milliseconds(
      static_cast<uint64_t>(-allowed_bytes_) / std::max<uint64_t>(rate_ / 1000, 1) + 1);
}

void Scrubber::feed() {
  refill();
  while (copy_ && copy_->error == 0 && copy_->sent_bytes < copy_->content.size_bytes &&
         sent_ - consumed_ < kDepth && allowed_bytes_ > 0)
    send_piece(*copy_);
}

void Scrubber::send_piece(Copy& copy) {
  if (copy.extent == copy.content.extents.size()) {
    copy.error = EUCLEAN;  // the catalog promised more extents
    return;
  }
  const uint64_t unit = store_.unit_bytes();
  const Extent extent = copy.content.extents[copy.extent];
  const uint64_t left = copy.content.size_bytes - copy.sent_bytes;
  const uint64_t used = std::min({left, extent.count * unit - copy.within_extent, kPieceBytes});
  const uint64_t alignment = store_.device().alignment_bytes();
  const uint64_t size = (used + alignment - 1) / alignment * alignment;
  const uint64_t number = sent_++;
  pieces_[number % kDepth] = {.used_bytes = used, .done = false, .error = 0};
  const BlockRequest request{.kind = BlockRequest::Kind::kRead,
                             .offset = extent.start * unit + copy.within_extent,
                             .memory = memory_.bytes().subspan(number % kDepth * kPieceBytes, size),
                             .tag = number};
  channel_->submit({&request, 1});
  allowed_bytes_ -= static_cast<int64_t>(size);
  copy.sent_bytes += used;
  copy.within_extent += used;
  if (copy.within_extent == extent.count * unit) {
    ++copy.extent;
    copy.within_extent = 0;
  }
}

void Scrubber::collect(std::chrono::milliseconds at_most) {
  completions_.clear();
  (void)channel_->reap(completions_, at_most);
  for (const BlockCompletion& completion : completions_) {
    Piece& piece = pieces_[completion.tag % kDepth];
    piece.done = true;
    piece.error = completion.error;
  }
  for (; consumed_ < sent_ && pieces_[consumed_ % kDepth].done; ++consumed_) {
    const Piece& piece = pieces_[consumed_ % kDepth];
    if (copy_->error == 0) copy_->error = piece.error;
    if (copy_->error == 0)
      hasher_.update(memory_.bytes().subspan(consumed_ % kDepth * kPieceBytes, piece.used_bytes));
    copy_->hashed_bytes += piece.used_bytes;
  }
}

void Scrubber::end_copy() {
  if (copy_->error == 0 && hasher_.digest() != copy_->content.checksum) copy_->error = EILSEQ;
  const bool damaged = residency_.end_verify(copy_->ino, copy_->content, copy_->error);
  const uint64_t bytes = copy_->hashed_bytes;
  copy_.reset();
  MutexLock lock(mutex_);
  if (order_ != following_) return;
  ++progress_.entries_done;
  progress_.bytes += bytes;
  if (damaged) ++progress_.damaged;
  if (left_.empty()) progress_.running = false;
}

void Scrubber::step(std::chrono::milliseconds at_most) {
  if (!take_order()) return collect(at_most);
  next_copy();
  feed();
  if (!copy_) return;
  const bool waits_for_disk = sent_ > consumed_;
  if (waits_for_disk || copy_->error == 0)
    collect(waits_for_disk ? at_most : std::min(at_most, until_allowed()));
  if (sent_ > consumed_) return;
  if (copy_->error != 0 || copy_->hashed_bytes == copy_->content.size_bytes) end_copy();
}

void Scrubber::close() {
  stop();
  (void)take_order();
}

}  // namespace kvcachefs
