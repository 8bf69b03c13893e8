#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/fault_point.h"
#include "base/sys.h"
#include "tier/blocks.h"
#include "tier/catalog/content_layout.h"
#include "tier/disk/promoter.h"

namespace kvcachefs {
namespace {

constexpr size_t kJobs = 128;  // whose bytes move
constexpr size_t kWaitingJobs = 16'384;
constexpr size_t kPiecesARound = 32;

PromoteOutcome bad_copy(Finding finding) {
  return {PromoteOutcome::Kind::kFailed, finding};
}

}  // namespace

PromoterLane::PromoterLane(Promoter& promoter, std::unique_ptr<BlockChannel> channel)
    : promoter_(promoter), slots_(kDepth), channel_(std::move(channel)) {
  for (size_t slot = 0; slot < slots_.size(); ++slot) free_slots_.push_back(slot);
}

// The outcome after an error of the system or of the disk.
PromoteOutcome PromoterLane::outcome_of(int error) {
  if (error == ENOMEM || error == ENOSPC) return kNoMemory;
  return bad_copy({Finding::Kind::kUnreadable, error});
}

void PromoterLane::start_jobs() {
  while (auto read = promoter_.next_read()) start_read(std::move(*read));
  while (may_move() && waiting_.size() < kWaitingJobs) {
    // A prefetch can wait in its queue.
    const bool crowded = waiting_.size() >= kJobs || demanded_bytes_ >= kMovingBytes;
    auto next = promoter_.next(crowded ? Promoter::kOpenPriority : INT32_MIN);
    if (!next) return;
    start(*next);
  }
}

void PromoterLane::start_read(Promoter::Read read) {
  const uint64_t alignment = promoter_.store_.device().alignment_bytes();
  Job& job = jobs_.emplace_back();
  job.reader = std::move(read.waiter);
  job.offset = read.offset;
  job.size = read.offset < read.content.size_bytes
                 ? std::min<uint64_t>(read.size, read.content.size_bytes - read.offset)
                 : 0;
  job.task.content = std::move(read.content);
  job.begin_bytes = job.sent_bytes = read.offset / alignment * alignment;
  job.end_bytes = rounded_up(job.offset + job.size, alignment);
  if (job.size == 0) return finish(job);
  auto memory = Mapping::of_memory(job.end_bytes - job.begin_bytes);
  if (!memory) {
    job.outcome = kNoMemory;
    return finish(job);
  }
  job.memory = std::move(*memory);
}

void PromoterLane::start(Promoter::Next next) {
  auto task = promoter_.residency_.begin_promote(next.ino);
  if (!task) return promoter_.done(next.ino, outcome_of(task.error().code), next.priority);
  if (!*task) return promoter_.done(next.ino, {}, next.priority);  // the waiter looks at the entry again
  const auto waiting = waiting_.emplace(waiting_.end());
  Job& job = *waiting;
  job.task = std::move(**task);
  job.ordered = next.ordered;
  raise(job, next.priority);
  job.filling = has_holes(job.task.content.extents);
  job.data_bytes = data_bytes_of(job.task.content, promoter_.store_.unit_bytes());
  wait_in_order(waiting);
  job.ticket = promoter_.residency_.memory_room().ticket();
  look_at_free_memory();
  claim_memory(waiting);
}

bool PromoterLane::may_move() const {
  return jobs_.size() < kJobs && moving_bytes_ < kMovingBytes;
}

void PromoterLane::begin_moving(Jobs::iterator job) {
  drop_demand(*job);
  if (job->ordered) {
    kept_demand_.reset();  // poll_room() makes it again if an order still lacks memory
    promoter_.has_memory(job->task.ino);
  }
  moving_bytes_ += job->data_bytes;
  job->end_bytes = rounded_up(job->task.content.size_bytes, promoter_.store_.device().alignment_bytes());
  jobs_.splice(jobs_.end(), waiting_, job);
}

PromoterLane::Place PromoterLane::place_of(const Job& job, uint64_t at) const {
  for (const Extent& extent : job.task.content.extents) {
    const uint64_t extent_bytes = extent.count * promoter_.store_.unit_bytes();
    if (at < extent_bytes) return {&extent, at};
    at -= extent_bytes;
  }
  return {};
}

// A hole needs no read: a reader's memory has zeros there, and a file has a hole.
void PromoterLane::pass_hole(Job& job, const Extent& hole, uint64_t within) {
  if (job.piecewise()) hash_hole(job.hasher, hole.count);
  const uint64_t left = job.end_bytes - job.sent_bytes;
  job.sent_bytes += std::min(left, hole.count * promoter_.store_.unit_bytes() - within);
  if (job.piecewise()) job.begin_bytes = job.sent_bytes;
  passed_hole_ = true;
}

bool PromoterLane::send_piece(Job& job) {
  const Place place = place_of(job, job.sent_bytes);
  if (place.extent == nullptr) {
    job.outcome = bad_copy({Finding::Kind::kTooFewExtents});
    return true;
  }
  if (is_hole(*place.extent)) {
    pass_hole(job, *place.extent, place.within);
    return true;
  }
  if (free_slots_.empty()) return false;
  const size_t slot = free_slots_.back();
  const uint64_t unit = promoter_.store_.unit_bytes();
  const uint64_t size =
      std::min({kPieceBytes, job.end_bytes - job.sent_bytes, place.extent->count * unit - place.within});
  const uint64_t from = job.piecewise() ? 0 : job.sent_bytes - job.begin_bytes;
  free_slots_.pop_back();
  slots_[slot] = &job;
  sending_.push_back({.kind = BlockRequest::Kind::kRead,
                      .offset = place.extent->start * unit + place.within,
                      .memory = job.memory.bytes().subspan(from, size),
                      .tag = slot});
  ++job.flying;
  job.sent_bytes += size;
  return true;
}

bool PromoterLane::feed() {
  bool stuck = false;
  for (Job& job : jobs_) {
    while (!job.failed() && job.sent_bytes < job.end_bytes && sending_.size() < kPiecesARound && !stuck &&
           !(job.piecewise() && job.flying > 0))
      stuck = !send_piece(job);
  }
  const bool more = std::exchange(passed_hole_, false) || (sending_.size() == kPiecesARound && !stuck);
  channel_->submit(sending_);
  sending_.clear();
  return more;
}

void PromoterLane::advance(Job& job) {
  if (!job.piecewise() || job.flying > 0 || job.failed()) return;
  const uint64_t before = job.begin_bytes;  // how far the job has been hashed
  const uint64_t hashed_end = std::min(job.sent_bytes, job.task.content.size_bytes);
  const std::span<const std::byte> piece = job.memory.bytes().first(hashed_end - before);
  job.hasher.update(piece);
  job.begin_bytes = job.sent_bytes;
  if (!job.filling) return;
  // The file's pages are allocated, so the write has no reason to come short.
  const auto written =
      sys::write_at(job.task.fd.get(), {reinterpret_cast<const char*>(piece.data()), piece.size()}, before);
  if (!written || *written < piece.size()) job.outcome = kNoMemory;
}

void PromoterLane::collect(std::chrono::milliseconds at_most) {
  completions_.clear();
  (void)channel_->reap(completions_, at_most);
  for (const BlockCompletion& completion : completions_) {
    Job& job = *slots_[completion.tag];
    free_slots_.push_back(completion.tag);
    --job.flying;
    if (completion.error != 0) job.outcome = outcome_of(completion.error);
    advance(job);
  }
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    auto next = std::next(job);
    if (job->flying == 0 && (job->failed() || job->sent_bytes >= job->end_bytes)) finish(*job);
    job = next;
  }
}

