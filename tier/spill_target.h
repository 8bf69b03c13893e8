// Opens what a pool spills to: a block device, or a file that is made and allocated to its size. What is
// there and is not ours is refused unless the caller forces it, and nobody else can open it so while it is
// open. Any thread; blocks on the disk. Failures, each with a sentence that names the path:
//   EBUSY     another daemon has it, or the device is mounted or otherwise in use
//   EEXIST    it carries something we did not make, which the message names; `force` takes it
//   EINVAL    tmpfs, no O_DIRECT, a disk that moves no blocks of 4 KiB, no block device or file, a size or
//             unit that does not fit; of these, only a unit other than the one it was made with gives way to
//             `force`
//   ENODATA   it has no superblock, while the caller expects a certain one (a file system that is not mounted
//             looks so); `force` begins anew
//   ESTALE    its superblock is that of another pool, or any while the caller expects none (a catalog on a
//             file system that is not mounted looks so); `force` begins anew
//   ENOTSUP, EUCLEAN a superblock of a newer version, a damaged one; `force` begins anew
//   ENOSPC    the file system has no room for the file, which is then as it was
//   ENOENT    the directory of the file does not exist
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "tier/block_io.h"
#include "tier/spill_superblock.h"

namespace kvcachefs {

struct SpillTargetOptions {
  std::string path;
  uint64_t size_bytes = 0;  // 0: all of the device, or of the file that is there
  uint64_t unit_bytes = uint64_t{64} << 10;
  bool force = false;
  // How long to wait for one that has it: a daemon that was killed lets go of it only when the kernel has
  // taken its rings apart, some milliseconds after its end.
  std::chrono::milliseconds patience = std::chrono::seconds(2);
  // What it has to carry; none: it must carry none but `new_uuid`, and else is made to carry it, or a random
  // one.
  std::optional<Uuid> uuid = {};
  std::optional<Uuid> new_uuid = {};
  // It has to have the size that its superblock says: one that was cut is not what it was (EIO).
  bool whole = false;
};

struct SpillTarget {
  std::unique_ptr<BlockDevice> device;  // of size_units units; holds the locks
  Uuid uuid{};
  uint64_t unit_bytes = 0;
  uint64_t size_units = 0;  // unit 0 is the superblock's
  bool made = false;        // the superblock is new: no catalog of before knows what lies here
  bool is_block_device = false;
};

Result<SpillTarget> open_spill_target(const SpillTargetOptions& options);
// Whether that would succeed with what is there, which stays as it is: nothing is made, and all is let go of
// again.
Result<void> probe_spill_target(const SpillTargetOptions& options);
// The same while somebody has it: without its locks, and whatever its superblock's UUID.
Result<void> look_at_spill_target(const SpillTargetOptions& options);

}  // namespace kvcachefs
