// A spill target is what a pool spills to: a block device, or a file that is made and allocated to its size.
// Foreign content is refused unless the caller forces it. While the target is open, no other process can open
// it this way. Any thread; blocks on the disk. Failures, each with a sentence that names the path:
//   EBUSY     another daemon has it, or the device is mounted or otherwise in use
//   EEXIST    it carries content that kvcachefs did not make, which the message names; `force` takes it
//   EINVAL    tmpfs, no O_DIRECT, a disk that moves no blocks of 4 KiB, no block device or file, a size or
//             unit that does not fit; of these, `force` overrides only a unit that differs from the disk's
//   ENODATA   it has no superblock, while the caller expects a certain UUID (a mount point whose file system
//             is not mounted looks so); `force` begins anew
//   ESTALE    its superblock is another pool's, or the caller expects none (a catalog whose file system is
//             not mounted looks so); `force` begins anew
//   ENOTSUP   a superblock of a newer version; `force` begins anew
//   EUCLEAN   a damaged superblock; `force` begins anew
//   ENOSPC    the file system has no room for the file, which is then as it was
//   ENOENT    the directory of the file does not exist
//   EIO       it is shorter than its superblock says (with `whole`), or the disk failed
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "tier/block_io.h"
#include "tier/disk/spill_superblock.h"

namespace kvcachefs {

struct SpillTargetOptions {
  std::string path;
  uint64_t size_bytes = 0;  // 0: all of the device, or of the existing file
  uint64_t unit_bytes = uint64_t{64} << 10;
  bool force = false;
  // How long to wait while another process has the target: the kernel gives back the locks of a killed daemon
  // only when it has taken the daemon's rings apart, some milliseconds after its end.
  std::chrono::milliseconds patience = std::chrono::seconds(2);
  // The UUID that the target must carry. Without it the target must carry none except `new_uuid`; a target
  // that carries none is given `new_uuid`, or a random one.
  std::optional<Uuid> uuid = {};
  std::optional<Uuid> new_uuid = {};
  // The target is refused if it is shorter than its superblock says (EIO).
  bool whole = false;
};

struct SpillTarget {
  std::unique_ptr<BlockDevice> device;  // of size_units units; holds the locks
  Uuid uuid{};
  uint64_t unit_bytes = 0;
  uint64_t size_units = 0;  // unit 0 is the superblock's
  bool made = false;        // the superblock is new: no earlier catalog knows this disk
};

// The name of a file system that is memory itself, where no target may lie; empty for any other. A daemon
// whose disk lies in a mount of kvcachefs would wait for itself.
Result<std::string_view> memory_file_system(int fd);

Result<SpillTarget> open_spill_target(const SpillTargetOptions& options);
// probe_spill_target() says whether open_spill_target() would succeed on the existing target, which stays as
// it is: nothing is made, and every lock is given back.
Result<void> probe_spill_target(const SpillTargetOptions& options);
// look_at_spill_target() says the same while another process has the target: it takes no locks and accepts
// any UUID.
Result<void> look_at_spill_target(const SpillTargetOptions& options);

}  // namespace kvcachefs
