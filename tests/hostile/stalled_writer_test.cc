// A write with passthrough holds the lock of the tmpfs's inode until the pages of its source are there, and
// they may be ones that only the daemon can give. The daemon waits for no such lock.
#include <fcntl.h>
#include <grp.h>
#include <linux/aio_abi.h>
#include <linux/fuse.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "tests/support/disks.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/pool_pressure.h"

namespace kvcachefs::test {
namespace {

constexpr uid_t kOwner = 1000;

// Writes much, so that the evictor follows the writer, and last from a page of a control file that lists
// entries shard by shard.
int write_from_own_listing(const std::string& pool) {
  const int listing = ::open((pool + "/.pool/entries").c_str(), O_RDONLY);
  const int file = ::open((pool + "/evil").c_str(), O_WRONLY | O_CREAT, 0644);
  if (listing < 0 || file < 0) return 2;
  void* const page = ::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, listing, 0);
  if (page == MAP_FAILED) return 3;
  std::vector<char> much(96 * kMiB);
  for (int i = 0; i < 3; ++i) {
    const std::array<iovec, 2> pieces{iovec{much.data(), much.size()}, iovec{page, 4096}};
    if (::pwritev(file, pieces.data(), pieces.size(), 0) <= 0) return 4;
  }
  return 0;
}

TEST(StalledWriterTest, WhoWaitsForTheDaemonWithAnInodesLockGetsOn) {
  KVCACHEFS_NEED_DAEMON();
  Mount mount({.pools = {"p:size=1G,uid=1000,gid=1000", "q:size=64M"}, .options = {"hang_after=10"}});
  mount.stop_squeezing();
  fill(mount.path("p"), "seed", 3);
  const pid_t serving = mount.serving_pid();
  const pid_t writer = ::fork();
  if (writer == 0) {
    (void)::setgroups(0, nullptr);
    if (::setgid(kOwner) != 0 || ::setuid(kOwner) != 0) ::_exit(1);
    ::_exit(write_from_own_listing(mount.path("p")));
  }
  int status = -1;
  EXPECT_TRUE(eventually([&] { return ::waitpid(writer, &status, WNOHANG) == writer; }));
  EXPECT_EQ(status, 0);
  fill(mount.path("q"), "other", 3);
  EXPECT_EQ(mount.serving_pid(), serving);
  mount.stop();
}

// A page whose content does not come before come(), as one of a file system of the writer's own.
class LatePage {
 public:
  LatePage()
      : faults_(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK))),
        page_(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    uffdio_api api{.api = UFFD_API, .features = 0, .ioctls = 0};
    uffdio_register range{.range = here(), .mode = UFFDIO_REGISTER_MODE_MISSING, .ioctls = 0};
    EXPECT_EQ(::ioctl(faults_.get(), UFFDIO_API, &api), 0);
    EXPECT_EQ(::ioctl(faults_.get(), UFFDIO_REGISTER, &range), 0);
  }
  ~LatePage() {
    come();
    ::munmap(page_, 4096);
  }
  LatePage(const LatePage&) = delete;
  LatePage& operator=(const LatePage&) = delete;
  iovec piece() const { return {page_, 4096}; }
  bool is_awaited() const {
    pollfd fault{faults_.get(), POLLIN, 0};
    return ::poll(&fault, 1, 0) == 1 && fault.revents == POLLIN;
  }
  void come() {
    uffdio_zeropage page{.range = here(), .mode = 0, .zeropage = 0};
    (void)::ioctl(faults_.get(), UFFDIO_ZEROPAGE, &page);
  }

 private:
  uffdio_range here() const { return {reinterpret_cast<uintptr_t>(page_), 4096}; }

  const UniqueFd faults_;
  void* const page_;
};

// Processes of which each does one call that may wait for a stalled writer's file.
class Waiters {
 public:
  ~Waiters() { EXPECT_TRUE(ended()); }
  void start(const std::function<void()>& act) {
    const pid_t process = ::fork();
    if (process == 0) {
      act();
      ::_exit(0);
    }
    processes_.push_back(process);
  }
  // Whether the call ends while the writer stalls. No signal ends one that does not.
  bool ends(const std::function<int()>& act) {
    const pid_t process = ::fork();
    if (process == 0) ::_exit(act());
    int status = -1;
    if (eventually([&] { return ::waitpid(process, &status, WNOHANG) == process; })) return status == 0;
    processes_.push_back(process);
    return false;
  }
  bool ended() {
    return eventually([&] {
      std::erase_if(processes_,
                    [](pid_t process) { return ::waitpid(process, nullptr, WNOHANG) == process; });
      return processes_.empty();
    });
  }

 private:
  std::vector<pid_t> processes_;
};

