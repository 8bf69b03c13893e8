// look_at_disk(): the place of a disk tier, by the calls with which the tier would use it.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <span>

#include "base/mapping.h"
#include "base/mountinfo.h"
#include "base/sys.h"
#include "base/sys_disk.h"
#include "daemon/system_check/gather.h"
#include "tier/blocks.h"
#include "tier/disk/foreign_content.h"
#include "tier/disk/spill_superblock.h"
#include "tier/disk/spill_target.h"
#include "tier/disk/uring_block_io.h"

namespace kvcachefs {
namespace {

std::string name_of_file_system(const std::string& path) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  const auto mounts = read_mounts();
  if (error || !mounts) return {};
  for (std::filesystem::path at = real;; at = at.parent_path()) {
    if (const MountPoint* mount = find_mount(*mounts, at.native())) return mount->type;
    if (!at.has_relative_path()) return {};
  }
}

std::span<char> characters(const Mapping& memory) {
  return {reinterpret_cast<char*>(memory.bytes().data()), memory.bytes().size()};
}

Trial read_block(int fd) {
  const auto memory = Mapping::of_memory(kBlockBytes);
  if (!memory) return Trial::of(memory);
  const auto read = sys::read_at(fd, characters(*memory), 0);
  if (read && *read != kBlockBytes) return Trial::failed_with(EIO);
  return Trial::of(read);
}

Trial write_and_read_block(int fd) {
  const auto memory = Mapping::of_memory(kBlockBytes);
  if (!memory) return Trial::of(memory);
  std::ranges::fill(memory->bytes(), std::byte{0x5a});
  const auto written = sys::write_at(fd, characters(*memory), 0);
  if (!written) return Trial::of(written);
  if (const Trial read = read_block(fd); !read.worked()) return read;
  return Trial::worked_well();
}

// The alignment comes first: what cannot be had of a block of 4 KiB is no reason to try one.
Trial try_direct(const UniqueFd& fd, DiskPlace& facts) {
  const auto alignment = uring_alignment_bytes(fd.get(), facts.looked_at);
  if (!alignment) return Trial::of(alignment);
  facts.block_bytes = *alignment;
  if (*alignment > kBlockBytes) return Trial::failed_with(EINVAL);
  return facts.is_device ? read_block(fd.get()) : write_and_read_block(fd.get());
}

void look_at_device(DiskPlace& facts) {
  const auto fd = sys::open_at(AT_FDCWD, facts.path.c_str(), O_RDONLY | O_DIRECT);
  facts.found = Trial::of(fd);
  if (!fd) return;
  facts.direct = try_direct(*fd, facts);
  facts.total_bytes = facts.free_bytes = sys::device_size_bytes(fd->get()).value_or(0);
  facts.content = foreign_content(facts.path).value_or("");
}

void look_at_file_system(const Result<UniqueFd>& fd, DiskPlace& facts) {
  const auto space = fd ? sys::statfs_of(fd->get()) : fail(fd.error().code);
  facts.found = Trial::of(space);
  if (!space) return;
  const auto unit_bytes = static_cast<uint64_t>(space->f_frsize);
  facts.total_bytes = static_cast<uint64_t>(space->f_blocks) * unit_bytes;
  facts.free_bytes = static_cast<uint64_t>(space->f_bfree) * unit_bytes;
  facts.file_system = name_of_file_system(facts.looked_at);
  const auto memory = memory_file_system(fd->get());
  facts.is_memory = memory && !memory->empty();
}

// A file with a superblock may still be another pool's, which only its catalog tells.
std::string content_of_others(std::span<const std::byte> first) {
  Superblock superblock;
  uint32_t version = 0;
  if (read_superblock(first, superblock, version) == SuperblockFound::kOurs) return {};
  const bool is_empty = std::ranges::all_of(first, [](std::byte each) { return each == std::byte{0}; });
  return is_empty ? "" : "data of something else";
}

void look_at_file(const Result<UniqueFd>& found, DiskPlace& facts) {
  look_at_file_system(found, facts);
  if (!facts.found.worked() || facts.is_memory) return;
  const auto fd = sys::open_at(AT_FDCWD, facts.path.c_str(), O_RDONLY | O_DIRECT);
  const auto alignment = fd ? uring_alignment_bytes(fd->get(), facts.path) : fail(fd.error().code);
  const auto memory = Mapping::of_memory(kBlockBytes);
  facts.block_bytes = alignment.value_or(0);
  if (!alignment || !memory) {
    facts.direct = alignment ? Trial::of(memory) : Trial::of(alignment);
  } else if (*alignment > kBlockBytes) {
    facts.direct = Trial::failed_with(EINVAL);
  } else {
    facts.direct = Trial::of(sys::read_at(fd->get(), characters(*memory), 0));
    facts.content = content_of_others(memory->bytes());
  }
}

void look_at_directory(DiskPlace& facts) {
  look_at_file_system(sys::open_at(AT_FDCWD, facts.looked_at.c_str(), O_PATH | O_DIRECTORY), facts);
  if (!facts.found.worked()) return;
  const auto nameless = sys::open_at(AT_FDCWD, facts.looked_at.c_str(), O_TMPFILE | O_RDWR | O_DIRECT, 0600);
  // A file system that makes no nameless files is not tried: a file with a name would be a change.
  if (nameless || nameless.error().code != EOPNOTSUPP)
    facts.direct = nameless ? try_direct(*nameless, facts) : Trial::of(nameless);
}

}  // namespace

DiskPlace look_at_disk(const std::string& path) {
  DiskPlace facts;
  facts.path = facts.looked_at = path;
  const auto found = sys::open_at(AT_FDCWD, path.c_str(), O_PATH);
  const auto status = found ? sys::stat_of(found->get()) : fail(found.error().code);
  facts.is_device = status && S_ISBLK(status->st_mode);
  facts.is_file = status && S_ISREG(status->st_mode);
  const bool is_dangling = !status && sys::stat_at(AT_FDCWD, path.c_str()).has_value();
  if (facts.is_device) {
    look_at_device(facts);
  } else if (facts.is_file) {
    look_at_file(found, facts);
  } else if (status && !S_ISDIR(status->st_mode)) {
    facts.found = Trial::failed_with(ENOTBLK);
  } else if (is_dangling || (!status && status.error().code != ENOENT)) {
    facts.found = Trial::of(status);
  } else {
    const std::filesystem::path directory = std::filesystem::path(path).parent_path();
    if (!status) facts.looked_at = directory.empty() ? "." : directory.native();
    look_at_directory(facts);
  }
  return facts;
}

}  // namespace kvcachefs
