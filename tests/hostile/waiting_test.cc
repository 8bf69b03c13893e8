// More requests wait for the room of one pool than the daemon has threads that take requests. Another pool
// notices nothing, and each request that waits is carried out once, whatever becomes of the process that it
// waits in.
#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/sys.h"
#include "tests/support/faults.h"
#include "tests/support/files.h"
#include "tests/support/freezable_disk.h"
#include "tests/support/program.h"

namespace kvcachefs::test {
namespace {

// There are at most 16 threads that take requests. Of the writers 18 have to wait, because so many entries of
// 1 MiB are in the pool of 64.
constexpr int kWriters = 32;
constexpr int kEntries = 50;

// Writers that each write one entry with one call.
class Writers {
 public:
  explicit Writers(std::string directory, bool nameless = false)
      : directory_(std::move(directory)), nameless_(nameless) {
    for (int w = 0; w < kWriters; ++w) threads_.emplace_back([this, w] { write(w); });
  }
  ~Writers() { join(); }
  Writers(const Writers&) = delete;
  Writers& operator=(const Writers&) = delete;

  std::string path(int writer) const { return directory_ + "/w" + std::to_string(writer); }
  int done() const { return done_; }
  // Each has ended or waits in the kernel for the end of its call, and so many wait.
  bool wait_all_but(int at_most) const {
    int waiting = 0;
    for (int w = 0; w < kWriters; ++w) waiting += is_in_write(ids_[w]) ? 1 : 0;
    return waiting + done_ == kWriters && done_ <= at_most;
  }
  std::vector<std::string> failures() {
    join();
    return failures_;
  }

