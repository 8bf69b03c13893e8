// The handlers of FUSE's operations, one file a group, each with libfuse's signature (fuse_lowlevel.h says
// what the arguments mean). Any server thread; see fs/server.h for how they answer.
#pragma once

#include <functional>

#include "base/result.h"
#include "fs/fuse.h"
#include "fs/server.h"

namespace kvcachefs::operations {

// lookup.cc
void lookup(fuse_req_t request, fuse_ino_t parent, const char* name);
void forget(fuse_req_t request, fuse_ino_t ino, uint64_t lookups);
void forget_multi(fuse_req_t request, size_t count, fuse_forget_data* forgets);

// attributes.cc
// Clears what the caller's own write or truncation would (fs/attr.c, setattr_should_drop_suidgid): a daemon
// with CAP_FSETID keeps the bits in its own calls.
Result<void> drop_set_id_bits(fuse_req_t request, int fd);
void getattr(fuse_req_t request, fuse_ino_t ino, fuse_file_info* file);
void setattr(fuse_req_t request, fuse_ino_t ino, struct stat* attributes, int valid, fuse_file_info* file);
void readlink(fuse_req_t request, fuse_ino_t ino);
void statfs(fuse_req_t request, fuse_ino_t ino);

// create.cc
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
// Fills `file` in, does not reply. From here on the open is one that close_handle() has to end. ENFILE.
Result<void> answer_open(fuse_req_t request, const Node& node, const Pool::Opened& opened,
                         fuse_file_info* file);
// The kernel has given the file up, or never got it.
void close_handle(Server& server, const Node& node, const fuse_file_info& file);
// Answers an OPEN that a process that died has done and not answered.
bool open_again(fuse_req_t request, const Node& node, fuse_file_info* file);
// What the kernel is to be told of an open under that number.
void fill_in(fuse_req_t request, const Pool& pool, const Pool::Opened& opened, uint64_t handle,
             fuse_file_info* file);
// A handle of the kernel's: Survivors' number of it above these. The file is served from the disk.
inline constexpr uint64_t kFromDisk = 1;
// Likewise: of a FLUSH the kernel does not tell how the file was opened.
inline constexpr uint64_t kForWriting = 2;
inline constexpr int kHandleShift = 2;
// Of one request: an entry may be evicted again before it is met; more often is no chance, but one that
// cannot be opened.
inline constexpr int kPromotions = 4;
// Goes on, from another thread, when the entry is in memory; answers with an error if it cannot be had.
void when_resident(fuse_req_t request, const Node& node, std::move_only_function<void()> then);
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
