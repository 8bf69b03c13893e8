// Advisory locks between processes: flock, POSIX and open-file-description locks; inotify.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <string>

#include "tests/support/transcript.h"

namespace kvcachefs::test {
namespace {

struct flock range(short type, off_t start, off_t length) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = start;
  lock.l_len = length;
  return lock;
}

int set_lock(int fd, int command, short type, off_t start, off_t length) {
  struct flock lock = range(type, start, length);
  return error_of(::fcntl(fd, command, &lock));
}

// The result of another process that tries the lock on its own descriptor.
std::string elsewhere(const std::string& name, const std::function<int(int fd)>& attempt) {
  return error_name(in_child([&] {
    const File file(name, O_RDWR);
    return attempt(file.fd());
  }));
}

PARITY_TEST(WholeFileLocks) {
  const std::string name = directory + "/file";
  const File file(name, O_RDWR | O_CREAT);
  const auto attempt = [&](int operation) {
    return elsewhere(name, [operation](int fd) { return error_of(::flock(fd, operation | LOCK_NB)); });
  };
  transcript.call("exclusive", ::flock(file.fd(), LOCK_EX));
  transcript.note("shared elsewhere", attempt(LOCK_SH));
  transcript.call("shared", ::flock(file.fd(), LOCK_SH));
  transcript.note("shared elsewhere", attempt(LOCK_SH));
  transcript.note("exclusive elsewhere", attempt(LOCK_EX));
  transcript.call("unlock", ::flock(file.fd(), LOCK_UN));
  transcript.note("exclusive elsewhere", attempt(LOCK_EX));
}

PARITY_TEST(RecordLocks) {
  const std::string name = directory + "/file";
  const File file(name, O_RDWR | O_CREAT);
  const auto attempt = [&](short type, off_t start, off_t length) {
    return elsewhere(name, [=](int fd) { return set_lock(fd, F_SETLK, type, start, length); });
  };
  transcript.note("write lock", set_lock(file.fd(), F_SETLK, F_WRLCK, 100, 50));
  transcript.note("overlapping", attempt(F_RDLCK, 140, 100));
  transcript.note("beside", attempt(F_WRLCK, 150, 10));
  transcript.note("holder is told", elsewhere(name, [](int fd) {
                    struct flock lock = range(F_WRLCK, 0, 0);
                    const int error = error_of(::fcntl(fd, F_GETLK, &lock));
                    return error != 0 ? error : (lock.l_pid == ::getppid() && lock.l_start == 100 ? 0 : 1);
                  }));
  transcript.note("part unlocked", set_lock(file.fd(), F_SETLK, F_UNLCK, 120, 10));
  transcript.note("in the gap", attempt(F_WRLCK, 120, 10));
  { const File closed(name, O_RDONLY); }
  // POSIX: closing any descriptor of the file drops all locks of the process.
  transcript.note("all dropped", attempt(F_WRLCK, 0, 0));
}

PARITY_TEST(DescriptionLocks) {
  const std::string name = directory + "/file";
  const File one(name, O_RDWR | O_CREAT);
  File two(name, O_RDWR);
  transcript.note("one", set_lock(one.fd(), F_OFD_SETLK, F_WRLCK, 0, 10));
  transcript.note("two, same process", error_name(set_lock(two.fd(), F_OFD_SETLK, F_WRLCK, 5, 10)));
  two.close();
  transcript.note("elsewhere",
                  elsewhere(name, [](int fd) { return set_lock(fd, F_OFD_SETLK, F_RDLCK, 0, 1); }));
  transcript.note("unlock", set_lock(one.fd(), F_OFD_SETLK, F_UNLCK, 0, 0));
  transcript.note("elsewhere",
                  elsewhere(name, [](int fd) { return set_lock(fd, F_OFD_SETLK, F_RDLCK, 0, 1); }));
}

PARITY_TEST(LocksGoWithTheProcess) {
  const std::string name = directory + "/file";
  const File file(name, O_RDWR | O_CREAT);
  transcript.note("locked and gone", elsewhere(name, [](int fd) {
                    return error_of(::flock(fd, LOCK_EX)) + set_lock(fd, F_SETLK, F_WRLCK, 0, 0);
                  }));
  transcript.call("flock", ::flock(file.fd(), LOCK_EX | LOCK_NB));
  transcript.note("record lock", set_lock(file.fd(), F_SETLK, F_WRLCK, 0, 0));
}

PARITY_TEST(WaitingForALock) {
  const std::string name = directory + "/file";
  File file(name, O_RDWR | O_CREAT);
  transcript.call("flock", ::flock(file.fd(), LOCK_EX));
  const File ready(directory + "/ready", O_RDWR | O_CREAT);
  const pid_t child = ::fork();
  if (child == 0) {
    const File own(name, O_RDWR);
    ::unlink((directory + "/ready").c_str());
    ::_exit(error_of(::flock(own.fd(), LOCK_EX)));
  }
  EXPECT_TRUE(eventually([&] { return !exists(directory + "/ready"); }));
  // Because the child shares this file description, closing the parent's descriptor would not release the
  // lock.
  transcript.call("unlock", ::flock(file.fd(), LOCK_UN));
  int status = -1;
  EXPECT_TRUE(eventually([&] { return ::waitpid(child, &status, WNOHANG) == child; }));
  transcript.note("child", status);
}

PARITY_TEST(WatchersSeeChanges) {
  const File watcher(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  transcript.call("watch",
                  ::inotify_add_watch(watcher.fd(), directory.c_str(),
                                      IN_CREATE | IN_DELETE | IN_CLOSE_WRITE | IN_MOVED_TO | IN_MODIFY));
  transcript.note("store", store(directory + "/file", "content"));
  transcript.call("unlink", ::unlink((directory + "/file").c_str()));
  std::set<std::string> seen;
  alignas(inotify_event) char buffer[4096];
  ssize_t size = ::read(watcher.fd(), buffer, sizeof(buffer));
  for (ssize_t at = 0; at < size;) {
    const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
    seen.insert(std::string(event->name) + " " + std::to_string(event->mask));
    at += static_cast<ssize_t>(sizeof(inotify_event)) + event->len;
  }
  EXPECT_GE(size, 0);
  for (const std::string& event : seen) transcript.note("event", event);
}

}  // namespace
}  // namespace kvcachefs::test
