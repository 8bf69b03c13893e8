// System calls as values: base/sys*.cc alone read errno. Any thread. Every function returns an Error with the
// call's errno; the message is empty where the caller is a hot path and knows the name already. EINTR is
// retried. A function blocks only on the file system of its arguments.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"

namespace kvcachefs::sys {

// A Handle identifies a tmpfs inode for open_by_handle_at: the kernel's shmem_encode_fh (mm/shmem.c) writes
// the generation, then the inode number's low and high halves.
struct Handle {
  uint64_t ino = 0;
  uint32_t generation = 0;
};

Result<UniqueFd> owned(int fd);  // as a system call has just answered it
Result<UniqueFd> open_at(int directory, const char* name, int flags, mode_t mode = 0);
Result<Handle> handle_at(int directory, const char* name);
Result<Handle> handle_of(int fd);
Result<UniqueFd> open_by_handle(int mount, Handle handle, int flags);
Result<UniqueFd> duplicate(int fd);

Result<struct stat> stat_at(int directory, const char* name);  // does not follow a symlink
Result<struct stat> stat_of(int fd);
Result<struct statfs> statfs_of(int fd);

Result<void> make_directory_at(int directory, const char* name, mode_t mode);
Result<void> make_node_at(int directory, const char* name, mode_t mode, dev_t device);
Result<void> symlink_at(const char* target, int directory, const char* name);
Result<void> link_to(int fd, int directory, const char* name);
Result<void> unlink_at(int directory, const char* name, int flags);
Result<void> rename_at(int old_directory, const char* old_name, int new_directory, const char* new_name,
                       unsigned flags);

// These functions take O_PATH descriptors too, of any file type.
Result<void> change_mode(int fd, mode_t mode);
Result<void> change_owner(int fd, uid_t uid, gid_t gid);
Result<void> change_times(int fd, const std::array<timespec, 2>& times);
Result<std::string> read_link(int directory, const char* path = "");
Result<std::string> path_of(int fd);  // as /proc says; ends with " (deleted)" for a removed name
Result<size_t> get_xattr(int fd, const char* name, std::span<char> value);
Result<size_t> list_xattr(int fd, std::span<char> names);
Result<void> set_xattr(int fd, const char* name, std::string_view value, int flags);
Result<void> remove_xattr(int fd, const char* name);

Result<void> truncate(int fd, uint64_t size_bytes);
Result<void> allocate(int fd, int mode, uint64_t offset, uint64_t length);
Result<uint64_t> seek(int fd, uint64_t offset, int whence);
// Whether some or all pages of a range of a tmpfs file are there, in memory or swapped out: cachestat(2),
// which waits for no lock of the inode as SEEK_DATA does. ENOSYS before Linux 6.5.
enum class Present { kNone, kSome, kAll };
Result<Present> present_pages(int fd, uint64_t offset, uint64_t length);
// read_at() and write_at() move all bytes. The count is smaller at the end of the file, or if an error came
// after the first bytes; an error is returned only if no byte was moved.
Result<size_t> read_at(int fd, std::span<char> bytes, uint64_t offset);
Result<size_t> read_some(int fd, std::span<std::byte> bytes);  // one read(2); EINTR is returned
Result<size_t> write_at(int fd, std::span<const char> bytes, uint64_t offset);
Result<size_t> copy_range(int from, uint64_t from_offset, int to, uint64_t to_offset, size_t length);
struct CloseDirectory {
  void operator()(DIR* stream) const { ::closedir(stream); }
};
using DirectoryStream = std::unique_ptr<DIR, CloseDirectory>;
DirectoryStream stream_of(UniqueFd directory);                  // none: there is no memory for its buffer
Result<UniqueFd> open_parent(int directory, int flags);         // of a directory of a pool
Result<dirent*> next_entry(DIR* directory);                     // readdir(3); none at the end
Result<size_t> read_directory(int fd, std::span<char> buffer);  // linux_dirent64 records; 0 at the end

// `type` is F_RDLCK, F_WRLCK or F_UNLCK; docs/facts.md "F_SETLEASE tells whether a file is in use" says what
// each lease proves. EAGAIN: another descriptor or mapping conflicts with the lease.
Result<void> set_lease(int fd, int type);

Result<void> mount(const char* source, const char* target, const char* type, unsigned long flags,
                   const char* data);
Result<void> unmount(const char* target, int flags);
Result<void> send_signal(pid_t process, int signal);
Result<void> make_directories(const std::string& path, mode_t mode);
Result<void> remove_directory(const char* path);
Result<std::string> read_text(const char* path, int directory = AT_FDCWD);  // of /proc and /sys, whole
Result<int> control(int fd, unsigned long request, void* argument);         // ioctl(2)

uint64_t memory_bytes();  // of the machine; 0: unknown

Error last_error(std::string_view what);  // the present errno, for calls of libraries that set it

}  // namespace kvcachefs::sys
