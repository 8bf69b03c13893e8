#include "base/sys.h"

#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/xattr.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace kvcachefs::sys {
namespace {

// The layout of struct file_handle with tmpfs' three words (mm/shmem.c, shmem_encode_fh).
struct RawHandle {
  unsigned handle_bytes = 12;
  int handle_type = 1;
  uint32_t generation = 0;
  uint32_t ino_low = 0;
  uint32_t ino_high = 0;
};
static_assert(sizeof(RawHandle) == sizeof(struct file_handle) + 12);

Result<void> done(int rc) {
  if (rc != 0) return fail(errno);
  return {};
}

template <class Call>
auto retried(Call call) {
  decltype(call()) rc;
  do {
    rc = call();
  } while (rc < 0 && errno == EINTR);
  return rc;
}

Result<size_t> counted(ssize_t rc) {
  if (rc < 0) return fail(errno);
  return static_cast<size_t>(rc);
}

// The count is smaller at the end of the file, or if an error came after the first bytes.
template <class Call, class Byte>
Result<size_t> move_all(Call call, int fd, std::span<Byte> bytes, uint64_t offset) {
  size_t total = 0;
  while (total < bytes.size()) {
    const ssize_t n = retried([&] {
      return call(fd, bytes.data() + total, bytes.size() - total, static_cast<off_t>(offset + total));
    });
    if (n < 0 && total == 0) return fail(errno);
    if (n <= 0) break;
    total += static_cast<size_t>(n);
  }
  return total;
}

// The magic link of a descriptor, for calls that take no O_PATH descriptor.
struct ProcPath {
  explicit ProcPath(int fd) { std::snprintf(text, sizeof text, "/proc/self/fd/%d", fd); }
  char text[32];
};

// Only sys_beneath.h resolves longer paths in a directory. A path in the working directory comes from the
// administrator or from the program itself.
bool is_one_component(int directory, const char* name) {
  return directory == AT_FDCWD || (std::strchr(name, '/') == nullptr && std::strcmp(name, "..") != 0);
}

Result<Handle> handle_by(int directory, const char* name, int flags) {
  RawHandle raw;
  int mount_id = 0;
  if (name_to_handle_at(directory, name, reinterpret_cast<struct file_handle*>(&raw), &mount_id, flags) != 0)
    return fail(errno);
  return Handle{static_cast<uint64_t>(raw.ino_high) << 32 | raw.ino_low, raw.generation};
}

}  // namespace

Result<UniqueFd> owned(int fd) {
  if (fd < 0) return fail(errno);
  return UniqueFd(fd);
}

Result<UniqueFd> open_at(int directory, const char* name, int flags, mode_t mode) {
  if (!is_one_component(directory, name)) return fail(EINVAL);
  return owned(retried([&] { return openat(directory, name, flags | O_CLOEXEC, mode); }));
}

Result<Handle> handle_at(int directory, const char* name) {
  if (!is_one_component(directory, name)) return fail(EINVAL);
  return handle_by(directory, name, 0);
}

Result<Handle> handle_of(int fd) {
  return handle_by(fd, "", AT_EMPTY_PATH);
}

Result<UniqueFd> open_by_handle(int mount_fd, Handle handle, int flags) {
  RawHandle raw;
  raw.generation = handle.generation;
  raw.ino_low = static_cast<uint32_t>(handle.ino);
  raw.ino_high = static_cast<uint32_t>(handle.ino >> 32);
  return owned(retried([&] {
    return open_by_handle_at(mount_fd, reinterpret_cast<struct file_handle*>(&raw), flags | O_CLOEXEC);
  }));
}

