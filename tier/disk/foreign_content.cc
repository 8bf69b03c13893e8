#include "tier/disk/foreign_content.h"

#include <blkid/blkid.h>
#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <memory>

#include "base/sys.h"
#include "base/sys_disk.h"

namespace kvcachefs {
namespace {

// Answers of blkid_do_safeprobe().
constexpr int kFound = 0;
constexpr int kNothing = 1;
constexpr int kSeveral = -2;
// Because wiping removes one signature at a time, a disk with more is being written to by another process.
constexpr int kMostSignatures = 64;

struct FreeProbe {
  void operator()(blkid_probe probe) const { blkid_free_probe(probe); }
};
using Probe = std::unique_ptr<blkid_struct_probe, FreeProbe>;

Result<Probe> probe_of(int fd) {
  Probe probe(blkid_new_probe());
  if (!probe || blkid_probe_set_device(probe.get(), fd, 0, 0) != 0) return fail(EIO, "cannot be probed");
  blkid_probe_enable_superblocks(probe.get(), 1);
  blkid_probe_set_superblocks_flags(probe.get(), BLKID_SUBLKS_TYPE | BLKID_SUBLKS_USAGE | BLKID_SUBLKS_MAGIC);
  blkid_probe_enable_partitions(probe.get(), 1);
  blkid_probe_set_partitions_flags(probe.get(), BLKID_PARTS_MAGIC);
  return probe;
}

std::string value_of(blkid_probe probe, const char* name) {
  const char* value = nullptr;
  return blkid_probe_lookup_value(probe, name, &value, nullptr) == 0 ? value : "";
}

Result<UniqueFd> opened(const std::string& path, int flags) {
  auto fd = sys::open_at(AT_FDCWD, path.c_str(), flags | O_CLOEXEC);
  if (!fd) return fail(fd.error().code, sys::error_text(fd.error().code));
  return fd;
}

}  // namespace

Result<std::string> foreign_content(const std::string& path) {
  auto fd = opened(path, O_RDONLY);
  if (!fd) return pass(fd);
  auto probe = probe_of(fd->get());
  if (!probe) return pass(probe);
  const int found = blkid_do_safeprobe(probe->get());
  if (found == kNothing) return std::string();
  if (found == kSeveral) return std::string("signatures of several file systems");
  if (found != kFound) return fail(EIO, "cannot be probed for file systems");
  const std::string type = value_of(probe->get(), "TYPE");
  const std::string table = value_of(probe->get(), "PTTYPE");
  if (type.empty()) return fmt::format("a partition table ({})", table);
  const std::string usage = value_of(probe->get(), "USAGE");
  return fmt::format(
      "{} ({})", usage == "filesystem" || usage.empty() ? "a file system" : "content of use: " + usage, type);
}

Result<void> wipe_foreign_content(const std::string& path) {
  auto fd = opened(path, O_RDWR);
  if (!fd) return pass(fd);
  auto probe = probe_of(fd->get());
  if (!probe) return pass(probe);
  for (int left = kMostSignatures; left > 0 && blkid_do_probe(probe->get()) == kFound; --left)
    if (blkid_do_wipe(probe->get(), 0) != 0) return fail(EIO, "its signatures cannot be wiped");
  return sys::sync_data(fd->get());
}

}  // namespace kvcachefs
