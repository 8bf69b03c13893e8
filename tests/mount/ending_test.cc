// Ending: on a signal, with files open and mapped, with a request in hand, and with the mount in another
// namespace.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/pool_pressure.h"

namespace kvcachefs::test {
namespace {

class EndingTest : public ::testing::Test {
 protected:
  void SetUp() override { KVCACHEFS_NEED_DAEMON(); }
};

// A container that was started while the pools were mounted has a copy of the mount and keeps it.
TEST_F(EndingTest, EndsThoughAnotherNamespaceHasTheMount) {
  Mount mount;
  ASSERT_EQ(store(mount.path() + "/file", "content"), 0);
  int ready[2], go_on[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(go_on), 0);
  const pid_t container = ::fork();
  if (container == 0) {
    char byte = 0;
    ::close(ready[0]);
    ::close(go_on[1]);
    const bool alone =
        ::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
    if (!alone || ::write(ready[1], "1", 1) != 1 || ::read(go_on[0], &byte, 1) != 1) ::_exit(1);
    // The error is ENOTCONN, or ECANCELED while the rings are taken down.
    ::_exit(load(mount.path() + "/file") != 0 ? 0 : 2);
  }
  ::close(ready[1]);
  ::close(go_on[0]);
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1)
      << "no mount namespace of its own (in a chroot the root has to be a mount point)";
  ::kill(mount.pid(), SIGTERM);
  EXPECT_EQ(mount.wait_for_exit(std::chrono::seconds(60)), 0) << mount.log();
  EXPECT_TRUE(mounts_below(mount.root()).empty());
  EXPECT_EQ(::write(go_on[1], "1", 1), 1);
  int status = -1;
  ASSERT_EQ(::waitpid(container, &status, 0), container);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "2: the daemon is gone and the mount does not say so";
  ::close(ready[0]);
  ::close(go_on[1]);
}

TEST_F(EndingTest, EndsOnSignals) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Mount mount;
    ASSERT_EQ(store(mount.path() + "/file", "content"), 0);
    EXPECT_FALSE(mounts_below(mount.runtime_dir()).empty());
    ::kill(mount.pid(), signal);
    EXPECT_EQ(mount.wait_for_exit(std::chrono::seconds(60)), 0) << signal << mount.log();
    EXPECT_TRUE(mounts_below(mount.root()).empty());
    EXPECT_TRUE(mounts_below(mount.runtime_dir()).empty());
    EXPECT_FALSE(exists(mount.root() + "/p"));
  }
}

// libfuse cancels its threads, with which it serves over io_uring, where a request may be in hand: an end in
// the midst of a handler would leave it half done, and one in a destructor would stop the process.
TEST_F(EndingTest, ARequestInHandIsDoneBeforeTheEnd) {
  const std::string faults = "/tmp/kv-test-ending-" + std::to_string(::getpid());
  const std::string paused = faults + ".paused";
  ::setenv("KVCACHEFS_FAULT_FILE", faults.c_str(), 1);
  Mount mount;
  ::unsetenv("KVCACHEFS_FAULT_FILE");
  ASSERT_EQ(store(mount.path() + "/file", "content"), 0);
  write_file(faults, mode() == Mode::kIoUring ? "pause attributes changed\npause request done\n"
                                              : "pause attributes changed\npause request done 4\n");
  std::thread client([&] { (void)::chmod((mount.path() + "/file").c_str(), 0600); });
  EXPECT_TRUE(eventually([&] { return exists(paused); }));
  ::kill(mount.pid(), SIGTERM);
  EXPECT_TRUE(eventually([&] { return mounts_below(mount.root()).empty(); }));
  ::unlink(paused.c_str());
  EXPECT_TRUE(eventually([&] { return exists(paused); })) << "the handler was left in its midst";
  ::unlink(paused.c_str());
  EXPECT_EQ(mount.wait_for_exit(std::chrono::seconds(60)), 0) << mount.log();
  client.join();
  (void)::unlink(faults.c_str());
}

TEST_F(EndingTest, EndsWithFilesOpenAndMapped) {
  Mount mount;
  fill(mount.path(), "e", 3);
  File reader(mount.path() + "/e-0", O_RDONLY);
  File writer(mount.path() + "/e-1", O_WRONLY);
  const File folder(mount.path(), O_RDONLY | O_DIRECTORY);
  const Mapping mapping(File(mount.path() + "/e-2", O_RDONLY).fd(), kMiB, PROT_READ, MAP_SHARED);
  ASSERT_TRUE(mapping.valid());
  EXPECT_EQ(difference(2, mapping.text()), "");
  mount.stop();
  // Any answer of the ended mount comes at once; mapped memory stays.
  const int fd = reader.fd();
  EXPECT_NE(in_child([fd] { return read_at(fd, 0, 10).empty() ? 1 : 0; }, std::chrono::seconds(60)), -1);
  if (mode() != Mode::kDaemonIo) {
    EXPECT_EQ(difference(2, mapping.text()), "");
  }
  reader.close();
  writer.close();
}

}  // namespace
}  // namespace kvcachefs::test
