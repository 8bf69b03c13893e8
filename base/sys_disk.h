// System calls of the disk tier as values, with the rules of base/sys.h: any thread; an Error carries the
// call's errno; EINTR is retried. Only sync_data() and sync_whole() wait for a disk; disk_node() reads sysfs.
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace kvcachefs::sys {

struct DirectAlignment {
  uint32_t memory_bytes = 0;
  uint32_t offset_bytes = 0;
};

// What O_DIRECT requires on this file. ENODATA: the kernel or the file system does not say (STATX_DIOALIGN,
// Linux 6.1); EINVAL: the file cannot be read and written by O_DIRECT.
Result<DirectAlignment> direct_alignment(int fd);

Result<void> sync_data(int fd);   // fdatasync
Result<void> sync_whole(int fd);  // fsync, which a directory's new names need
// Replaces the file as a whole, by way of NAME.new, and syncs it: a reader, and what a crash leaves, has the
// text of before or this one. The name is durable once its directory is synced.
Result<void> replace_file(int directory, const std::string& name, std::string_view text, mode_t mode);
// flock, exclusive, waited for as long as `patience`; EWOULDBLOCK if another open file has it then.
Result<void> lock_whole(int fd, std::chrono::milliseconds patience = {});
Result<uint64_t> device_size_bytes(int fd);
Result<uint32_t> device_sector_bytes(int fd);

Result<UniqueFd> make_event();  // an eventfd whose read(2) waits
void raise_event(int fd);
// wait_readable() waits until the descriptor is readable; a signal ends the wait early.
void wait_readable(int fd, int at_most_ms);

Result<std::array<std::byte, 16>> random_uuid();

// The NUMA node of the block device with that number; -1 where the kernel does not say (virtual devices,
// machines with one node). `sysfs` is /sys except in tests.
int disk_node(dev_t device, const std::string& sysfs = "/sys");

// The text of strerror(3) for an errno.
std::string error_text(int code);

}  // namespace kvcachefs::sys
