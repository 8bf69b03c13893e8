#include "base/sys_disk.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <thread>

#include "base/fault_point.h"
#include "base/sys.h"

namespace kvcachefs::sys {
namespace {

template <class Call>
Result<void> done(Call call) {
  int rc;
  do {
    rc = call();
  } while (rc < 0 && errno == EINTR);
  if (rc != 0) return fail(errno);
  return {};
}

}  // namespace

Result<DirectAlignment> direct_alignment(int fd) {
  struct statx found {};
  const auto ok = done([&] { return ::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &found); });
  if (!ok) return std::unexpected<Error>(ok.error());
  if ((found.stx_mask & STATX_DIOALIGN) == 0) return fail(ENODATA);
  if (found.stx_dio_offset_align == 0) return fail(EINVAL);
  return DirectAlignment{found.stx_dio_mem_align, found.stx_dio_offset_align};
}

Result<void> sync_data(int fd) {
  return done([&] { return ::fdatasync(fd); });
}

Result<void> sync_whole(int fd) {
  return done([&] { return ::fsync(fd); });
}

Result<void> replace_file(int directory, const std::string& name, std::string_view text, mode_t mode) {
  const std::string begun = name + ".new";
  (void)unlink_at(directory, begun.c_str(), 0);
  auto fd = open_at(directory, begun.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, mode);
  if (!fd) return pass(fd);
  const int refused = injected_error("write a file");
  auto written = refused != 0 ? fail(refused) : write_at(fd->get(), text, 0);
  if (written && *written < text.size()) written = fail(ENOSPC);
  auto outcome = written ? sync_whole(fd->get()) : pass(written);
  fault_point("file written");
  if (outcome) outcome = rename_at(directory, begun.c_str(), directory, name.c_str(), 0);
  if (!outcome) (void)unlink_at(directory, begun.c_str(), 0);
  return outcome;
}

Result<void> lock_whole(int fd, std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds kPause(20);
  for (auto waited = kPause * 0;; waited += kPause) {
    auto locked = done([&] { return ::flock(fd, LOCK_EX | LOCK_NB); });
    if (locked || locked.error().code != EWOULDBLOCK || waited >= patience) return locked;
    std::this_thread::sleep_for(kPause);
  }
}

Result<uint64_t> device_size_bytes(int fd) {
  uint64_t size_bytes = 0;
  if (auto ok = done([&] { return ::ioctl(fd, BLKGETSIZE64, &size_bytes); }); !ok) return pass(ok);
  return size_bytes;
}

Result<uint32_t> device_sector_bytes(int fd) {
  int sector_bytes = 0;
  if (auto ok = done([&] { return ::ioctl(fd, BLKSSZGET, &sector_bytes); }); !ok) return pass(ok);
  return static_cast<uint32_t>(sector_bytes);
}

Result<UniqueFd> make_event() {
  return owned(::eventfd(0, EFD_CLOEXEC));
}

void raise_event(int fd) {
  const uint64_t one = 1;
  // The write fails only when the counter is full, and then the event is raised already.
  [[maybe_unused]] const ssize_t ignored = ::write(fd, &one, sizeof one);
}

void wait_readable(int fd, int at_most_ms) {
  pollfd waited{fd, POLLIN, 0};
  ::poll(&waited, 1, at_most_ms);
}

Result<std::array<std::byte, 16>> random_uuid() {
  std::array<std::byte, 16> uuid{};
  // getrandom(2) returns up to 256 bytes whole and uninterrupted.
  if (::getrandom(uuid.data(), uuid.size(), 0) != static_cast<ssize_t>(uuid.size())) return fail(errno);
  // RFC 9562: version 4, variant 10.
  uuid[6] = (uuid[6] & std::byte{0x0f}) | std::byte{0x40};
  uuid[8] = (uuid[8] & std::byte{0x3f}) | std::byte{0x80};
  return uuid;
}

int disk_node(dev_t device, const std::string& sysfs) {
  namespace files = std::filesystem;
  std::error_code error;
  const std::string number = std::to_string(major(device)) + ":" + std::to_string(minor(device));
  files::path at = files::canonical(sysfs + "/dev/block/" + number, error);
  // A partition lies below its disk, and the disk below its controller, which knows the node.
  for (; !error && at.has_relative_path() && at.filename() != "devices"; at = at.parent_path()) {
    const auto text = read_text((at / "numa_node").c_str());
    if (!text) continue;
    int node = -1;
    std::from_chars(text->data(), text->data() + text->size(), node);
    if (node >= 0) return node;
  }
  return -1;
}

std::string error_text(int code) {
  char buffer[128];
  return ::strerror_r(code, buffer, sizeof buffer);
}

}  // namespace kvcachefs::sys
