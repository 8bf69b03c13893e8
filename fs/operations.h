// The handlers of FUSE's operations, one file for each group, each with libfuse's signature (fuse_lowlevel.h
// says what the arguments mean). Any server thread; fs/server.h says how handlers answer.
#pragma once

#include <functional>

#include "base/clock.h"
#include "base/result.h"
#include "fs/fuse.h"
#include "fs/server.h"

namespace kvcachefs::operations {

// lookup.cc
void lookup(fuse_req_t request, fuse_ino_t parent, const char* name);
void forget(fuse_req_t request, fuse_ino_t ino, uint64_t lookups);
void forget_multi(fuse_req_t request, size_t count, fuse_forget_data* forgets);

// attributes.cc
// The call clears the set-id bits that the caller's own write or truncation would clear (fs/attr.c,
// setattr_should_drop_suidgid), because a daemon with CAP_FSETID keeps the bits in its own calls.
Result<void> drop_set_id_bits(fuse_req_t request, int fd);
// The same at an open for writing, because a passthrough write does not come to the daemon. A file that has a
// writer already keeps its bits: see Pool::change_mode_unless_written().
void drop_set_id_bits_at_open(fuse_req_t request, const Node& node);
// A handler calls this before it changes something of a node that the disk's catalog must record. `then` runs
// at once, or from a worker's thread when the catalog has taken what waits for it. Otherwise a client that
// changes attributes again and again would fill the memory with changes.
void when_catalog_takes_more(const Node& node, std::move_only_function<void()> then);
void getattr(fuse_req_t request, fuse_ino_t ino, fuse_file_info* file);
void setattr(fuse_req_t request, fuse_ino_t ino, struct stat* attributes, int valid, fuse_file_info* file);
void readlink(fuse_req_t request, fuse_ino_t ino);
void statfs(fuse_req_t request, fuse_ino_t ino);

// create.cc
// The call makes a name, once there is an inode for it: in a pool without a free inode it waits as a write
// waits for room.
template <class Make>
auto with_inode(Pool& pool, Make make) {
  const uint64_t begun_ns = now_ns();
  for (;;) {
    auto made = make();
    if (made || made.error().code != ENOSPC || !pool.evictor().wait_to_make(begun_ns)) return made;
  }
}
void mknod(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, dev_t device);
void mkdir(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode);
void symlink(fuse_req_t request, const char* target, fuse_ino_t parent, const char* name);
void create(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* file);
void tmpfile(fuse_req_t request, fuse_ino_t parent, mode_t mode, fuse_file_info* file);

// names.cc
void unlink(fuse_req_t request, fuse_ino_t parent, const char* name);
void rmdir(fuse_req_t request, fuse_ino_t parent, const char* name);
void rename(fuse_req_t request, fuse_ino_t parent, const char* name, fuse_ino_t new_parent,
            const char* new_name, unsigned flags);
void link(fuse_req_t request, fuse_ino_t ino, fuse_ino_t new_parent, const char* new_name);

// open.cc
// What a client is told of an entry that is not here. At ESTALE the kernel looks the name up again, and may
// find the entry; it then opens a cold one with an OPEN, which can promote it.
Error error_of(Presence presence);
Error error_of(const PromoteOutcome& outcome);  // of an entry that was not promoted
// The call fills in `file` and does not reply. After it, close_handle() must end the open. Failure: ENFILE.
Result<void> answer_open(fuse_req_t request, const Node& node, const Opened& opened, fuse_file_info* file);
inline bool writes_alone(const fuse_file_info* file) {
  return (file->flags & O_ACCMODE) == O_WRONLY;
}
// The call ends an open that the kernel has released, or whose reply the kernel did not take.
void close_handle(Server& server, const Node& node, const fuse_file_info& file);
// The call closes what a request that is begun anew has opened its first time: otherwise that handle, which
// is written down, would stay open for ever.
void close_first(Server& server, const Node& node, const OpenHandles::Opened& opened, fuse_file_info file);
// The call answers an OPEN that a process that died has carried out and not answered.
bool open_again(fuse_req_t request, const Node& node, fuse_file_info* file);
// The call fills in what the kernel is told of an open under the number `handle`.
void fill_in(fuse_req_t request, const Pool& pool, const Opened& opened, uint64_t handle,
             bool bypasses_page_cache, fuse_file_info* file);
// A handle of the kernel's has Survivors' number of the open above these bits. This bit: the file is served
// from the disk.
inline constexpr uint64_t kFromDisk = 1;
// This bit: the file was opened for writing, which the kernel does not tell at a FLUSH.
inline constexpr uint64_t kForWriting = 2;
inline constexpr int kHandleShift = 2;
// The limit of promotions for one request. An entry may be evicted again before its open is retried; if that
// happens more often, it is no chance, and the entry cannot be opened.
inline constexpr int kPromotions = 4;
// Because the disk cannot serve an open for writing, it waits for memory as long as a write does in a pool
// that loses nothing. What is not on the disk yet leaves no sooner.
inline constexpr uint64_t kWriterPatienceMs = 30'000;
// During a SETATTR the kernel holds the file's lock, and a removal of the file holds the directory's while it
// waits for that.
inline constexpr uint64_t kTruncationPatienceMs = 2'000;
void open(fuse_req_t request, fuse_ino_t ino, fuse_file_info* file);
void flush(fuse_req_t request, fuse_ino_t ino, fuse_file_info* file);
void release(fuse_req_t request, fuse_ino_t ino, fuse_file_info* file);
void fsync(fuse_req_t request, fuse_ino_t ino, int data_only, fuse_file_info* file);
void fsyncdir(fuse_req_t request, fuse_ino_t ino, int data_only, fuse_file_info* file);

// data.cc
void read(fuse_req_t request, fuse_ino_t ino, size_t size, off_t offset, fuse_file_info* file);
void write(fuse_req_t request, fuse_ino_t ino, const char* bytes, size_t size, off_t offset,
           fuse_file_info* file);
void fallocate(fuse_req_t request, fuse_ino_t ino, int mode, off_t offset, off_t length,
               fuse_file_info* file);
void lseek(fuse_req_t request, fuse_ino_t ino, off_t offset, int whence, fuse_file_info* file);
void copy_file_range(fuse_req_t request, fuse_ino_t in, off_t in_offset, fuse_file_info* in_file,
                     fuse_ino_t out, off_t out_offset, fuse_file_info* out_file, size_t length, int flags);

// directory.cc
void opendir(fuse_req_t request, fuse_ino_t ino, fuse_file_info* file);
void readdir(fuse_req_t request, fuse_ino_t ino, size_t size, off_t offset, fuse_file_info* file);
void readdirplus(fuse_req_t request, fuse_ino_t ino, size_t size, off_t offset, fuse_file_info* file);
void releasedir(fuse_req_t request, fuse_ino_t ino, fuse_file_info* file);

// xattr.cc
void setxattr(fuse_req_t request, fuse_ino_t ino, const char* name, const char* value, size_t size,
              int flags);
void getxattr(fuse_req_t request, fuse_ino_t ino, const char* name, size_t size);
void listxattr(fuse_req_t request, fuse_ino_t ino, size_t size);
void removexattr(fuse_req_t request, fuse_ino_t ino, const char* name);

}  // namespace kvcachefs::operations
