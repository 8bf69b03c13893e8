// A disk in memory behind tier/block_io.h that fails as disks do, in the same way for the same seed and
// the same calls. Any thread, as the seam says; runs repeat exactly only if one thread makes all calls.
// Programming errors (an unaligned request) stop the process. Only written pages take memory.
//
// The fault model:
// - A request takes effect when the disk carries it out, which is within reap(), one or several in a reap(),
//   in an order drawn from the seed. The memory of a read holds rubbish from submit() until then.
// - Reads see written bytes at once, but a write is durable only after a flush() that begins after the write
//   completed. Of every write that is not durable, or is with the disk and not completed, a crash leaves
//   nothing, all, its first sectors, or any of its sectors (of 512 bytes each), and of several writes to one
//   sector any of them: writes are lost, torn and reordered. Requests beyond a channel's depth have not
//   reached the disk.
// - A write that fails has changed any of its sectors. A flush that fails has made some of the writes
//   durable, whole or torn. The other writes never become durable: a later flush that succeeds does not help
//   them, though reads see them until a crash.
// - Rot: a bit of the stored bytes flips and stays flipped until it is written again. Reads do not notice.
// - A misdirected write reports success but lies at another offset; its own offset keeps the old bytes.
// - EIO of reads, writes and flushes; EIO of reads of bad places until they are written again; ENOSPC of
//   writes.
// - Latency: hold() keeps completions back until release().
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

// The odds of random faults: one in so many operations of that kind fails; 0: none.
struct FaultOdds {
  uint32_t read_error = 0;
  uint32_t write_error = 0;
  uint32_t flush_error = 0;
  uint32_t no_space = 0;
  uint32_t rot = 0;  // of reads: a bit of the bytes read has flipped
  uint32_t misdirect = 0;
};

struct FaultyDiskOptions {
  uint64_t size_bytes = uint64_t{64} << 20;
  uint64_t seed = 1;
  uint32_t alignment_bytes = 4096;
  int node = -1;
  bool in_order = false;  // the next reap() carries all requests out in the order of submission
  FaultOdds odds = {};
};

// Which writes that were not durable survive a crash.
enum class Survival { kDrawn, kNone, kAll };

class FaultyDisk final : public BlockDevice {
 public:
  struct Counts {
    uint64_t reads = 0, writes = 0, flushes = 0;  // carried out, including those that failed
    uint64_t read_bytes = 0, written_bytes = 0;
    uint64_t errors = 0, rotted = 0, misdirected = 0;  // injected faults
    uint64_t most_at_once = 0;                         // most requests with the disk, of all channels
  };

  explicit FaultyDisk(const FaultyDiskOptions& options);
  ~FaultyDisk() override;

  Result<std::unique_ptr<BlockChannel>> channel(unsigned depth) override;
  Result<void> flush() override;
  uint64_t size_bytes() const override { return options_.size_bytes; }
  uint32_t alignment_bytes() const override { return options_.alignment_bytes; }
  int node() const override { return options_.node; }

  // The disk dies in the middle of the k-th write or flush from now, counted from 1 (0: at once). Then all
  // requests in flight, held ones too, and all later ones fail with EIO until restart(). A scenario that made
  // n operations() is cut at every operation by n runs of the same seed, with k = 1..n.
  void crash(uint64_t k, Survival survival = Survival::kDrawn);
  bool crashed() const;
  // restart() makes the disk serve again with the bytes that survived, all of which are durable. A disk that
  // has not crashed first loses power at once. Older channels may be used again.
  void restart();
  uint64_t operations() const;  // writes and flushes so far
  Counts counts() const;

  void set_odds(const FaultOdds& odds);
  void fail_reads(uint64_t count, int error = EIO);  // the next `count` reads
  void fail_writes(uint64_t count, int error = EIO);
  void fail_flushes(uint64_t count, int error = EIO);
  void fail_place(uint64_t offset, uint64_t bytes);  // EIO for reads of any byte of this range
  void set_full(bool full);                          // while true, writes fail with ENOSPC
  void misdirect_writes(uint64_t count);
  void rot(uint64_t offset, uint64_t bytes);  // flips one bit in this range

  void hold();
  void release(uint64_t completions);
  void release_all();

  // peek() copies the bytes that a read would see; it draws no fault and is not counted.
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
  DiskImage recent_ GUARDED_BY(mutex_);  // whole pages as reads see them, covering those of durable_
  std::vector<Write> unflushed_ GUARDED_BY(mutex_);  // carried out, in order
  bool parted_ GUARDED_BY(mutex_) = false;  // a flush failed: recent_ has bytes that never reach durable_
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
  uint64_t allowed_ GUARDED_BY(mutex_) = UINT64_MAX;  // completions before the disk holds them back
  Counts counts_ GUARDED_BY(mutex_);
};

}  // namespace kvcachefs::test