Result<UniqueFd> duplicate(int fd) {
  return owned(fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

Result<struct stat> stat_at(int directory, const char* name) {
  if (!is_one_component(directory, name)) return fail(EINVAL);
  struct stat attributes {};
  if (fstatat(directory, name, &attributes, AT_SYMLINK_NOFOLLOW) != 0) return fail(errno);
  return attributes;
}

Result<struct stat> stat_of(int fd) {
  struct stat attributes {};
  if (fstat(fd, &attributes) != 0) return fail(errno);
  return attributes;
}

Result<struct statfs> statfs_of(int fd) {
  struct statfs usage {};
  if (fstatfs(fd, &usage) != 0) return fail(errno);
  return usage;
}

Result<void> make_directory_at(int directory, const char* name, mode_t mode) {
  if (!is_one_component(directory, name)) return fail(EINVAL);
  return done(mkdirat(directory, name, mode));
}

Result<void> make_node_at(int directory, const char* name, mode_t mode, dev_t device) {
  if (!is_one_component(directory, name)) return fail(EINVAL);
  return done(mknodat(directory, name, mode, device));
}

Result<void> symlink_at(const char* target, int directory, const char* name) {
  if (!is_one_component(directory, name)) return fail(EINVAL);
  return done(symlinkat(target, directory, name));
}

Result<void> link_to(int fd, int directory, const char* name) {
  if (!is_one_component(directory, name)) return fail(EINVAL);
  // The path is used only without CAP_DAC_READ_SEARCH, because resolving it costs 3 us.
  const int rc = linkat(fd, "", directory, name, AT_EMPTY_PATH);
  if (rc == 0 || errno != ENOENT) return done(rc);
  return done(linkat(AT_FDCWD, ProcPath(fd).text, directory, name, AT_SYMLINK_FOLLOW));
}

Result<void> unlink_at(int directory, const char* name, int flags) {
  if (!is_one_component(directory, name)) return fail(EINVAL);
  return done(unlinkat(directory, name, flags));
}

Result<void> rename_at(int old_directory, const char* old_name, int new_directory, const char* new_name,
                       unsigned flags) {
  if (!is_one_component(old_directory, old_name) || !is_one_component(new_directory, new_name))
    return fail(EINVAL);
  return done(renameat2(old_directory, old_name, new_directory, new_name, flags));
}

Result<void> change_mode(int fd, mode_t mode) {
  return done(chmod(ProcPath(fd).text, mode));
}

Result<void> change_owner(int fd, uid_t uid, gid_t gid) {
  return done(fchownat(fd, "", uid, gid, AT_EMPTY_PATH));
}

Result<void> change_times(int fd, const std::array<timespec, 2>& times) {
  // The path is used only for an O_PATH descriptor, because resolving it costs 3 us.
  const int rc = futimens(fd, times.data());
  if (rc == 0 || errno != EBADF) return done(rc);
  return done(utimensat(AT_FDCWD, ProcPath(fd).text, times.data(), 0));
}

Result<std::string> read_link(int directory, const char* path) {
  std::string target(PATH_MAX, '\0');
  const ssize_t length = readlinkat(directory, path, target.data(), target.size());
  if (length < 0) return fail(errno);
  target.resize(static_cast<size_t>(length));
  return target;
}

Result<std::string> path_of(int fd) {
  auto path = read_link(AT_FDCWD, ProcPath(fd).text);
  if (path && path->size() == PATH_MAX) return fail(ENAMETOOLONG);
  return path;
}

Result<size_t> get_xattr(int fd, const char* name, std::span<char> value) {
  const ssize_t length = fgetxattr(fd, name, value.data(), value.size());
  if (length >= 0 || errno != EBADF) return counted(length);
  return counted(getxattr(ProcPath(fd).text, name, value.data(), value.size()));
}

Result<size_t> list_xattr(int fd, std::span<char> names) {
  const ssize_t length = flistxattr(fd, names.data(), names.size());
  if (length >= 0 || errno != EBADF) return counted(length);
  return counted(listxattr(ProcPath(fd).text, names.data(), names.size()));
}

Result<void> set_xattr(int fd, const char* name, std::string_view value, int flags) {
  const int rc = fsetxattr(fd, name, value.data(), value.size(), flags);
  if (rc == 0 || errno != EBADF) return done(rc);
  return done(setxattr(ProcPath(fd).text, name, value.data(), value.size(), flags));
}

Result<void> remove_xattr(int fd, const char* name) {
  return done(removexattr(ProcPath(fd).text, name));
}

Result<void> truncate(int fd, uint64_t size_bytes) {
  return done(retried([&] { return ftruncate(fd, static_cast<off_t>(size_bytes)); }));
}

Result<void> allocate(int fd, int mode, uint64_t offset, uint64_t length) {
  return done(
      retried([&] { return fallocate(fd, mode, static_cast<off_t>(offset), static_cast<off_t>(length)); }));
}

Result<uint64_t> seek(int fd, uint64_t offset, int whence) {
  const off_t at = lseek(fd, static_cast<off_t>(offset), whence);
  if (at < 0) return fail(errno);
  return static_cast<uint64_t>(at);
}

Result<Present> present_pages(int fd, uint64_t offset, uint64_t length) {
  // linux/mman.h has these since 6.5.
  struct {
    uint64_t offset, length;
  } range{offset, length};
  struct {
    uint64_t cached, dirty, writeback, evicted, recently_evicted;
  } found{};
  constexpr long kCachestat = 451;
  if (syscall(kCachestat, fd, &range, &found, 0) != 0) return fail(errno);
  constexpr uint64_t kPageBytes = 4096;
  const uint64_t pages = (offset + length + kPageBytes - 1) / kPageBytes - offset / kPageBytes;
  const uint64_t present = found.cached + found.evicted;
  return present == 0 ? Present::kNone : present >= pages ? Present::kAll : Present::kSome;
}

Result<size_t> read_at(int fd, std::span<char> bytes, uint64_t offset) {
  return move_all(pread, fd, bytes, offset);
}

Result<size_t> read_some(int fd, std::span<std::byte> bytes) {
  return counted(::read(fd, bytes.data(), bytes.size()));
}

Result<size_t> write_at(int fd, std::span<const char> bytes, uint64_t offset) {
  return move_all(pwrite, fd, bytes, offset);
}

Result<size_t> copy_range(int from, uint64_t from_offset, int to, uint64_t to_offset, size_t length) {
  auto in = static_cast<off64_t>(from_offset);
  auto out = static_cast<off64_t>(to_offset);
  return counted(retried([&] { return copy_file_range(from, &in, to, &out, length, 0); }));
}

Result<UniqueFd> open_parent(int directory, int flags) {
  return owned(
      retried([&] { return openat(directory, "..", flags | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC); }));
}

DirectoryStream stream_of(UniqueFd directory) {
  DirectoryStream stream(::fdopendir(directory.get()));
  if (stream) (void)directory.release();
  return stream;
}

Result<dirent*> next_entry(DIR* directory) {
  errno = 0;
  dirent* const record = ::readdir(directory);
  if (record == nullptr && errno != 0) return std::unexpected<Error>(last_error("readdir"));
  return record;
}

Result<size_t> read_directory(int fd, std::span<char> buffer) {
  return counted(static_cast<ssize_t>(syscall(SYS_getdents64, fd, buffer.data(), buffer.size())));
}

Result<void> set_lease(int fd, int type) {
  return done(fcntl(fd, F_SETLEASE, type));
}

Result<void> mount(const char* source, const char* target, const char* type, unsigned long flags,
                   const char* data) {
  if (::mount(source, target, type, flags, data) != 0)
    return std::unexpected<Error>(last_error(std::string("mount ") + target));
  return {};
}

Result<void> unmount(const char* target, int flags) {
  if (umount2(target, flags) != 0) return std::unexpected<Error>(last_error(std::string("umount ") + target));
  return {};
}

Result<void> send_signal(pid_t process, int signal) {
  return done(kill(process, signal));
}

Result<void> make_directories(const std::string& path, mode_t mode) {
  std::error_code code;
  const auto parent = std::filesystem::path(path).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, code);
  if (code) return fail(code.value(), parent.string() + ": " + code.message());
  if (mkdir(path.c_str(), mode) != 0 && errno != EEXIST)
    return std::unexpected<Error>(last_error("mkdir " + path));
  return {};
}

Result<void> remove_directory(const char* path) {
  return done(rmdir(path));
}

Result<std::string> read_text(const char* path, int directory) {
  auto fd = open_at(directory, path, O_RDONLY);
  if (!fd) return fail(fd.error().code, std::string(path) + ": " + std::strerror(fd.error().code));
  std::string text;
  char piece[4096];
  for (;;) {
    const ssize_t n = retried([&] { return ::read(fd->get(), piece, sizeof piece); });
    if (n < 0) return std::unexpected<Error>(last_error(path));
    if (n == 0) return text;
    text.append(piece, static_cast<size_t>(n));
  }
}

Result<int> control(int fd, unsigned long request, void* argument) {
  const int rc = ioctl(fd, request, argument);
  return rc < 0 ? Result<int>(fail(errno)) : rc;
}

uint64_t memory_bytes() {
  struct sysinfo info {};
  return ::sysinfo(&info) == 0 ? uint64_t{info.totalram} * info.mem_unit : 0;
}

Error last_error(std::string_view what) {
  const int code = errno;
  return Error{code, std::string(what) + ": " + std::strerror(code)};
}

}  // namespace kvcachefs::sys
