// How the jobs of a promoter lane wait for memory.
#include <linux/falloc.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "alloc/unwritten.h"
#include "base/clock.h"
#include "base/sys.h"
#include "tier/catalog/content_layout.h"
#include "tier/disk/promoter.h"

namespace kvcachefs {
namespace {

constexpr size_t kJobsAPause = 512;  // waiting jobs for which the next look at the memory comes 1 ms later
// An open waits this long for the evictor; after that its bytes come from the disk. An ordered entry waits
// until the evictor has made no room for this long.
constexpr uint64_t kReaderPatienceMs = 500;
// Neither an open for reading that has joined writers nor an ordered entry waits longer than this.
constexpr uint64_t kMostPatienceMs = 30'000;

}  // namespace

// raise() takes note that a caller of this priority waits for the job.
void PromoterLane::raise(Job& job, int priority) {
  job.priority = priority;
  job.patience_ends_ms = now_coarse_ms() + (job.asked_for() || job.ordered ? kReaderPatienceMs : 0);
  drop_demand(job);
  take_patience(job);
}

// Because the disk cannot serve a writer, its caller says how long it waits.
void PromoterLane::take_patience(Job& job) {
  if (job.whose() != Room::Whose::kWriter) return;
  const Promoter::Patience patience = promoter_.patience_of(job.task.ino);
  job.gives_up_ms = patience.first_ends_ms;
  job.patience_ends_ms = std::min(patience.last_ends_ms, job.begun_ms + kMostPatienceMs);
}

// allocate() gets memory for all of the content's data, or for none.
Result<void> PromoterLane::allocate(const Job& job) const {
  const uint64_t size = job.task.content.size_bytes;
  uint64_t begin = 0;
  for (const Extent& extent : job.task.content.extents) {
    const uint64_t end = std::min(size, begin + extent.count * promoter_.store_.unit_bytes());
    if (begin == end) break;
    const auto allocated = is_hole(extent)
                               ? Result<void>()
                               : sys::allocate(job.task.fd.get(), FALLOC_FL_KEEP_SIZE, begin, end - begin);
    if (!allocated) {
      if (begin > 0)
        (void)sys::allocate(job.task.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, begin);
      return allocated;
    }
    begin = end;
  }
  // Each piece of data that came in a large page would take many times its size.
  begin = 0;
  for (const Extent& extent : job.task.content.extents) {
    const uint64_t end = std::min(size, begin + extent.count * promoter_.store_.unit_bytes());
    if (is_hole(extent) && begin < end) keep_hole(job.task.fd.get(), begin, end);
    begin = end;
  }
  return {};
}

void PromoterLane::look_at_free_memory() {
  free_bytes_ = promoter_.residency_.free_bytes(true);
  unpromised_bytes_ = promoter_.residency_.free_bytes(false);
  kept_from_orders_bytes_ = promoter_.residency_.kept_from_orders_bytes();
}

bool PromoterLane::holds(const Job& job) const {
  if (job.is_order())
    return job.data_bytes + kept_from_orders_bytes_ <= unpromised_bytes_ &&
           promoter_.turn_of(job.task.ino) == Promoter::Turn::kTake;
  return job.data_bytes <= (job.takes_promised ? free_bytes_ : unpromised_bytes_);
}

void PromoterLane::wait_in_order(Jobs::iterator job) {
  auto place = job;
  while (place != waiting_.begin() && std::prev(place)->priority < job->priority) --place;
  waiting_.splice(place, waiting_, job);
}

// Nothing is allocated for an entry that the free memory cannot hold: the attempt would leave no memory to
// other calls for a moment. False: the job still waits.
bool PromoterLane::claim_memory(Jobs::iterator waiting) {
  Job& job = *waiting;
  if (job.task.stays_on_disk) {
    verify_instead(waiting);
    return true;
  }
  const uint64_t size = job.task.content.size_bytes;
  const auto allocated = size == 0     ? Result<void>()
                         : !holds(job) ? fail(ENOSPC)
                         : job.filling ? allocate(job)
                                       : sys::allocate(job.task.fd.get(), FALLOC_FL_KEEP_SIZE, 0, size);
  // An entry that is larger than the pool is served from the disk, which needs no memory.
  const bool too_large = job.data_bytes > promoter_.residency_.memory_bytes();
  if (too_large || (!allocated && allocated.error().code == ENOMEM)) {
    verify_instead(waiting);
    return true;
  }
  if (!allocated && allocated.error().code == ENOSPC) {
    demand(job);
    return false;
  }
  if (allocated) promoter_.arriving_bytes_ += job.arriving_bytes = job.data_bytes;
  if (!allocated) {
    job.outcome = outcome_of(allocated.error().code);
  } else if (size > 0) {
    auto memory = memory_for(job);
    if (!memory && memory.error().code == ENOMEM) {
      verify_instead(waiting);
      return true;
    }
    if (memory)
      job.memory = std::move(*memory);
    else
      job.outcome = outcome_of(memory.error().code);
  }
  begin_moving(waiting);
  look_at_free_memory();
  if (size == 0 || job.failed()) finish(job);
  return true;
}

// The demands of all jobs together are limited, because the evictor makes room for all of them at once.
void PromoterLane::demand(Job& job) {
  if (job.is_order()) {
    promoter_.lacks_memory(job.task.ino);
    if (is_of_one_over(job)) return;  // the evictor might evict entries of the same order for it
  }
  if (job.demand || demanded_bytes_ >= kMovingBytes) return;
  job.demand =
      std::make_unique<Room::Demand>(promoter_.residency_.memory_room(), demands_as(job), job.data_bytes);
  demanded_bytes_ += job.data_bytes;
  promoter_.residency_.wake_evictor();
}

Room::Whose PromoterLane::demands_as(const Job& job) const {
  return is_of_one_over(job) ? Room::Whose::kOver : job.whose();
}

void PromoterLane::drop_demand(Job& job) {
  if (job.demand) demanded_bytes_ -= job.data_bytes;
  job.demand.reset();
}

Result<Mapping> PromoterLane::memory_for(Job& job) {
  const uint64_t size = job.task.content.size_bytes;
  if (job.filling) return Mapping::of_memory(std::min(kPieceBytes, size));
  job.buffered = size <= kBufferedBytesMax;
  if (!job.buffered) return Mapping::of_file(job.task.fd.get(), size, Mapping::Access::kWrite);
  if (buffers_.empty()) return Mapping::of_memory(kBufferedBytesMax);
  Mapping buffer = std::move(buffers_.back());
  buffers_.pop_back();
  return buffer;
}

void PromoterLane::verify_instead(Jobs::iterator waiting) {
  Job& job = *waiting;
  begin_moving(waiting);
  auto memory = Mapping::of_memory(std::clamp<uint64_t>(job.task.content.size_bytes, 1, kPieceBytes));
  if (!job.verified_instead() || !memory) {
    job.outcome = kNoMemory;
    return finish(job);
  }
  job.buffered = job.filling = false;
  job.memory = std::move(*memory);
  job.verifying = true;
}

void PromoterLane::poll_waiting(Jobs::iterator waiting, const Room::Ticket& now, bool joined) {
  Job& job = *waiting;
  // A client's open or truncation may have joined a prefetch.
  if (const int priority = joined ? promoter_.priority_of(job.task.ino) : job.priority;
      priority > job.priority) {
    raise(job, priority);
    wait_in_order(waiting);
  } else if (joined) {
    take_patience(job);
  }
  const Promoter::Turn turn = job.is_order() ? promoter_.turn_of(job.task.ino) : Promoter::Turn::kTake;
  if (turn == Promoter::Turn::kDropped) return verify_instead(waiting);
  const uint64_t most_patience_ends_ms = job.begun_ms + kMostPatienceMs;
  if (job.is_order() && (turn == Promoter::Turn::kWait || now.made != job.ticket.made))
    job.patience_ends_ms = std::min(now_coarse_ms() + kReaderPatienceMs, most_patience_ends_ms);
  const bool nothing_to_evict =
      Room::answer(demands_as(job), std::exchange(job.ticket, now), now) == Room::Answer::kNothingToEvict;
  // Because only memory can serve a writer, its entry takes memory that is promised to others, as any
  // writer does, and waits for them to close.
  job.takes_promised = nothing_to_evict && job.whose() == Room::Whose::kWriter;
  // Not all that looks free can be had (Capacity::kCountingSlackBytes).
  const bool tries = may_move() && holds(job);
  if (tries && claim_memory(waiting)) return;
  if ((tries || !holds(job)) && now_coarse_ms() > job.gives_up_ms) {
    job.abandoned = !promoter_.give_up(job.task.ino, now_coarse_ms());
    take_patience(job);
  }
  const bool waits_to_move = job.is_order() && holds(job);
  const bool is_one_over = job.is_order() && is_of_one_over(job);
  const bool over =
      (nothing_to_evict && !job.takes_promised) || now_coarse_ms() > job.patience_ends_ms || is_one_over;
  if (turn == Promoter::Turn::kTake && over && !waits_to_move && (may_move() || !job.verified_instead())) {
    if (job.is_order() && !is_one_over) promoter_.drop_behind(job.task.ino);
    return verify_instead(waiting);
  }
  order_lacks_ |= job.is_order() && turn == Promoter::Turn::kTake;
  demand(job);
}

uint64_t PromoterLane::room_pause_ms() const {
  return 1 + waiting_.size() / kJobsAPause;
}

void PromoterLane::poll_room() {
  if (waiting_.empty()) kept_demand_.reset();
  if (waiting_.empty() || now_ns() - polled_ns_ < room_pause_ms() * 1'000'000) return;
  polled_ns_ = now_ns();
  const uint64_t joins = promoter_.joins();
  const bool joined = std::exchange(joins_seen_, joins) != joins;
  const Room::Ticket now = promoter_.residency_.memory_room().ticket();
  look_at_free_memory();
  for (auto job = waiting_.begin(); job != waiting_.end();) poll_waiting(job++, now, joined);
  // This demand has the evictor make room beyond the memory that orders leave free.
  kept_demand_.reset();
  if (std::exchange(order_lacks_, false))
    kept_demand_ = std::make_unique<Room::Demand>(promoter_.residency_.memory_room(), Room::Whose::kPromotion,
                                                  kept_from_orders_bytes_);
  if (!waiting_.empty()) promoter_.residency_.wake_evictor();
}

}  // namespace kvcachefs