 private:
  void write(int w) {
    File file(path(w), O_WRONLY | O_CREAT | O_EXCL);
    if (nameless_) (void)::unlink(path(w).c_str());
    const std::string content = pattern(w, kMiB);
    const int fd = file.fd();
    if (nameless_) held_[w].emplace(std::move(file));
    ids_[w] = static_cast<pid_t>(::syscall(SYS_gettid));
    const ssize_t written = ::pwrite(fd, content.data(), content.size(), 0);
    ids_[w] = 0;
    if (written != static_cast<ssize_t>(content.size()))
      failures_[w] = written < 0 ? error_name(errno) : std::to_string(written) + " bytes";
    ++done_;
  }
  static bool is_in_write(pid_t thread) {
    if (thread == 0) return false;
    const auto call = sys::read_text(("/proc/self/task/" + std::to_string(thread) + "/syscall").c_str());
    return call && call->starts_with(std::to_string(SYS_pwrite64) + " ");  // it may have ended meanwhile
  }
  void join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  const std::string directory_;
  const bool nameless_;  // their files have no name when they write, and are kept open
  std::optional<File> held_[kWriters];
  std::vector<std::string> failures_ = std::vector<std::string>(kWriters);
  std::atomic<pid_t> ids_[kWriters] = {};
  std::atomic<int> done_{0};
  std::vector<std::thread> threads_;
};

class WaitingTest : public FaultedTierTest {
 protected:
  std::string other(const std::string& name) { return mount().root() + "/other/" + name; }
  std::string paused() const { return fault_file() + ".paused"; }
  // Nothing leaves the pool from here on.
  void pause_evictor(const std::string& then = "") {
    arm("pause evictor turn\n" + then);
    ASSERT_TRUE(eventually([&] { return exists(paused()); }));
  }
  void expect_written(Writers& writers) {
    const std::vector<std::string> failures = writers.failures();
    for (int w = 0; w < kWriters; ++w) {
      EXPECT_EQ(failures[w], "") << w;
      EXPECT_EQ(difference(w, read_file(writers.path(w))), "") << w;
    }
  }
  // Calls that make names until the one dies that waits for room; each has to succeed once.
  void make_until_death(uint32_t opcode, const std::function<int(const std::string&)>& make) {
    pause_evictor("request waits " + std::to_string(opcode) + "\n");
    int made = 0;
    for (; exists(fault_file()) && made < 20'000; ++made)
      ASSERT_EQ(
          error_name(error_of(make(path("made" + std::to_string(opcode) + "-" + std::to_string(made))))),
          "ok")
          << made;
    EXPECT_FALSE(exists(fault_file())) << "none waited of " << made;
    // A process that was paused has not removed this.
    ::unlink(paused().c_str());
    EXPECT_FALSE(exists(path("nothing")));  // the next process serves
  }
};

TEST_F(WaitingTest, OnePoolsHoldUpNoOther) {
  KVCACHEFS_SKIP_IF(LoopDevice::available() ? std::string() : std::string("loop devices"));
  FreezableDisk slow(disk(), 256 * kMiB);
  start_pool("p:size=64M,durability=writeback,spill=" + slow.path() +
             "/spill,spill_size=160M,catalog=" + (disk() / "catalog"));
  ASSERT_EQ(::mkdir((mount().root() + "/other").c_str(), 0755), 0);
  ASSERT_EQ(store(other("entry"), pattern(1, kMiB)), 0);
  slow.freeze();
  fill_pool("e", kEntries);  // what the disk has not got yet stays
  Writers writers(mount().path());
  const bool wait = eventually([&] { return writers.wait_all_but(64 - kEntries); });
  const int done = writers.done();
  std::string content;
  EXPECT_EQ(error_name(load(other("entry"), &content)), "ok");
  EXPECT_EQ(difference(1, content), "");
  EXPECT_EQ(error_name(store(other("new"), pattern(2, kMiB))), "ok");
  EXPECT_EQ(error_of(::rename(other("new").c_str(), other("renamed").c_str())), 0);
  EXPECT_EQ(error_of(::mkdir(other("d").c_str(), 0755)), 0);
  EXPECT_EQ(writers.done(), done) << "they did not wait all the time";
  EXPECT_TRUE(wait);
  slow.thaw();
  expect_written(writers);
  EXPECT_EQ(stat("no_space_errors"), 0);
  stop();
}

TEST_F(WaitingTest, AllAreCarriedOutByTheNextProcess) {
  start({.size = "64M", .more = "durability=writeback"});
  fill_pool("e", kEntries);
  ASSERT_EQ(sync_directory(), 0);
  pause_evictor();
  Writers writers(mount().path());
  EXPECT_TRUE(eventually([&] { return writers.wait_all_but(64 - kEntries); }));
  replace_server();
  ::unlink(paused().c_str());
  expect_written(writers);
  EXPECT_EQ(stat("no_space_errors"), 0);
  stop_and_check();
}

// What is open keeps its memory, and there is no evictor: nothing but the removal can end their waiting, or
// their patience of 30 s.
TEST_F(WaitingTest, ThePoolIsRemovedThatTheyWaitFor) {
  start({.size = "64M", .more = "durability=writeback"});
  ASSERT_EQ(::mkdir((mount().root() + "/other").c_str(), 0755), 0);
  fill_pool("e", kEntries);
  ASSERT_EQ(sync_directory(), 0);
  std::vector<File> held;
  for (const std::string& name : list(mount().path())) held.emplace_back(path(name), O_RDONLY);
  pause_evictor();
  Writers writers(mount().path(), true);
  EXPECT_TRUE(eventually([&] { return writers.wait_all_but(64 - kEntries); }));
  const Outcome removed = run({"kvcachefs", "--mount", mount().root(), "delete", "--force", "p"});
  EXPECT_EQ(removed.exit_code, 0) << removed.error;
  EXPECT_FALSE(exists(mount().path()));
  EXPECT_TRUE(eventually([&] { return writers.done() == kWriters; }, std::chrono::seconds(20)));
  EXPECT_GE(std::ranges::count(writers.failures(), "ENOSPC"), kWriters - (64 - kEntries));
  EXPECT_EQ(error_name(store(other("entry"), pattern(1, kMiB))), "ok");
  ::unlink(paused().c_str());
  held.clear();
  stop();
}

TEST_F(WaitingTest, ARequestThatWaitsAtADeathIsCarriedOutOnce) {
  start_pool("p:size=16M");
  fill_pool("e", 500, 100);  // which leave for an inode
  const std::string source = path("source");
  ASSERT_EQ(store(source, "x"), 0);
  const File held(source, O_RDONLY);
  int links = 0;
  make_until_death(FUSE_LINK, [&](const std::string& name) {
    ++links;
    return ::link(source.c_str(), name.c_str());
  });
  struct ::stat status {};
  ASSERT_EQ(::fstat(held.fd(), &status), 0);
  EXPECT_EQ(status.st_nlink, 1u + static_cast<unsigned>(links));
}

TEST_F(WaitingTest, AWriteThatWaitsAtADeathIsCarriedOutOnce) {
  start({.size = "64M", .more = "durability=writeback"});
  fill_pool("e", kEntries);
  ASSERT_EQ(sync_directory(), 0);
  pause_evictor("request waits " + std::to_string(FUSE_WRITE) + "\n");
  const File file(path("file"), O_WRONLY | O_CREAT | O_APPEND);
  std::string expected;
  for (int piece = 0; exists(fault_file()) && piece < 64; ++piece) {
    expected += pattern(piece, kMiB);
    ASSERT_EQ(::write(file.fd(), expected.data() + piece * kMiB, kMiB), static_cast<ssize_t>(kMiB)) << piece;
  }
  EXPECT_FALSE(exists(fault_file())) << "none waited";
  ::unlink(paused().c_str());
  EXPECT_TRUE(read_file(path("file")) == expected);
}

}  // namespace
}  // namespace kvcachefs::test
