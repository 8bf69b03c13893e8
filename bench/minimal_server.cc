// The least that a FUSE server can do for one file: no table, no policy, one lock. The cost of an open in
// kvcachefs is compared with it. Usage: minimal_server MOUNTPOINT BACKING-FILE THREADS dev_fuse|io_uring
#define FUSE_USE_VERSION 318
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/mutex.h"

namespace {

constexpr fuse_ino_t kFile = 2;
constexpr double kForeverSeconds = 1e6;
constexpr char kName[] = "big";

struct Backing {
  std::string path;
  kvcachefs::Mutex mutex;
  int id = 0;  // valid while opens > 0
  int opens = 0;
};
Backing backing;

struct stat attributes(fuse_ino_t ino) {
  struct stat status {};
  if (ino == kFile) {
    ::stat(backing.path.c_str(), &status);
  } else {
    status.st_mode = S_IFDIR | 0755;
    status.st_nlink = 2;
  }
  status.st_ino = ino;
  return status;
}

void init(void*, fuse_conn_info* connection) {
  fuse_set_feature_flag(connection, FUSE_CAP_PASSTHROUGH);
  connection->max_backing_stack_depth = 1;
  connection->no_interrupt = 1;
}

void lookup(fuse_req_t request, fuse_ino_t, const char* name) {
  if (std::strcmp(name, kName) != 0) {
    fuse_reply_err(request, ENOENT);
    return;
  }
  fuse_entry_param entry{};
  entry.ino = kFile;
  entry.attr = attributes(kFile);
  entry.attr_timeout = entry.entry_timeout = kForeverSeconds;
  fuse_reply_entry(request, &entry);
}

void getattr(fuse_req_t request, fuse_ino_t ino, fuse_file_info*) {
  const struct stat status = attributes(ino);
  fuse_reply_attr(request, &status, kForeverSeconds);
}

void open_file(fuse_req_t request, fuse_ino_t, fuse_file_info* file) {
  {
    const kvcachefs::MutexLock lock(backing.mutex);
    if (backing.opens++ == 0) {
      const int fd = ::open(backing.path.c_str(), O_RDONLY | O_CLOEXEC);
      backing.id = fuse_passthrough_open(request, fd);
      ::close(fd);
    }
    file->backing_id = backing.id;
  }
  file->noflush = 1;
  fuse_reply_open(request, file);
}

void release(fuse_req_t request, fuse_ino_t, fuse_file_info*) {
  {
    const kvcachefs::MutexLock lock(backing.mutex);
    if (--backing.opens == 0) fuse_passthrough_close(request, backing.id);
  }
  fuse_reply_err(request, 0);
}

int serve(fuse_session* session, unsigned threads) {
  fuse_loop_config* const configuration = fuse_loop_cfg_create();
  fuse_loop_cfg_set_clone_fd(configuration, 1);
  fuse_loop_cfg_set_max_threads(configuration, threads);
  const int result = fuse_session_loop_mt(session, configuration);
  fuse_loop_cfg_destroy(configuration);
  return result;
}

}  // namespace

int main(int count, char** words) {
  if (count != 5) {
    std::fprintf(stderr, "usage: minimal_server MOUNTPOINT BACKING-FILE THREADS dev_fuse|io_uring\n");
    return 2;
  }
  backing.path = words[2];
  std::string options = "fsname=minimal_server";
  if (std::strcmp(words[4], "io_uring") == 0) options += ",io_uring";
  char program[] = "minimal_server";
  char option_flag[] = "-o";
  char* arguments[] = {program, option_flag, options.data(), nullptr};
  fuse_args fuse_arguments = FUSE_ARGS_INIT(3, arguments);
  fuse_lowlevel_ops operations{};
  operations.init = init;
  operations.lookup = lookup;
  operations.getattr = getattr;
  operations.open = open_file;
  operations.release = release;
  fuse_session* const session = fuse_session_new(&fuse_arguments, &operations, sizeof operations, nullptr);
  if (session == nullptr) return 1;
  if (fuse_session_mount(session, words[1]) != 0) return 1;
  fuse_set_signal_handlers(session);
  const int result = serve(session, static_cast<unsigned>(std::atoi(words[3])));
  fuse_remove_signal_handlers(session);
  fuse_session_unmount(session);
  fuse_session_destroy(session);
  fuse_opt_free_args(&fuse_arguments);
  return result == 0 || result == SIGTERM ? 0 : 1;
}
