// Residency is the pool as the movers of bytes (Spiller, Promoter, Scrubber) see it: it hands out an entry
// for the time of a copy, and takes the outcome. Any thread. Its implementation (tier/pool/pool_residency.h)
// decides under the entry's shard; no call waits for a disk.
#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "tier/catalog/catalog.h"
#include "tier/catalog/catalog_log.h"
#include "tier/catalog/finding.h"
#include "tier/room.h"

namespace kvcachefs {

// An entry to be copied to the disk. `fd` is its file in memory, open for reading.
struct SpillTask {
  uint64_t ino = 0;
  UniqueFd fd;
  uint64_t size_bytes = 0;
  uint32_t version = 0;        // as users see it
  uint32_t content_epoch = 0;  // tier/entries/entry.h
  // No process could write the file when the copy began. Else the copy is a snapshot, and the entry stays
  // dirty.
  bool proven = false;
  // Proven, and the file has no holes: the disk reads its mapped pages. (Reading a hole through a mapping
  // fills the hole.)
  bool mappable = false;
  std::optional<CatalogContent> before;  // the disk's copy, perhaps of an older version
  uint64_t begun_ns = 0;
};

struct SpillOutcome {
  enum class Kind {
    kCopied,     // `content` is on the disk, though not durable yet
    kUnchanged,  // the copy that the disk had is still true: `content`
    kNoRoom,     // the disk has none
    kBusy,       // the file was written all the time
    kAgain,      // the spiller tries again soon: there is no room yet, or the file was written
    kRefused,    // by the disk or the system: `why`; the spiller tries again for as long as it is
  };
  Kind kind = Kind::kCopied;
  CatalogContent content = {};
  Error why = {};
};

// An entry to be copied back to memory. `fd` is its file in memory, open for writing and without blocks.
struct PromoteTask {
  uint64_t ino = 0;
  UniqueFd fd;
  CatalogContent content;
  uint64_t begun_ns = 0;
  // The disk tier is not in use yet: the copy is verified, and the entry served from the disk. `fd` is open
  // for reading.
  bool stays_on_disk = false;
};

struct PromoteOutcome {
  enum class Kind {
    kPromoted,      // or there was nothing to promote: the entry is to be looked at again
    kIntactOnDisk,  // there was no memory; the copy was read and is whole
    kNoMemory,      // there was no memory, and the copy was not looked at
    kFailed,        // the copy is not whole, or was not read: see `finding`
    kEnding,        // the tier's threads have ended
  };
  Kind kind = Kind::kPromoted;
  Finding finding = {};

  bool lacks_memory() const { return kind == Kind::kIntactOnDisk || kind == Kind::kNoMemory; }
};
inline constexpr PromoteOutcome kEnding{PromoteOutcome::Kind::kEnding};
inline constexpr PromoteOutcome kNoMemory{PromoteOutcome::Kind::kNoMemory};

// Called once, with no lock held, as a Waiter is.
using PromoteWaiter = std::move_only_function<void(const PromoteOutcome&)>;

class Residency {
 public:
  virtual ~Residency() = default;

  // kSoon: another copy of the entry is under way. kLater: its file cannot be leased or opened now, as while
  // a process has it mapped for writing. kNever: it is gone, or needs no copy. kCannot: the catalog cannot
  // describe it, so that a copy would be of no use.
  enum class Refusal { kSoon, kLater, kNever, kCannot };
  virtual std::expected<SpillTask, Refusal> begin_spill(uint64_t ino, bool urgent) = 0;
  // end_spill() takes the outcome of a copy. The answer is false if nothing names the extents, which the
  // caller then gives back.
  virtual bool end_spill(const SpillTask& task, SpillOutcome outcome) = 0;
  // The caller wants space for `bytes` on the disk.
  virtual void want_disk_room(uint64_t bytes) = 0;

  // Nothing: the entry is in memory, is being promoted, or is gone.
  virtual Result<std::optional<PromoteTask>> begin_promote(uint64_t ino) = 0;
  // end_promote() takes the outcome of a promotion. An entry whose copy is damaged is discarded; one that was
  // not promoted for another reason stays cold.
  virtual void end_promote(const PromoteTask& task, const PromoteOutcome& outcome, bool asked_for) = 0;
  // The promotion's waiters have been called. Until then the entry cannot be evicted, or it could leave
  // before each of them looks.
  virtual void waiters_told(uint64_t ino) = 0;
  // The inodes of the entries that are clean or cold now.
  virtual std::vector<uint64_t> copied_entries() = 0;
  // Returns the content that the disk stores of a clean or cold entry. It stays there unchanged until
  // end_verify().
  virtual std::optional<CatalogContent> begin_verify(uint64_t ino) = 0;
  // end_verify() is true if the copy is damaged and is still the entry's. Then a cold entry is discarded and
  // a clean one spilled anew. If the copy is unreadable, a clean entry is spilled anew and a cold one stays.
  // A caller that gives up has found nothing wrong.
  virtual bool end_verify(uint64_t ino, const CatalogContent& content, Finding finding) = 0;

  virtual Room& memory_room() = 0;
  // True if the entry's owner is over the share of the memory or the disk.
  virtual bool is_of_one_over(uint64_t /*ino*/) { return false; }
  // Free memory: what no writer has been promised, or all of it.
  virtual uint64_t free_bytes(bool even_promised) const = 0;
  virtual uint64_t memory_bytes() const = 0;  // of the whole pool
  // Memory that prefetch orders leave free. If less were free, the evictor would evict entries that the
  // orders brought.
  virtual uint64_t kept_from_orders_bytes() const { return 0; }
  virtual void wake_evictor() = 0;
};

}  // namespace kvcachefs
