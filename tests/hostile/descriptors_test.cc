// What a user can do with the one table of descriptors that the supervisor and its child share: each inode
// that the daemon has to keep alive without a name costs a place in it.
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/capability.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::test {
namespace {

constexpr uid_t kNobody = 65534;
constexpr uid_t kNeighbour = 65533;
constexpr rlim_t kDaemonDescriptors = 2048;
constexpr int kProcesses = 3;
constexpr int kMostEach = 950;  // within a process' own 1,024

// As its limit without the right to raise it.
class FewDescriptors {
 public:
  FewDescriptors() {
    (void)::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few{kDaemonDescriptors, kDaemonDescriptors};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    EXPECT_EQ(::prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE), 0);  // of what is executed from here on
  }
  ~FewDescriptors() { (void)::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

// Makes and keeps things of one user's, each kept by the daemon, until one is refused.
class Hoarder {
 public:
  explicit Hoarder(const std::function<bool(int number)>& hoard) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe(ends.data()), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      (void)::setgroups(0, nullptr);
      if (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0) ::_exit(1);
      int count = 0;
      while (count < kMostEach && hoard(count)) ++count;
      (void)!::write(ends[1], &count, sizeof count);
      for (;;) ::pause();
    }
    (void)::close(ends[1]);
    read_end_ = ends[0];
  }
  Hoarder(const Hoarder&) = delete;
  Hoarder& operator=(const Hoarder&) = delete;
  ~Hoarder() {
    (void)::kill(pid_, SIGKILL);
    (void)::waitpid(pid_, nullptr, 0);
    (void)::close(read_end_);
  }
  int hoarded() const {
    int count = -1;
    (void)!::read(read_end_, &count, sizeof count);
    return count;
  }

 private:
  pid_t pid_ = -1;
  int read_end_ = -1;
};

class DescriptorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    KVCACHEFS_NEED_DAEMON();
    const FewDescriptors few;
    mount_ = std::make_unique<Mount>(MountOptions{.pools = {"p:size=256M,entry_size=4K"}});
    as_neighbour([&] { return store(entry(), pattern(1, kBytes)); });
    serving_ = mount_->serving_pid();
  }
  void TearDown() override {
    if (mount_ && HasFailure()) report_daemon_log(*mount_);
  }
  static void as_neighbour(const std::function<int()>& body) {
    EXPECT_EQ(as_user(kNeighbour, kNeighbour, body), 0);
  }
  std::string entry() const { return mount_->path() + "/neighbours"; }
  std::string children() const {
    const std::string pid = std::to_string(mount_->pid());
    return read_file("/proc/" + pid + "/task/" + pid + "/children");
  }
  // What others have and do goes on.
  void expect_neighbour_served() {
    as_neighbour([&] {
      std::string content;
      if (load(entry(), &content) != 0 || !difference(1, content).empty()) return 1;
      if (store(mount_->path() + "/another", "content") != 0) return 2;
      const int fd = ::open(mount_->path().c_str(), O_TMPFILE | O_RDWR, 0600);
      return fd < 0 ? 3 : ::close(fd);
    });
  }

  void expect_to_outlive(const std::function<bool(int process, int number)>& hoard) {
    std::vector<std::unique_ptr<Hoarder>> hoarders;
    for (int process = 0; process < kProcesses; ++process)
      hoarders.push_back(std::make_unique<Hoarder>([&](int number) { return hoard(process, number); }));
    for (const auto& hoarder : hoarders) EXPECT_GT(hoarder->hoarded(), 10);
    // The supervisor looks ten times a second.
    EXPECT_FALSE(eventually([&] { return children() != std::to_string(serving_) + " "; },
                            std::chrono::milliseconds(500)))
        << "children: " << children() << ", was " << serving_;
    expect_neighbour_served();
    mount_->kill_server(true, std::chrono::milliseconds(0));
    ASSERT_TRUE(eventually([&] { return mount_->serving_pid() > 0 && mount_->serving_pid() != serving_; }));
    expect_neighbour_served();
    EXPECT_EQ(children(), std::to_string(mount_->serving_pid()) + " ");
  }

  static constexpr size_t kBytes = 100'000;
  std::unique_ptr<Mount> mount_;
  pid_t serving_ = 0;
};

TEST_F(DescriptorsTest, OfFilesThatNeverHadAName) {
  expect_to_outlive([&](int, int) { return ::open(mount_->path().c_str(), O_TMPFILE | O_RDWR, 0600) >= 0; });
}

TEST_F(DescriptorsTest, OfFilesThatHaveLostTheirNames) {
  expect_to_outlive([&](int process, int number) {
    const std::string name = mount_->path() + "/" + std::to_string(process * 10'000 + number);
    const int fd = ::open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
    return fd >= 0 && ::unlink(name.c_str()) == 0;
  });
}

TEST_F(DescriptorsTest, OfFilesThatAreOpen) {
  expect_to_outlive([&](int process, int number) {
    const std::string name = mount_->path() + "/" + std::to_string(process * 10'000 + number);
    return ::open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600) >= 0;
  });
}

TEST_F(DescriptorsTest, OfDirectoriesThatAreGone) {
  expect_to_outlive([&](int process, int number) {
    const std::string name = mount_->path() + "/" + std::to_string(process * 10'000 + number);
    if (::mkdir(name.c_str(), 0700) != 0) return false;
    return ::open(name.c_str(), O_RDONLY | O_DIRECTORY) >= 0 && ::rmdir(name.c_str()) == 0;
  });
}

}  // namespace
}  // namespace kvcachefs::test