// judge() decides whether the bytes read are the entry's.
PromoteOutcome PromoterLane::judge(Job& job) {
  const CatalogContent& content = job.task.content;
  const PromoteOutcome wrong_bytes = bad_copy({Finding::Kind::kWrongBytes});
  if (job.failed()) return job.outcome;
  if (job.piecewise() && job.hasher.digest() != content.checksum) return wrong_bytes;
  if (job.verifying) return {PromoteOutcome::Kind::kIntactOnDisk};
  if (job.filling) return {};
  if (content.size_bytes == 0) return {};
  const std::span<std::byte> bytes = job.memory.bytes().first(content.size_bytes);
  if (checksum_of(bytes) != content.checksum) return wrong_bytes;
  if (!job.buffered) {
    // The padding of the last block has no checksum, and would appear in a file that grows.
    std::ranges::fill(job.memory.bytes().subspan(content.size_bytes), std::byte{0});
    return {};
  }
  // The file's pages are allocated, so the write has no reason to come short.
  const std::span<const char> chars(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  auto written = sys::write_at(job.task.fd.get(), chars, 0);
  return written && *written == bytes.size() ? PromoteOutcome() : kNoMemory;
}

void PromoterLane::finish(Job& job) {
  Job ended = std::move(job);
  std::erase_if(jobs_, [&](const Job& other) { return &other == &job; });
  if (ended.reader) {
    if (ended.failed()) return ended.reader(fail(ended.outcome.lacks_memory() ? ENOMEM : EIO));
    if (ended.size == 0) return ended.reader(std::span<const std::byte>());
    return ended.reader(ended.memory.bytes().subspan(ended.offset - ended.begin_bytes, ended.size));
  }
  moving_bytes_ -= ended.data_bytes;
  const PromoteOutcome outcome = judge(ended);
  // The mapping ends here, because an eviction that follows at once must not find it.
  Mapping memory = std::move(ended.memory);
  if (ended.buffered && memory) buffers_.push_back(std::move(memory));
  memory = Mapping();
  const bool asked_for = promoter_.priority_of(ended.task.ino) >= Promoter::kOpenPriority;
  promoter_.residency_.end_promote(ended.task, outcome, asked_for);
  ended.task.fd.reset();
  fault_point("promotion ended");
  // A damaged entry that stays is no miss.
  const bool stays = ended.task.stays_on_disk && outcome.finding.is_damage();
  promoter_.done(ended.task.ino, stays ? outcome_of(EIO) : outcome, ended.priority);
  promoter_.residency_.waiters_told(ended.task.ino);
  // The bytes count as arriving until here: an evictor that finds none arriving looks for them among what can
  // leave.
  promoter_.arriving_bytes_ -= ended.arriving_bytes;
}

void PromoterLane::step(std::chrono::milliseconds at_most) {
  start_jobs();
  poll_room();
  const bool more = feed();
  const auto pause = std::chrono::milliseconds(room_pause_ms());
  collect(more ? std::chrono::milliseconds(0) : waiting_.empty() ? at_most : std::min(at_most, pause));
}

// The jobs stay, because the disk may use their memory until the channel is destroyed.
void PromoterLane::close() {
  for (Job& job : jobs_)
    if (auto reader = std::exchange(job.reader, {})) reader(fail(ESHUTDOWN));
}

}  // namespace kvcachefs
