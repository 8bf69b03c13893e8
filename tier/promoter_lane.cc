#include <linux/falloc.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "base/sys.h"
#include "tier/promoter.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kPieceBytes = 1 << 20;
constexpr size_t kJobs = 128;
constexpr uint64_t kMovingBytes = uint64_t{256} << 20;
constexpr size_t kPiecesARound = 32;
// An open waits so long for the evictor; after that its bytes come from the disk.
constexpr uint64_t kRoomPatienceMs = 500;
constexpr auto kRoomPause = std::chrono::milliseconds(1);

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
  while (jobs_.size() < kJobs && moving_bytes_ < kMovingBytes) {
    auto next = promoter_.next();
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
    job.error = memory.error().code;
    return finish(job);
  }
  job.memory = std::move(*memory);
}

void PromoterLane::start(Promoter::Next next) {
  auto task = promoter_.residency_.begin_promote(next.ino);
  if (!task) return promoter_.done(next.ino, {});  // it is in memory, or gone: who waits looks again
  Job& job = jobs_.emplace_back();
  job.task = std::move(*task);
  job.asked_for = next.asked_for;
  job.patience_ends_ms = now_coarse_ms() + (next.asked_for ? kRoomPatienceMs : 0);
  moving_bytes_ += job.task.content.size_bytes;
  claim_memory(job);
}

void PromoterLane::claim_memory(Job& job) {
  const uint64_t size = job.task.content.size_bytes;
  Room& room = promoter_.residency_.memory_room();
  job.ticket = room.ticket();
  const auto allocated =
      size > 0 ? sys::allocate(job.task.fd.get(), FALLOC_FL_KEEP_SIZE, 0, size) : Result<void>();
  // Its bytes are read from the disk then, which needs none.
  const bool hopeless =
      !allocated && (allocated.error().code == ENOMEM || size > promoter_.residency_.memory_bytes());
  if (hopeless) return verify_instead(job);
  if (!allocated && allocated.error().code == ENOSPC) {
    if (!job.demand) job.demand = std::make_unique<Room::Demand>(room, Room::Whose::kPromotion, size);
    if (now_coarse_ms() > job.patience_ends_ms) return verify_instead(job);
    promoter_.residency_.wake_evictor();
    return;
  }
  job.demand.reset();
  job.end_bytes = padded(size, promoter_.store_.device().alignment_bytes());
  if (!allocated) {
    job.error = allocated.error().code;
  } else if (size > 0) {
    auto memory = memory_for(job);
    if (!memory && memory.error().code == ENOMEM) return verify_instead(job);
    if (memory)
      job.memory = std::move(*memory);
    else
      job.error = memory.error().code;
  }
  if (size == 0 || job.error != 0) finish(job);
}

Result<Mapping> PromoterLane::memory_for(Job& job) {
  const uint64_t size = job.task.content.size_bytes;
  job.buffered = size <= kBufferedBytesMax;
  if (!job.buffered) return Mapping::of_file(job.task.fd.get(), size, Mapping::Access::kWrite);
  if (buffers_.empty()) return Mapping::of_memory(kBufferedBytesMax);
  Mapping buffer = std::move(buffers_.back());
  buffers_.pop_back();
  return buffer;
}

void PromoterLane::verify_instead(Job& job) {
  job.demand.reset();
  const bool waited_for = job.asked_for || promoter_.asked_for(job.task.ino);
  auto memory = Mapping::of_memory(std::min(kPieceBytes, job.task.content.size_bytes));
  if (!waited_for || !memory) {
    job.error = memory ? ENOSPC : ENOMEM;
    return finish(job);
  }
  job.buffered = false;
  job.memory = std::move(*memory);
  job.verifying = true;
  job.end_bytes = padded(job.task.content.size_bytes, promoter_.store_.device().alignment_bytes());
}

void PromoterLane::poll_room() {
  Room& room = promoter_.residency_.memory_room();
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    auto next = std::next(job);
    if (job->demand) {
      if (room.wait(Room::Whose::kPromotion, job->ticket, std::chrono::milliseconds(0)) ==
          Room::Answer::kNothingToEvict)
        verify_instead(*job);
      else
        claim_memory(*job);
    }
    job = next;
  }
}

BlockRequest PromoterLane::request_for(const Job& job, uint64_t at, uint64_t size, size_t slot) const {
  const uint64_t unit = promoter_.store_.unit_bytes();
  uint64_t within = at;
  for (const Extent& extent : job.task.content.extents) {
    const uint64_t extent_bytes = extent.count * unit;
    if (within >= extent_bytes) {
      within -= extent_bytes;
      continue;
    }
    const uint64_t from = job.verifying ? 0 : at - job.begin_bytes;
    return {.kind = BlockRequest::Kind::kRead,
            .offset = extent.start * unit + within,
            .memory = job.memory.bytes().subspan(from, std::min(size, extent_bytes - within)),
            .tag = slot};
  }
  return {};
}

