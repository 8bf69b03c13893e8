// A disk in memory behind tier/block_io.h that fails as disks do, the same way again for the same seed and
// the same calls. Any thread, as the seam says; replays exactly where one thread calls. Programmer errors (an
// unaligned request) stop the process. Only pages that were written take memory.
//
// The fault model:
// - A request takes effect when the disk carries it out, which is within reap(), in an order drawn by the
// seed,
//   one or several a reap(). Memory to be read into holds rubbish from submit() until then.
// - What is written is seen by reads at once, but is durable only after a flush() that begins after the write
//   completed. A crash leaves of every write that is not durable, or is with the disk and not completed:
//   nothing, all, its first sectors, or any of its sectors (of 512 bytes each), and of several writes to one
//   sector any of them: writes are lost, torn and reordered. Requests beyond a channel's depth have not
//   reached the disk.
// - A write that fails has changed any of its sectors. A flush that fails has made some of the writes
// durable, whole
//   or torn; the others never will be: a later flush that succeeds does not help them, though reads see them
//   until a crash.
// - Rot: a bit flips in what is stored, and stays so until it is written again. Reads do not notice.
// - A misdirected write reports success and lies elsewhere; where it should be, the old bytes are.
// - EIO of reads, writes, flushes; reads of bad places (until they are written again); ENOSPC of writes.
// - Latency: hold() keeps completions back until they are released.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "base/mutex.h"
#include "tests/support/disk_image.h"
#include "tests/support/files.h"
#include "tier/block_io.h"

namespace kvcachefs::test {

// Faults that come by themselves, one in so many of the operations they are for; 0: never.
struct FaultOdds {
  uint32_t read_error = 0;
  uint32_t write_error = 0;
  uint32_t flush_error = 0;
  uint32_t no_space = 0;
  uint32_t rot = 0;  // of reads: a bit of what is read has flipped
  uint32_t misdirect = 0;
};

struct FaultyDiskOptions {
  uint64_t size_bytes = uint64_t{64} << 20;
  uint64_t seed = 1;
  uint32_t alignment_bytes = 4096;
  int node = -1;
  bool in_order = false;  // carries all out at the next reap(), first come, first served
  FaultOdds odds = {};
};

// What a crash leaves of the writes that were not durable.
enum class Survival { kDrawn, kNone, kAll };

class FaultyDisk final : public BlockDevice {
 public:
  struct Counts {
    uint64_t reads = 0, writes = 0, flushes = 0;  // carried out, the failed ones among them
    uint64_t read_bytes = 0, written_bytes = 0;
    uint64_t errors = 0, rotted = 0, misdirected = 0;  // what was injected
    uint64_t most_at_once = 0;                         // requests with the disk, of all channels
  };

  explicit FaultyDisk(const FaultyDiskOptions& options);
  ~FaultyDisk() override;

  Result<std::unique_ptr<BlockChannel>> channel(unsigned depth) override;
  Result<void> flush() override;
  uint64_t size_bytes() const override { return options_.size_bytes; }
  uint32_t alignment_bytes() const override { return options_.alignment_bytes; }
  int node() const override { return options_.node; }

  // The disk dies at the k-th write or flush from now, counted from 1 (0: at once): in the middle of it. Then
  // all that is in flight, and all that comes, fails with EIO until restart(); held completions come too. A
  // scenario that made n operations() is cut everywhere by n runs of the same seed, with k = 1..n.
  void crash(uint64_t k, Survival survival = Survival::kDrawn);
  bool crashed() const;
  // With what survived, all of it durable. One that has not crashed loses power first, at once. Channels from
  // before may be used again.
  void restart();
  uint64_t operations() const;  // writes and flushes so far
  Counts counts() const;

  void set_odds(const FaultOdds& odds);
  void fail_reads(uint64_t count, int error = EIO);  // the next ones
  void fail_writes(uint64_t count, int error = EIO);
  void fail_flushes(uint64_t count, int error = EIO);
  void fail_place(uint64_t offset, uint64_t bytes);  // EIO to who reads any of it
  void set_full(bool full);                          // ENOSPC to who writes
  void misdirect_writes(uint64_t count);
  void rot(uint64_t offset, uint64_t bytes);  // flips one bit there

  void hold();
  void release(uint64_t completions);
  void release_all();

  // What a read would see; no fault, not counted.
  void peek(uint64_t offset, std::span<std::byte> bytes) const;
  size_t pages() const;  // in memory

 private:
  friend class FaultyChannel;
  struct Write {
    uint64_t offset = 0;
    std::vector<std::byte> bytes;
  };
  struct Range {
    uint64_t offset = 0, bytes = 0;
    bool meets(uint64_t other, uint64_t count) const {
      return other < offset + bytes && offset < other + count;
    }
  };
  struct Planned {
    uint64_t count = 0;
    int error = 0;
  };

  int carry_out(const BlockRequest& request) REQUIRES(mutex_);
  int read(const BlockRequest& request) REQUIRES(mutex_);
  int write(const BlockRequest& request) REQUIRES(mutex_);
  bool draw(uint32_t one_in) REQUIRES(mutex_);
  int fault(Planned& planned, uint32_t one_in) REQUIRES(mutex_);
  bool cut() REQUIRES(mutex_);
  void die() REQUIRES(mutex_);
  void keep_some(const Write& write, Survival survival, Random& random) REQUIRES(mutex_);
  void put(uint64_t offset, std::span<const std::byte> bytes) REQUIRES(mutex_);
  void get(uint64_t offset, std::span<std::byte> bytes) const REQUIRES(mutex_);
  void flip(uint64_t offset, uint64_t bytes) REQUIRES(mutex_);

  const FaultyDiskOptions options_;
  mutable Mutex mutex_;
  Condition changed_;
  Random random_ GUARDED_BY(mutex_);
  FaultOdds odds_ GUARDED_BY(mutex_);
  DiskImage durable_ GUARDED_BY(mutex_);
  DiskImage recent_ GUARDED_BY(mutex_);              // whole pages as reads see them, over those of durable_
  std::vector<Write> unflushed_ GUARDED_BY(mutex_);  // carried out, in order
  bool parted_ GUARDED_BY(mutex_) = false;  // a flush failed: recent_ holds what never gets into durable_
  std::set<class FaultyChannel*> channels_ GUARDED_BY(mutex_);
  std::vector<Range> bad_places_ GUARDED_BY(mutex_);
  Planned planned_reads_ GUARDED_BY(mutex_);
  Planned planned_writes_ GUARDED_BY(mutex_);
  Planned planned_flushes_ GUARDED_BY(mutex_);
  uint64_t planned_misdirections_ GUARDED_BY(mutex_) = 0;
  bool full_ GUARDED_BY(mutex_) = false;
  bool dead_ GUARDED_BY(mutex_) = false;
  uint64_t operations_ GUARDED_BY(mutex_) = 0;
  uint64_t cut_at_ GUARDED_BY(mutex_) = UINT64_MAX;
  Survival survival_ GUARDED_BY(mutex_) = Survival::kDrawn;
  uint64_t allowed_ GUARDED_BY(mutex_) = UINT64_MAX;  // completions until it holds them back
  Counts counts_ GUARDED_BY(mutex_);
};

}  // namespace kvcachefs::test
