#include "tier/disk/scrubber.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace kvcachefs {

constexpr uint64_t kPieceBytes = 256 << 10;
// The most that may be read at once after a pause: a tenth of a second's worth, and at least one piece.
constexpr uint64_t kBurstShare = 10;
constexpr uint64_t kMostBytesPerSecond = uint64_t{1} << 40;
constexpr uint64_t kNsPerSecond = 1'000'000'000;
// On a working disk, unreadable places are some in a million.
constexpr unsigned kErrorsInARow = 4;

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
  auto verifier = ContentVerifier::make(*channel_, {.unit_bytes = store_.unit_bytes(),
                                                    .alignment_bytes = store_.device().alignment_bytes(),
                                                    .piece_bytes = kPieceBytes,
                                                    .depth = kDepth});
  if (!verifier) {
    log_error("no memory to scrub with");
    stop();
    return false;
  }
  verifier_ = std::move(*verifier);
  left_ = residency_.copied_entries();
  errors_in_a_row_ = 0;
  allowed_bytes_ = 0;
  refilled_ns_ = now_ns();
  MutexLock lock(mutex_);
  if (order_ != following_) return true;
  progress_.entries_total = left_.size();
  if (left_.empty()) progress_.running = false;
  return !left_.empty();
}

// abandon() gives up the copies of an order that is no longer followed.
void Scrubber::abandon() {
  verifier_.reset();
  if (copy_) (void)residency_.end_verify(copy_->ino, copy_->content, {});
  copy_.reset();
  left_.clear();
}

void Scrubber::next_copy() {
  while (!copy_ && !left_.empty()) {
    const uint64_t ino = left_.back();
    left_.pop_back();
    if (auto content = residency_.begin_verify(ino)) {
      copy_ = {ino, std::move(*content)};
      const CatalogContent& read = copy_->content;
      return verifier_->begin({ino, read.size_bytes, read.checksum, read.extents});
    }
    // The entry has gone, or was written again, after it was listed: the disk has no copy of it to verify.
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

void Scrubber::end_copy(const ContentVerifier::Verdict& verdict) {
  const bool damaged = residency_.end_verify(copy_->ino, copy_->content, verdict.finding);
  copy_.reset();
  const bool unreadable = verdict.finding.kind == Finding::Kind::kUnreadable;
  errors_in_a_row_ = unreadable ? errors_in_a_row_ + 1 : 0;
  const bool gives_up = errors_in_a_row_ == kErrorsInARow;
  if (gives_up) {
    log_error("a scrub is given up after {} entries in a row that could not be read", errors_in_a_row_);
    left_.clear();
  }
  MutexLock lock(mutex_);
  if (order_ != following_) return;
  ++progress_.entries_done;
  if (damaged) ++progress_.damaged;
  if (unreadable) ++progress_.unreadable;
  if (!unreadable) progress_.bytes += verdict.read_bytes;
  progress_.stopped_by_errors = gives_up;
  if (left_.empty()) progress_.running = false;
}

void Scrubber::step(std::chrono::milliseconds at_most) {
  if (!take_order()) {
    std::vector<BlockCompletion> none;
    (void)channel_->reap(none, at_most);
    return;
  }
  next_copy();
  if (!copy_) return;
  refill();
  while (verifier_->sending() && verifier_->has_room() && allowed_bytes_ > 0)
    allowed_bytes_ -= static_cast<int64_t>(verifier_->send_piece());
  verifier_->collect(verifier_->in_flight() ? at_most : std::min(at_most, until_allowed()));
  if (auto verdict = verifier_->next_verdict()) end_copy(*verdict);
}

void Scrubber::close() {
  stop();
  (void)take_order();
}

}  // namespace kvcachefs
