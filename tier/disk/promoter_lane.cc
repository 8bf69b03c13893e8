#include <linux/falloc.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "alloc/unwritten.h"
#include "base/clock.h"
#include "base/fault_point.h"
#include "base/sys.h"
#include "tier/catalog/content_layout.h"
#include "tier/disk/promoter.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kPieceBytes = 1 << 20;
constexpr size_t kJobs = 128;  // whose bytes move
constexpr size_t kWaitingJobs = 16'384;
constexpr size_t kJobsAPause = 512;  // waiting jobs for which the next look at the memory comes 1 ms later
constexpr uint64_t kMovingBytes = uint64_t{256} << 20;
constexpr size_t kPiecesARound = 32;
// An open waits this long for the evictor; after that its bytes come from the disk.
constexpr uint64_t kReaderPatienceMs = 500;
// Nor does an open for reading wait longer where it has joined writers.
constexpr uint64_t kMostPatienceMs = 30'000;
constexpr PromoteOutcome kNoMemory = {PromoteOutcome::Kind::kNoMemory};

PromoteOutcome bad_copy(Finding finding) {
  return {PromoteOutcome::Kind::kFailed, finding};
}

// The outcome after an error of the system or of the disk.
PromoteOutcome outcome_of(int error) {
  if (error == ENOMEM || error == ENOSPC) return kNoMemory;
  return bad_copy({Finding::Kind::kUnreadable, error});
}

uint64_t padded(uint64_t bytes, uint64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

PromoterLane::PromoterLane(Promoter& promoter, std::unique_ptr<BlockChannel> channel)
    : promoter_(promoter), slots_(kDepth), channel_(std::move(channel)) {
  for (size_t slot = 0; slot < slots_.size(); ++slot) free_slots_.push_back(slot);
}

PromoterLane::~PromoterLane() = default;

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
  job.end_bytes = padded(job.offset + job.size, alignment);
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
  raise(job, next.priority);
  job.filling = has_holes(job.task.content.extents);
  job.data_bytes = data_bytes_of(job.task.content, promoter_.store_.unit_bytes());
  wait_in_order(waiting);
  job.ticket = promoter_.residency_.memory_room().ticket();
  look_at_free_memory();
  claim_memory(waiting);
}

// raise() takes note that a caller of this priority waits for the job.
void PromoterLane::raise(Job& job, int priority) {
  job.priority = priority;
  job.patience_ends_ms = now_coarse_ms() + (job.asked_for() ? kReaderPatienceMs : 0);
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

bool PromoterLane::may_move() const {
  return jobs_.size() < kJobs && moving_bytes_ < kMovingBytes;
}

void PromoterLane::look_at_free_memory() {
  free_bytes_ = promoter_.residency_.free_bytes(true);
  unpromised_bytes_ = promoter_.residency_.free_bytes(false);
}

bool PromoterLane::holds(const Job& job) const {
  return job.data_bytes <= (job.takes_promised ? free_bytes_ : unpromised_bytes_);
}

void PromoterLane::wait_in_order(Jobs::iterator job) {
  auto place = job;
  while (place != waiting_.begin() && std::prev(place)->priority < job->priority) --place;
  waiting_.splice(place, waiting_, job);
}

void PromoterLane::begin_moving(Jobs::iterator job) {
  drop_demand(*job);
  moving_bytes_ += job->data_bytes;
  job->end_bytes = padded(job->task.content.size_bytes, promoter_.store_.device().alignment_bytes());
  jobs_.splice(jobs_.end(), waiting_, job);
}

// An attempt that the free memory cannot hold would take all of it from everybody else for a moment.
void PromoterLane::claim_memory(Jobs::iterator waiting) {
  Job& job = *waiting;
  const uint64_t size = job.task.content.size_bytes;
  // Such an entry's bytes are served from the disk, which needs no memory.
  if (job.data_bytes > promoter_.residency_.memory_bytes()) return verify_instead(waiting);
  const auto allocated = size == 0     ? Result<void>()
                         : !holds(job) ? fail(ENOSPC)
                         : job.filling ? allocate(job)
                                       : sys::allocate(job.task.fd.get(), FALLOC_FL_KEEP_SIZE, 0, size);
  if (!allocated && allocated.error().code == ENOMEM) return verify_instead(waiting);
  if (!allocated && allocated.error().code == ENOSPC) return demand(job);
  if (allocated) promoter_.arriving_bytes_ += job.arriving_bytes = job.data_bytes;
  if (!allocated) {
    job.outcome = outcome_of(allocated.error().code);
  } else if (size > 0) {
    auto memory = memory_for(job);
    if (!memory && memory.error().code == ENOMEM) return verify_instead(waiting);
    if (memory)
      job.memory = std::move(*memory);
    else
      job.outcome = outcome_of(memory.error().code);
  }
  begin_moving(waiting);
  look_at_free_memory();
  if (size == 0 || job.failed()) finish(job);
}

// What all jobs demand is limited, because the evictor makes room for the whole of it at once.
void PromoterLane::demand(Job& job) {
  if (job.demand || demanded_bytes_ >= kMovingBytes) return;
  job.demand =
      std::make_unique<Room::Demand>(promoter_.residency_.memory_room(), job.whose(), job.data_bytes);
  demanded_bytes_ += job.data_bytes;
  promoter_.residency_.wake_evictor();
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
  auto memory = Mapping::of_memory(std::min(kPieceBytes, job.task.content.size_bytes));
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
  const bool nothing_to_evict =
      Room::answer(job.whose(), std::exchange(job.ticket, now), now) == Room::Answer::kNothingToEvict;
  // Because only memory can serve a writer, its entry takes memory that is promised to others, as any
  // writer does, and waits for them to close.
  job.takes_promised = nothing_to_evict && job.whose() == Room::Whose::kWriter;
  if (may_move() && holds(job)) return claim_memory(waiting);
  if (!holds(job) && now_coarse_ms() > job.gives_up_ms) {
    job.abandoned = !promoter_.give_up(job.task.ino, now_coarse_ms());
    take_patience(job);
  }
  const bool over = (nothing_to_evict && !job.takes_promised) || now_coarse_ms() > job.patience_ends_ms;
  if (over && (may_move() || !job.verified_instead())) return verify_instead(waiting);
  demand(job);
}

uint64_t PromoterLane::room_pause_ms() const {
  return 1 + waiting_.size() / kJobsAPause;
}

void PromoterLane::poll_room() {
  if (waiting_.empty() || now_ns() - polled_ns_ < room_pause_ms() * 1'000'000) return;
  polled_ns_ = now_ns();
  const uint64_t joins = promoter_.joins();
  const bool joined = std::exchange(joins_seen_, joins) != joins;
  const Room::Ticket now = promoter_.residency_.memory_room().ticket();
  look_at_free_memory();
  for (auto job = waiting_.begin(); job != waiting_.end();) poll_waiting(job++, now, joined);
  if (!waiting_.empty()) promoter_.residency_.wake_evictor();
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
  promoter_.done(ended.task.ino, outcome, ended.priority);
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
