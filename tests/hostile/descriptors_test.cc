// Attacks by a user on the table of descriptors that the supervisor and its child share: each inode that the
// daemon has to keep alive without a name takes a place in it.
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
constexpr int kMostEach = 950;  // within 1,024, the limit of a process

// A daemon that is started while this lives has few descriptors and may not raise that limit.
class FewDescriptors {
 public:
  FewDescriptors() {
    (void)::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few{kDaemonDescriptors, kDaemonDescriptors};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    EXPECT_EQ(::prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE), 0);  // for programs executed from here on
  }
  ~FewDescriptors() { (void)::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

// A Hoarder makes objects of one user, each of which the daemon has to keep, until one is refused, and keeps
// them.
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
  // Another user's entries and calls work as before.
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
    int hoarded = 0;  // one of them may be too late for a share of what its user may have
    for (const auto& hoarder : hoarders) hoarded += hoarder->hoarded();
    EXPECT_GT(hoarded, 30);
    // The supervisor checks ten times a second.
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

// Of a pool that is removed while its owner has used up his descriptors: his open control file must not
// become one of the pool that gets the number next.
TEST_F(DescriptorsTest, ARemovedPoolsOwnerCommandsNoOther) {
  const std::string mine = mount_->root() + "/mine", other = mount_->root() + "/other";
  ASSERT_EQ(::mkdir(mine.c_str(), 0755), 0);
  ASSERT_EQ(::chown(mine.c_str(), kNobody, kNobody), 0);
  Hoarder hoarder([&](int) { return ::open(mount_->path().c_str(), O_TMPFILE | O_RDWR, 0600) >= 0; });
  EXPECT_GT(hoarder.hoarded(), 10);
  std::array<int, 2> go{}, said{};
  ASSERT_EQ(::pipe(go.data()), 0);
  ASSERT_EQ(::pipe(said.data()), 0);
  const pid_t owner = ::fork();
  if (owner == 0) {
    (void)::setgroups(0, nullptr);
    if (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0) ::_exit(1);
    const int evict = ::open((mine + "/.pool/evict").c_str(), O_WRONLY | O_CLOEXEC);
    const int root = ::open(mine.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int answer = evict >= 0 && root >= 0 ? 0 : errno;
    (void)!::write(said[1], &answer, sizeof answer);
    char byte = 0;
    (void)!::read(go[0], &byte, 1);
    answer = ::write(evict, "100%", 4) == 4 ? 1 : 0;
    (void)!::write(said[1], &answer, sizeof answer);
    ::_exit(0);
  }
  int answer = -1;
  ASSERT_EQ(::read(said[0], &answer, sizeof answer), static_cast<ssize_t>(sizeof answer));
  ASSERT_EQ(answer, 0) << "opened";
  ASSERT_EQ(error_name(error_of(::rmdir(mine.c_str()))), "ok");
  ASSERT_EQ(::kill(serving_, SIGKILL), 0);
  EXPECT_TRUE(eventually([&] { return mount_->serving_pid() > 0 && mount_->serving_pid() != serving_; }));
  ASSERT_EQ(error_name(error_of(::mkdir(other.c_str(), 0700))), "ok");
  for (int i = 0; i < 8; ++i) {
    const std::string name = other + "/e" + std::to_string(i);
    EXPECT_EQ(error_name(store(name + ".new", "content")), "ok");
    EXPECT_EQ(::rename((name + ".new").c_str(), name.c_str()), 0);  // from here on it may be evicted
  }
  ASSERT_EQ(::write(go[1], "x", 1), 1);
  ASSERT_EQ(::read(said[0], &answer, sizeof answer), static_cast<ssize_t>(sizeof answer));
  EXPECT_EQ(list(other).size(), 8u) << "the order's outcome was " << answer;
  ::waitpid(owner, nullptr, 0);
}

}  // namespace
}  // namespace kvcachefs::test