// The writer's page comes as late as a user likes, and meanwhile more calls reach its file than the daemon
// has threads.
TEST(StalledWriterTest, WhoeverUsesTheFileMeanwhileKeepsNoThreadOfTheDaemon) {
  KVCACHEFS_NEED_DAEMON();
  constexpr int kThreads = 4;
  const DiskDirectory disk;
  Mount mount(
      {.pools = {"p:size=64M,uid=1000,gid=1000,durability=writeback,spill_size=64M,spill=" + (disk / "spill"),
                 "q:size=64M"},
       .options = {"hang_after=10", "threads=" + std::to_string(kThreads)}});
  const std::string file = mount.path("p") + "/evil";
  fill(mount.path("p"), "seed", 3);
  Waiters waiters;
  std::jthread writing;  // and not a process, because the late page is this one's
  LatePage page;
  const File writer(file, O_WRONLY | O_CREAT | O_CLOEXEC);
  ASSERT_EQ(::chown(file.c_str(), kOwner, kOwner), 0);
  ASSERT_EQ(::link(file.c_str(), (mount.path("p") + "/other").c_str()), 0);
  ASSERT_EQ(::chmod(file.c_str(), 06777), 0);
  ASSERT_EQ(::write(writer.fd(), "content", 7), 7);
  ASSERT_EQ(::close(::dup(writer.fd())), 0);  // the daemon hears of a close
  writing = std::jthread([&] {
    const std::array<iovec, 1> pieces{page.piece()};
    EXPECT_EQ(::pwritev(writer.fd(), pieces.data(), pieces.size(), 4096), 4096);
  });
  ASSERT_TRUE(eventually([&] { return page.is_awaited(); }));
  const auto look = [](const std::string& path) {
    std::string content;
    (void)load(path, &content);
  };
  const std::vector<std::function<void()>> calls = {
      [&] { (void)::open(file.c_str(), O_WRONLY | O_CLOEXEC); },
      [&] { (void)::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644); },
      [&] { (void)::open(file.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC); },
      [&] { (void)::truncate(file.c_str(), 100); },
      [&] { look(file); },
      [&] { (void)exists(file); },
      [&] { (void)::chmod(file.c_str(), 0644); },
      [&] { (void)::setxattr(file.c_str(), "user.kvcachefs.pinned", "1", 1, 0); },
      [&] { (void)::link(file.c_str(), (file + std::to_string(::getpid())).c_str()); },
      [&] { (void)::unlink((mount.path("p") + "/other").c_str()); },
      [&] { (void)store(mount.control("evict"), "100%"); },
      [&] { (void)::getxattr(file.c_str(), "user.kvcachefs.pinned", nullptr, 0); },
      [&] { look(mount.control("entries")); },
  };
  // These are answered by threads of which a killed process would have to wait for the end. They come first,
  // because the calls below hold the pool's directory in the kernel.
  EXPECT_TRUE(waiters.ends([&] { return look(mount.control("numa")), 0; }));
  EXPECT_TRUE(waiters.ends(
      [&] { return ::fsync(::open(mount.path("p").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)); }));
  for (const auto& call : calls)
    for (int i = 0; i < 2 * kThreads; ++i)
      waiters.start([&] {
        if (::setgroups(0, nullptr) != 0 || ::setgid(kOwner) != 0 || ::setuid(kOwner) != 0) return;
        call();
      });
  const pid_t serving = mount.serving_pid();
  const auto is_served = [&](const std::string& name) {
    return waiters.ends([&] { return store(mount.path("q") + "/" + name, "content"); });
  };
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(is_served("a" + std::to_string(i)));
  EXPECT_EQ(mount.serving_pid(), serving);
  ASSERT_EQ(::kill(serving, SIGKILL), 0);
  EXPECT_TRUE(is_served("after"));
  page.come();
  writing.join();
  EXPECT_TRUE(waiters.ended());
  mount.stop();
}

// What comes between a request of a client's and the daemon's work on it.
class Paused {
 public:
  explicit Paused(const DiskDirectory& disk) : file_(disk / "fault") {
    ::setenv("KVCACHEFS_FAULT_FILE", file_.c_str(), 1);
  }
  ~Paused() { ::unsetenv("KVCACHEFS_FAULT_FILE"); }
  Paused(const Paused&) = delete;
  Paused& operator=(const Paused&) = delete;
  void arm(uint32_t opcode) { arm("request begun " + std::to_string(opcode)); }
  void arm(const std::string& place) { write_file(file_, "pause " + place + "\n"); }
  bool waits() const { return exists(file_ + ".paused"); }
  void go_on() { ::unlink((file_ + ".paused").c_str()); }

 private:
  const std::string file_;
};

class StallingTest : public ::testing::Test {
 protected:
  void start(const std::string& options) {
    mount_ = std::make_unique<Mount>(MountOptions{.pools = {"p:size=64M," + options, "q:size=64M"},
                                                  .options = {"hang_after=10", "threads=4"}});
  }
  std::string on_disk() const { return ",spill_size=64M,spill=" + (disk_ / "spill"); }
  std::string path(const std::string& name) const { return mount_->path("p") + "/" + name; }
  void stall(int fd, off_t offset) {
    writing_ = std::jthread([this, fd, offset] {
      const std::array<iovec, 1> pieces{page_.piece()};
      EXPECT_EQ(::pwritev(fd, pieces.data(), pieces.size(), offset), 4096);
    });
  }
  bool is_stored(const std::string& pool, const std::string& name) {
    return waiters_.ends([&] {
      const File file(mount_->path(pool) + "/" + name, O_WRONLY | O_CREAT | O_CLOEXEC);
      return ::write(file.fd(), "content", 7) == 7 ? ::fsync(file.fd()) : 1;
    });
  }
  // Both pools are served, and go on to be after a death.
  void expect_others_get_on() {
    EXPECT_TRUE(is_stored("p", "before")) << mount_->log();
    ASSERT_EQ(::kill(mount_->serving_pid(), SIGKILL), 0);
    EXPECT_TRUE(is_stored("q", "after")) << mount_->log();
    EXPECT_TRUE(is_stored("p", "after")) << mount_->log();
  }
  void end() {
    page_.come();
    writing_.join();
    EXPECT_TRUE(waiters_.ended());
    mount_->stop();
  }

