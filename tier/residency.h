// What the movers of bytes (Spiller, Promoter) ask of the pool whose entries they move: to hand an entry out
// for the time of a copy, and to take the outcome. Any thread; implemented by Pool, which decides under the
// entry's shard. Nothing here waits for a disk.
#pragma once

#include <cstdint>
#include <expected>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "tier/catalog.h"
#include "tier/catalog_log.h"
#include "tier/room.h"

namespace kvcachefs {

// An entry to be copied to the disk. `fd` is its file in memory, open for reading.
struct SpillTask {
  uint64_t ino = 0;
  UniqueFd fd;
  uint64_t size_bytes = 0;
  uint32_t version = 0;        // as users see it
  uint32_t content_epoch = 0;  // tier/entry.h
  // Nobody could write it when the copy began. Else the copy is a snapshot, true for itself alone.
  bool proven = false;
  // Proven and without holes: its pages are what the disk reads (reading a hole by a mapping fills it).
  bool mappable = false;
  std::optional<CatalogContent> before;  // what the disk has of it, perhaps of an older version
};

// An entry to be copied back. `fd` is its file in memory, open for writing and without blocks.
struct PromoteTask {
  uint64_t ino = 0;
  UniqueFd fd;
  CatalogContent content;
  uint32_t content_epoch = 0;
  uint64_t begun_ns = 0;
};

// A promotion's end: there was no memory for it, and its copy on the disk was read and is whole.
inline constexpr int kIntactOnDisk = EDOTDOT;

// Bytes that were read and are not the entry's (EILSEQ), or a catalog that promises more of them than there
// are.
inline bool is_damage(int code) {
  return code == EILSEQ || code == EUCLEAN;
}

// Nothing is known of the copy's bytes: the disk has not given them. It may again, as one does whose
// controller was reset, so that costs no entry.
inline bool is_disk_error(int code) {
  return code != 0 && !is_damage(code) && code != kIntactOnDisk && code != ENOSPC && code != ENOMEM &&
         code != ESHUTDOWN && code != EINTR && code != ECANCELED;
}

// What an open of a cold entry, or a truncation of one, is told: it is to be promoted first. No system call
// here says that.
inline constexpr int kColdEntry = EUNATCH;

class Residency {
 public:
  virtual ~Residency() = default;

  // kSoon: another copy of it is under way. kLater: somebody has it mapped for writing. kNever: it is gone,
  // or needs no copy.
  enum class Refusal { kSoon, kLater, kNever };
  virtual std::expected<SpillTask, Refusal> begin_spill(uint64_t ino, bool urgent) = 0;
  // The copy is on the disk, though not durable yet, or could not be made: ENOSPC, no room for it; EBUSY, it
  // was written all the time; EAGAIN and all others, it is tried again. `written` is false if the copy of
  // before was found to be still true. False: nothing names these extents, they are the caller's to give
  // back.
  virtual bool end_spill(const SpillTask& task, Result<CatalogContent> content, bool written) = 0;
  // Space for so many bytes is wanted on the disk.
  virtual void want_disk_room(uint64_t bytes) = 0;

  virtual std::expected<PromoteTask, Refusal> begin_promote(uint64_t ino) = 0;
  // is_damage(): the entry is discarded. is_disk_error(); kIntactOnDisk, or without a look at the copy ENOSPC
  // and ENOMEM, where there was no memory for it: it stays cold.
  virtual void end_promote(const PromoteTask& task, const Result<void>& outcome, bool asked_for) = 0;
  // Clean and cold ones, as of now.
  virtual std::vector<uint64_t> copied_entries() = 0;
  // What the disk has of a clean or cold one; it stays there as it is until end_verify().
  virtual std::optional<CatalogContent> begin_verify(uint64_t ino) = 0;
  // True if the copy is damaged and still the entry's: a cold one is discarded, a clean one spilled anew, as
  // is one whose copy the disk does not give; a cold one of those stays.
  virtual bool end_verify(uint64_t ino, const CatalogContent& content, int error) = 0;

  virtual Room& memory_room() = 0;
  virtual uint64_t memory_bytes() const = 0;  // all of the pool's
  virtual void wake_evictor() = 0;
};

}  // namespace kvcachefs