bool PromoterLane::send_piece(Job& job) {
  if (free_slots_.empty()) return false;
  const size_t slot = free_slots_.back();
  const BlockRequest request =
      request_for(job, job.sent_bytes, std::min(kPieceBytes, job.end_bytes - job.sent_bytes), slot);
  if (request.memory.empty()) {
    job.error = EUCLEAN;  // the catalog promised more extents
    return true;
  }
  free_slots_.pop_back();
  slots_[slot] = &job;
  sending_.push_back(request);
  ++job.flying;
  job.sent_bytes += request.memory.size();
  return true;
}

bool PromoterLane::feed() {
  bool stuck = false;
  for (Job& job : jobs_) {
    if (job.demand) continue;
    while (job.error == 0 && job.sent_bytes < job.end_bytes && sending_.size() < kPiecesARound && !stuck &&
           !(job.verifying && job.flying > 0))
      stuck = !send_piece(job);
  }
  const bool more = sending_.size() == kPiecesARound && !stuck;
  channel_->submit(sending_);
  sending_.clear();
  return more;
}

void PromoterLane::advance(Job& job) {
  if (!job.verifying || job.flying > 0 || job.error != 0) return;
  const uint64_t before = job.begin_bytes;  // what has been hashed
  const uint64_t hashed_end = std::min(job.sent_bytes, job.task.content.size_bytes);
  job.hasher.update(job.memory.bytes().first(hashed_end - before));
  job.begin_bytes = job.sent_bytes;
}

void PromoterLane::collect(std::chrono::milliseconds at_most) {
  completions_.clear();
  (void)channel_->reap(completions_, at_most);
  for (const BlockCompletion& completion : completions_) {
    Job& job = *slots_[completion.tag];
    free_slots_.push_back(completion.tag);
    --job.flying;
    if (completion.error != 0) job.error = completion.error;
    advance(job);
  }
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    auto next = std::next(job);
    if (!job->demand && job->flying == 0 && (job->error != 0 || job->sent_bytes >= job->end_bytes))
      finish(*job);
    job = next;
  }
}

// What has been read is the entry's, or is not.
Result<void> PromoterLane::judge(Job& job) {
  const CatalogContent& content = job.task.content;
  if (job.error != 0) return fail(job.error);
  if (job.verifying) return fail(job.hasher.digest() == content.checksum ? kIntactOnDisk : EILSEQ);
  if (content.size_bytes == 0) return {};
  const std::span<std::byte> bytes = job.memory.bytes().first(content.size_bytes);
  if (checksum_of(bytes) != content.checksum) return fail(EILSEQ);
  if (!job.buffered) {
    // What fills the last block up has no checksum, and a file that grows shows it.
    std::ranges::fill(job.memory.bytes().subspan(content.size_bytes), std::byte{0});
    return {};
  }
  // Its pages are there: it has no reason to come short.
  const std::span<const char> chars(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  auto written = sys::write_at(job.task.fd.get(), chars, 0);
  return written && *written == bytes.size() ? Result<void>() : fail(ENOSPC);
}

void PromoterLane::finish(Job& job) {
  Job ended = std::move(job);
  std::erase_if(jobs_, [&](const Job& other) { return &other == &job; });
  if (ended.reader) {
    if (ended.error != 0) return ended.reader(fail(is_disk_error(ended.error) ? EIO : ended.error));
    if (ended.size == 0) return ended.reader(std::span<const std::byte>());
    return ended.reader(ended.memory.bytes().subspan(ended.offset - ended.begin_bytes, ended.size));
  }
  moving_bytes_ -= ended.task.content.size_bytes;
  const Result<void> outcome = judge(ended);
  // An eviction that follows at once must not meet it.
  Mapping memory = std::move(ended.memory);
  if (ended.buffered && memory) buffers_.push_back(std::move(memory));
  memory = Mapping();
  ended.demand.reset();
  promoter_.residency_.end_promote(ended.task, outcome,
                                   ended.asked_for || promoter_.asked_for(ended.task.ino));
  ended.task.fd.reset();
  promoter_.done(ended.task.ino, outcome);
}

void PromoterLane::step(std::chrono::milliseconds at_most) {
  start_jobs();
  poll_room();
  const bool more = feed();
  const bool waiting = std::ranges::any_of(jobs_, [](const Job& job) { return job.demand != nullptr; });
  collect(more ? std::chrono::milliseconds(0) : waiting ? std::min(at_most, kRoomPause) : at_most);
}

// The jobs stay: their memory is the disk's until the channel goes.
void PromoterLane::close() {
  for (Job& job : jobs_)
    if (auto reader = std::exchange(job.reader, {})) reader(fail(ESHUTDOWN));
}

}  // namespace kvcachefs