  const DiskDirectory disk_;
  Paused paused_{disk_};
  std::unique_ptr<Mount> mount_;
  Waiters waiters_;
  std::jthread writing_;
  LatePage page_;
};

// The daemon has heard of the close of a copy of the descriptor when the write by the other begins.
TEST_F(StallingTest, ACloseThatIsToBeDurable) {
  KVCACHEFS_NEED_DAEMON();
  start("durability=sync" + on_disk());
  const File writer(path("evil"), O_WRONLY | O_CREAT | O_CLOEXEC);
  ASSERT_EQ(::write(writer.fd(), "content", 7), 7);
  ASSERT_EQ(::ftruncate(writer.fd(), static_cast<off_t>(8 * kMiB)), 0);
  paused_.arm(FUSE_FLUSH);
  std::atomic<bool> closed = false;
  std::jthread closer([&] {
    EXPECT_EQ(::close(::dup(writer.fd())), 0);
    closed = true;
  });
  ASSERT_TRUE(eventually([&] { return paused_.waits(); }));
  stall(writer.fd(), 4096);
  ASSERT_TRUE(eventually([&] { return page_.is_awaited(); }));
  paused_.go_on();
  EXPECT_TRUE(eventually([&] { return closed.load(); }));
  expect_others_get_on();
  end();
}

// A write with O_DIRECT that its client does not wait for is on its way when the stalled one begins.
TEST_F(StallingTest, AWriteThatNobodyWaitsFor) {
  KVCACHEFS_NEED_DAEMON();
  start("durability=writeback" + on_disk());
  const File writer(path("evil"), O_RDWR | O_CREAT | O_CLOEXEC);
  const std::string content = pattern(1, 64 << 10);
  ASSERT_EQ(::write(writer.fd(), content.data(), content.size()), static_cast<ssize_t>(content.size()));
  const File direct(path("evil"), O_WRONLY | O_DIRECT | O_DSYNC | O_CLOEXEC);
  paused_.arm(FUSE_WRITE);
  waiters_.start([&] {
    aio_context_t context = 0;
    if (::syscall(SYS_io_setup, 64, &context) != 0) return;
    std::array<iocb, 32> writes{};
    std::array<iocb*, 32> pointers{};
    for (size_t i = 0; i < writes.size(); ++i) {
      writes[i].aio_lio_opcode = IOCB_CMD_PWRITE;
      writes[i].aio_fildes = static_cast<uint32_t>(direct.fd());
      writes[i].aio_buf = reinterpret_cast<uintptr_t>(content.data());
      writes[i].aio_nbytes = 4096;
      pointers[i] = &writes[i];
    }
    (void)::syscall(SYS_io_submit, context, pointers.size(), pointers.data());
  });
  ASSERT_TRUE(eventually([&] { return paused_.waits(); }));
  stall(writer.fd(), 4096);
  // Where the first write keeps the lock, the stalled one waits for it, and there is nothing to wait for
  // here.
  (void)eventually([&] { return page_.is_awaited(); }, std::chrono::milliseconds(500));
  paused_.go_on();
  EXPECT_TRUE(is_stored("q", "during"));
  expect_others_get_on();
  end();
}

// What was changed of a file while the disk's catalog was read is told to the catalog at the end. The first
// write reserves memory, and the reservation keeps a ctime, which a change of the file would have to take
// away again.
TEST_F(StallingTest, AFileThatWasChangedBeforeItsPoolHadADisk) {
  KVCACHEFS_NEED_DAEMON();
  start("entry_size=4M");
  const File writer(path("evil"), O_WRONLY | O_CREAT | O_CLOEXEC);
  paused_.arm("all restored");
  std::atomic<bool> attached = false;
  std::jthread attaching([&] {
    EXPECT_EQ(error_name(write_once(mount_->administrators("spill"), disk_ / "spill" + " 64M")), "ok");
    attached = true;
  });
  ASSERT_TRUE(eventually([&] { return paused_.waits(); }));
  ASSERT_EQ(::chmod(path("evil").c_str(), 0640), 0);
  stall(writer.fd(), 4096);
  ASSERT_TRUE(eventually([&] { return page_.is_awaited(); }));
  paused_.go_on();
  EXPECT_TRUE(eventually([&] { return attached.load(); }));
  expect_others_get_on();
  end();
}

}  // namespace
}  // namespace kvcachefs::test
