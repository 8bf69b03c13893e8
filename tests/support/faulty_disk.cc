#include "tests/support/faulty_disk.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "base/check.h"
#include "tests/support/faulty_channel.h"

namespace kvcachefs::test {
namespace {

constexpr uint64_t kSectorBytes = 512;
// The salt keeps the random numbers of a crash apart from those of the run before the crash.
constexpr uint64_t kCrashSalt = 0x6372617368u;

// A copy of the bytes as the kernel would read them; none if the mapped file was truncated meanwhile.
std::optional<std::vector<std::byte>> bytes_of(std::span<const std::byte> memory) {
  std::vector<std::byte> bytes(memory.size());
  const iovec to{bytes.data(), bytes.size()};
  const iovec from{const_cast<std::byte*>(memory.data()), memory.size()};
  if (::process_vm_readv(::getpid(), &to, 1, &from, 1, 0) != static_cast<ssize_t>(bytes.size()))
    return std::nullopt;
  return bytes;
}

}  // namespace

FaultyDisk::FaultyDisk(const FaultyDiskOptions& options)
    : options_(options), random_(options.seed), odds_(options.odds) {
  KVCACHEFS_CHECK(options.size_bytes % options.alignment_bytes == 0);
  KVCACHEFS_CHECK(options.alignment_bytes % kSectorBytes == 0);
}

FaultyDisk::~FaultyDisk() = default;

Result<std::unique_ptr<BlockChannel>> FaultyDisk::channel(unsigned depth) {
  auto made = std::make_unique<FaultyChannel>(*this, std::max(depth, 1u));
  MutexLock lock(mutex_);
  channels_.insert(made.get());
  return made;
}

bool FaultyDisk::draw(uint32_t one_in) {
  return one_in != 0 && random_.one_in(one_in);
}

int FaultyDisk::fault(Planned& planned, uint32_t one_in) {
  int error = 0;
  if (planned.count > 0) {
    --planned.count;
    error = planned.error;
  } else if (draw(one_in)) {
    error = EIO;
  }
  if (error != 0) ++counts_.errors;
  return error;
}

// cut() counts a write or flush; true if the disk is to die at this one.
bool FaultyDisk::cut() {
  return ++operations_ == cut_at_;
}

int FaultyDisk::carry_out(const BlockRequest& request) {
  if (dead_) return EIO;
  return request.kind == BlockRequest::Kind::kRead ? read(request) : write(request);
}

int FaultyDisk::read(const BlockRequest& request) {
  ++counts_.reads;
  counts_.read_bytes += request.memory.size();
  if (const int error = fault(planned_reads_, odds_.read_error); error != 0) return error;
  for (const Range& place : bad_places_) {
    if (!place.meets(request.offset, request.memory.size())) continue;
    ++counts_.errors;
    return EIO;
  }
  if (draw(odds_.rot)) flip(request.offset, request.memory.size());
  get(request.offset, request.memory);
  return 0;
}

int FaultyDisk::write(const BlockRequest& request) {
  ++counts_.writes;
  counts_.written_bytes += request.memory.size();
  if (cut()) {
    die();
    return EIO;
  }
  int error = fault(planned_writes_, odds_.write_error);
  if (error == 0 && (full_ || draw(odds_.no_space))) {
    ++counts_.errors;
    return ENOSPC;  // no block is allocated and no byte changed
  }
  auto taken = bytes_of(request.memory);
  if (!taken) return EFAULT;
  Write write{request.offset, std::move(*taken)};
  const bool planned = planned_misdirections_ > 0;
  if (error == 0 && (planned || draw(odds_.misdirect))) {
    if (planned) --planned_misdirections_;
    ++counts_.misdirected;
    const uint64_t places = (options_.size_bytes - write.bytes.size()) / options_.alignment_bytes + 1;
    write.offset = random_.below(places) * options_.alignment_bytes;
  } else if (error != 0) {
    const uint64_t sectors = write.bytes.size() / kSectorBytes;
    for (uint64_t sector = 0; sector < sectors; ++sector) {
      const auto old = std::span(write.bytes).subspan(sector * kSectorBytes, kSectorBytes);
      if (random_.one_in(2)) get(write.offset + sector * kSectorBytes, old);
    }
  } else {
    std::erase_if(bad_places_,
                  [&](const Range& place) { return place.meets(write.offset, write.bytes.size()); });
  }
  put(write.offset, write.bytes);
  unflushed_.push_back(std::move(write));
  return error;
}

Result<void> FaultyDisk::flush() {
  MutexLock lock(mutex_);
  if (dead_) return fail(EIO, "flush: the disk is dead");
  ++counts_.flushes;
  if (cut()) {
    die();
    return fail(EIO, "flush: the disk died");
  }
  const int error = fault(planned_flushes_, odds_.flush_error);
  for (const Write& write : unflushed_) {
    if (error != 0) {
      keep_some(write, Survival::kDrawn, random_);
    } else {
      durable_.write(write.offset, write.bytes);
    }
  }
  unflushed_.clear();
  parted_ = parted_ || error != 0;
  if (!parted_) recent_.clear();
  if (error != 0) return fail(error, "flush: an injected error");
  return {};
}

void FaultyDisk::put(uint64_t offset, std::span<const std::byte> bytes) {
  recent_.write_over(durable_, offset, bytes);
}

void FaultyDisk::get(uint64_t offset, std::span<std::byte> bytes) const {
  recent_.read_over(durable_, offset, bytes);
}

void FaultyDisk::flip(uint64_t offset, uint64_t bytes) {
  const uint64_t at = offset + random_.below(bytes);
  const std::byte bit = std::byte{1} << static_cast<int>(random_.below(8));
  const uint64_t number = at / DiskImage::kPageBytes;
  durable_.own_page(number, nullptr)[at % DiskImage::kPageBytes] ^= bit;
  if (recent_.page(number) != nullptr) recent_.own_page(number, nullptr)[at % DiskImage::kPageBytes] ^= bit;
  for (Write& write : unflushed_) {
    if (at >= write.offset && at - write.offset < write.bytes.size()) write.bytes[at - write.offset] ^= bit;
  }
  ++counts_.rotted;
}

void FaultyDisk::crash(uint64_t k, Survival survival) {
  MutexLock lock(mutex_);
  survival_ = survival;
  if (k == 0) {
    if (!dead_) die();
  } else {
    cut_at_ = operations_ + k;
  }
}

void FaultyDisk::die() {
  Random random(options_.seed ^ (operations_ + 1) * kCrashSalt);
  std::vector<Write> writes = std::move(unflushed_);
  for (const FaultyChannel* channel : channels_) {
    for (const BlockRequest& request : channel->at_disk_) {
      if (request.kind == BlockRequest::Kind::kWrite)
        if (auto taken = bytes_of(request.memory)) writes.push_back({request.offset, std::move(*taken)});
    }
  }
  for (size_t left = survival_ == Survival::kDrawn ? writes.size() : 0; left > 1; --left)
    std::swap(writes[left - 1], writes[random.below(left)]);
  for (const Write& write : writes) keep_some(write, survival_, random);
  unflushed_.clear();
  recent_.clear();
  parted_ = false;
  dead_ = true;
  cut_at_ = UINT64_MAX;
  for (FaultyChannel* channel : channels_) channel->fail_all();
  changed_.notify_all();
}

// keep_some() makes those parts of a write durable that `survival` says.
void FaultyDisk::keep_some(const Write& write, Survival survival, Random& random) {
  enum Fate : uint64_t { kLost, kWhole, kFirstSectors, kAnySectors, kFates };
  uint64_t fate = random.below(kFates);
  if (survival != Survival::kDrawn) fate = survival == Survival::kAll ? kWhole : kLost;
  const uint64_t sectors = write.bytes.size() / kSectorBytes;
  const uint64_t first = fate == kFirstSectors ? random.below(sectors + 1) : sectors;
  for (uint64_t sector = 0; fate != kLost && sector < first; ++sector) {
    if (fate == kAnySectors && random.one_in(2)) continue;
    const uint64_t at = sector * kSectorBytes;
    durable_.write(write.offset + at, std::span(write.bytes).subspan(at, kSectorBytes));
  }
}

bool FaultyDisk::crashed() const {
  MutexLock lock(mutex_);
  return dead_;
}

void FaultyDisk::restart() {
  MutexLock lock(mutex_);
  if (!dead_) die();
  dead_ = false;
  cut_at_ = UINT64_MAX;
}

uint64_t FaultyDisk::operations() const {
  MutexLock lock(mutex_);
  return operations_;
}

FaultyDisk::Counts FaultyDisk::counts() const {
  MutexLock lock(mutex_);
  return counts_;
}

void FaultyDisk::set_odds(const FaultOdds& odds) {
  MutexLock lock(mutex_);
  odds_ = odds;
}

void FaultyDisk::fail_reads(uint64_t count, int error) {
  MutexLock lock(mutex_);
  planned_reads_ = {count, error};
}

void FaultyDisk::fail_writes(uint64_t count, int error) {
  MutexLock lock(mutex_);
  planned_writes_ = {count, error};
}

void FaultyDisk::fail_flushes(uint64_t count, int error) {
  MutexLock lock(mutex_);
  planned_flushes_ = {count, error};
}

void FaultyDisk::fail_place(uint64_t offset, uint64_t bytes) {
  MutexLock lock(mutex_);
  bad_places_.push_back({offset, bytes});
}

void FaultyDisk::set_full(bool full) {
  MutexLock lock(mutex_);
  full_ = full;
}

void FaultyDisk::misdirect_writes(uint64_t count) {
  MutexLock lock(mutex_);
  planned_misdirections_ = count;
}

void FaultyDisk::rot(uint64_t offset, uint64_t bytes) {
  MutexLock lock(mutex_);
  flip(offset, bytes);
}

void FaultyDisk::hold() {
  MutexLock lock(mutex_);
  allowed_ = 0;
}

void FaultyDisk::release(uint64_t completions) {
  MutexLock lock(mutex_);
  if (allowed_ != UINT64_MAX) allowed_ += completions;
  changed_.notify_all();
}

void FaultyDisk::release_all() {
  MutexLock lock(mutex_);
  allowed_ = UINT64_MAX;
  changed_.notify_all();
}

void FaultyDisk::peek(uint64_t offset, std::span<std::byte> bytes) const {
  MutexLock lock(mutex_);
  get(offset, bytes);
}

size_t FaultyDisk::pages() const {
  MutexLock lock(mutex_);
  return durable_.pages() + recent_.pages();
}

}  // namespace kvcachefs::test
