// One user of a pool cannot throw out what another has in it, if users have shares.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/pool_pressure.h"
#include "tests/support/program.h"

namespace kvcachefs::test {
namespace {

constexpr uid_t kGreedy = 4001, kModest = 4002;
constexpr int kEntries = 12;  // of 1 MiB: less than the share of 16 MiB

// A process of a user that has done something and stays, with what it has open, until the end. Meanwhile it
// does what is to be done again and again.
class Resident {
 public:
  Resident(
      uid_t uid, const std::function<void()>& act,
      const std::function<void()>& again = [] { (void)::pause(); }) {
    std::array<int, 2> ready{};
    EXPECT_EQ(::pipe(ready.data()), 0);
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("no process of a user");
    if (pid_ == 0) {
      if (::setresgid(uid, uid, uid) != 0 || ::setresuid(uid, uid, uid) != 0) ::_exit(1);
      act();
      (void)!::write(ready[1], "1", 1);
      for (;;) again();
    }
    ::close(ready[1]);
    char is_ready = 0;
    EXPECT_EQ(::read(ready[0], &is_ready, 1), 1);
    ::close(ready[0]);
  }
  ~Resident() {
    if (pid_ <= 0) return;
    (void)::kill(pid_, SIGKILL);
    (void)::waitpid(pid_, nullptr, 0);
  }
  Resident(const Resident&) = delete;
  Resident& operator=(const Resident&) = delete;

 private:
  pid_t pid_ = -1;
};

class UserShareTest : public ::testing::Test {
 protected:
  void SetUp() override { KVCACHEFS_NEED_DAEMON(); }
  void TearDown() override {
    if (mount_ && HasFailure()) report_daemon_log(*mount_);
    if (mount_) mount_->stop();
  }
  void start(const std::string& more = ",user_share=25%") {
    mount_.emplace(MountOptions{.pools = {"p:size=64M" + more}});
  }
  std::string path(const std::string& name) const { return mount_->path() + "/" + name; }
  static std::string modest(int entry) { return "modest-" + std::to_string(entry); }
  int store_as(uid_t uid, const std::string& name, size_t bytes = kMiB) const {
    return as_user(uid, uid, [&] { return store(path(name), pattern(1, bytes)); });
  }
  void store_modest() {
    for (int i = 0; i < kEntries; ++i) ASSERT_EQ(error_name(store_as(kModest, modest(i))), "ok");
    ASSERT_TRUE(settled(*mount_));
  }
  int modest_left() const {
    int left = 0;
    for (int i = 0; i < kEntries; ++i) left += exists(path(modest(i)));
    return left;
  }
  // The values of a user's line, by their names.
  std::map<std::string, std::string> user(const std::string& uid) const {
    std::istringstream lines(read_file(mount_->control("users")));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::map<std::string, std::string> values;
      for (std::string name, value; words >> name >> value;) values[name] = value;
      if (values["user"] == uid) return values;
    }
    return {};
  }
  int64_t bytes_of(uid_t uid) const {
    const auto its = user(std::to_string(uid));
    return its.contains("bytes") ? std::stoll(its.at("bytes")) : 0;
  }
  bool is_over(uid_t uid) const {
    const auto its = user(std::to_string(uid));
    return its.contains("over") && its.at("over") == "yes";
  }
  // Makes files of this size by fallocate(2) and closes them; answers the first error.
  int allocate_as(uid_t uid, int files, off_t bytes) const {
    return as_user(uid, uid, [&] {
      int first = 0;
      for (int i = 0; i < files; ++i) {
        const File file(path("allocated-" + std::to_string(i)), O_CREAT | O_WRONLY);
        const int error = error_of(::fallocate(file.fd(), 0, 0, bytes));
        if (first == 0) first = error;
      }
      return first;
    });
  }
  // Until nothing more is given to him.
  static void write_until_full(const std::string& name) {
    const int fd = ::open(name.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    const std::string piece(kMiB, 'g');
    while (::write(fd, piece.data(), piece.size()) > 0) {
    }
  }

  std::optional<Mount> mount_;
};

TEST_F(UserShareTest, AllOfThePoolIsHisAsLongAsNobodyNeedsIt) {
  start();
  for (int i = 0; i < 48; ++i) ASSERT_EQ(error_name(store_as(kGreedy, "g" + std::to_string(i))), "ok");
  ASSERT_TRUE(settled(*mount_));
  EXPECT_TRUE(is_over(kGreedy));
  EXPECT_EQ(mount_->stat_value("discards"), 0);
  EXPECT_EQ(mount_->stat_value("users_over"), 1);
  store_modest();
  // His are newer than these, and leave all the same.
  for (int i = 0; i < 100; ++i) ASSERT_EQ(error_name(store_as(kGreedy, "h" + std::to_string(i))), "ok");
  EXPECT_EQ(modest_left(), kEntries);
  EXPECT_FALSE(is_over(kModest));
}

TEST_F(UserShareTest, AnOpenFileThatFillsThePoolThrowsNothingOut) {
  start();
  store_modest();
  const Resident greedy(kGreedy, [this] { write_until_full(path("large")); });
  EXPECT_TRUE(eventually([this] { return is_over(kGreedy); }));
  EXPECT_EQ(modest_left(), kEntries);
  EXPECT_EQ(error_name(store_as(kModest, "new")), "ok") << "his own make room for it";
  EXPECT_TRUE(exists(path("new")));
  EXPECT_GE(modest_left(), kEntries / 2) << "about what the new one needs";
}

// By their sizes alone they look as if they were being written.
TEST_F(UserShareTest, SparseFilesThatGrowThrowNothingOut) {
  start();
  store_modest();
  std::vector<int> files;
  off_t size = 0;
  const auto make = [&] {
    files.push_back(::open(path("held").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
    const std::string piece(kMiB, 'g');
    for (int i = 0; i < 48; ++i) (void)!::write(files[0], piece.data(), piece.size());
    size = 48 * kMiB;
    for (int i = 0; i < 16; ++i)
      files.push_back(
          ::open(path("sparse-" + std::to_string(i)).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
  };
  const Resident greedy(kGreedy, make, [&] {
    size += 4096;
    for (const int file : files) (void)!::ftruncate(file, size);
  });
  EXPECT_EQ(modest_left(), kEntries);
  EXPECT_EQ(error_name(store_as(kModest, "new", 4 * kMiB)), "ok");
  EXPECT_GE(modest_left(), kEntries / 4) << "about what the new one needs and is promised";
}

// A write to what a file has already takes no room, wherever the file has holes.
TEST_F(UserShareTest, WhatHeHasIsWrittenAnewInAFullPool) {
  start();
  constexpr off_t kBehindAHole = 8 << 20;
  const int error = as_user(kGreedy, kGreedy, [this] {
    const std::string block(4096, 's');
    const File sparse(path("sparse"), O_CREAT | O_RDWR);
    if (::pwrite(sparse.fd(), block.data(), block.size(), kBehindAHole) != 4096) return errno;
    const File large(path("large"), O_CREAT | O_WRONLY);
    for (const size_t bytes : {kMiB, size_t{4096}}) {
      const std::string piece(bytes, 'g');
      while (::write(large.fd(), piece.data(), piece.size()) > 0) {
      }
    }
    const File again(path("sparse"), O_RDWR);  // for which nothing can be promised
    const bool is_full = ::pwrite(again.fd(), block.data(), block.size(), 2 * kBehindAHole) == -1;
    if (mode() == Mode::kDaemonIo && !is_full) return EEXIST;
    return ::pwrite(again.fd(), block.data(), block.size(), kBehindAHole) == 4096 ? 0 : errno;
  });
  EXPECT_EQ(error_name(error), "ok");
  EXPECT_TRUE(is_over(kGreedy));
}

TEST_F(UserShareTest, FloodsThrowNothingOut) {
  start();
  store_modest();
  constexpr int kDirectories = 24'000;  // the pool has 22,175 inodes
  const int refused = as_user(kGreedy, kGreedy, [this] {
    for (int i = 0; i < kDirectories; ++i)
      if (::mkdir(path("d" + std::to_string(i)).c_str(), 0755) != 0) return error_of(-1);
    return 0;
  });
  EXPECT_EQ(error_name(refused), "ok") << "his oldest leave for others of his";
  EXPECT_GT(mount_->stat_value("directories_reclaimed"), 0);
  EXPECT_TRUE(is_over(kGreedy));
  EXPECT_EQ(modest_left(), kEntries) << "by directories";
  const int flood = as_user(kGreedy, kGreedy, [this] {
    for (int i = 0; i < 2'000; ++i) {
      const int error = store(path("small" + std::to_string(i)), "x");
      if (error != 0 && error != ENOSPC) return error;
      if (error == ENOSPC) break;
    }
    return 0;
  });
  EXPECT_EQ(error_name(flood), "ok");
  EXPECT_EQ(modest_left(), kEntries) << "by small entries";
  EXPECT_EQ(error_name(store_as(kModest, "new")), "ok");
  EXPECT_EQ(modest_left(), kEntries);
}

TEST_F(UserShareTest, WhatIsAllocatedCountsBeforeItIsThere) {
  start();
  store_modest();
  EXPECT_EQ(error_name(allocate_as(kGreedy, 10, 56 * kMiB)), "ENOSPC");
  EXPECT_EQ(modest_left(), kEntries) << "more than a share at once";
  EXPECT_EQ(error_name(allocate_as(kGreedy, 10, 12 * kMiB)), "ok");
  EXPECT_EQ(modest_left(), kEntries) << "a part of a share again and again";
}

// A user opens each version of an entry that its owner replaces.
TEST_F(UserShareTest, WhatAnotherHoldsOpenCountsForTheHolder) {
  start();
  if (mount_->serving_pid() == 0) GTEST_SKIP() << "without a supervisor nothing tells who closes a file";
  store_modest();
  const auto replace = [this] {
    const int stored = store(path("next"), pattern(1, kMiB));
    return stored != 0 ? stored : error_of(::rename(path("next").c_str(), path("version").c_str()));
  };
  {
    ino_t last = 0;
    const Resident greedy(
        kGreedy, [] {},
        [&] {
          struct stat status {};
          if (::stat(path("version").c_str(), &status) != 0 || status.st_ino == last) return;
          if (::open(path("version").c_str(), O_RDONLY | O_CLOEXEC) >= 0) last = status.st_ino;
        });
    for (int i = 1; i <= 24; ++i) {
      ASSERT_EQ(error_name(as_user(kModest, kModest, replace)), "ok");
      ASSERT_TRUE(eventually([&] { return mount_->stat_value("open_entries") == i; })) << i;
    }
    EXPECT_TRUE(is_over(kGreedy)) << bytes_of(kGreedy);
    EXPECT_FALSE(is_over(kModest)) << bytes_of(kModest);
    // What its owner has open, too, is the owner's.
    const Resident owner(kModest, [this] { (void)::open(path("version").c_str(), O_RDONLY | O_CLOEXEC); });
    ASSERT_EQ(::unlink(path("version").c_str()), 0);
    EXPECT_GT(bytes_of(kModest), static_cast<int64_t>((kEntries + 1) * kMiB));
  }
  EXPECT_TRUE(eventually([this] { return bytes_of(kGreedy) == 0; })) << bytes_of(kGreedy);
}

TEST_F(UserShareTest, WhoHoldsAllEntriesOpenKeepsNobodyFromMakingSome) {
  start(",user_share=25%,max_entries=100");
  const Resident greedy(kGreedy, [this] {
    for (int i = 0; ::open(path("held-" + std::to_string(i)).c_str(), O_CREAT | O_WRONLY, 0644) >= 0;) ++i;
  });
  EXPECT_TRUE(is_over(kGreedy));
  // The last places are enough, because his own entries leave for more of his.
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(error_name(store_as(kModest, "new-" + std::to_string(i), 4096)), "ok") << i;
  EXPECT_TRUE(exists(path("new-19")));
  EXPECT_TRUE(exists(path("held-0")));
  EXPECT_GE(mount_->stat_value("entries"), 90);
  EXPECT_EQ(error_name(store_as(kGreedy, "more", 4096)), "ENOSPC");
}

TEST_F(UserShareTest, LongLinksAreRefusedBeyondAShare) {
  start();
  store_modest();
  const int refused = as_user(kGreedy, kGreedy, [this] {
    const std::string target(4000, 't');
    for (int i = 0; i < 100'000; ++i)
      if (::symlink(target.c_str(), path("l" + std::to_string(i)).c_str()) != 0) return error_of(-1);
    return 0;
  });
  EXPECT_EQ(error_name(refused), "EDQUOT");
  EXPECT_TRUE(is_over(kGreedy));
  EXPECT_LT(bytes_of(kGreedy), static_cast<int64_t>(17 * kMiB));
  EXPECT_EQ(error_name(as_user(kGreedy, kGreedy,
                               [this] { return error_of(::symlink("short", path("short").c_str())); })),
            "ok");
  EXPECT_EQ(modest_left(), kEntries);
}

TEST_F(UserShareTest, XattrsCountForTheOwner) {
  start();
  store_modest();
  const int refused = as_user(kGreedy, kGreedy, [this] {
    const std::string value(60'000, 'v');
    for (int i = 0; i < 507; ++i) {
      const std::string name = path("d" + std::to_string(i));
      if (::mkdir(name.c_str(), 0755) != 0) return error_of(-1);
      // One that is not open may leave after a second.
      if (::open(name.c_str(), O_PATH | O_CLOEXEC) < 0) return error_of(-1);
      if (const int error = set_xattr(name, "user.large", value); error != 0) return error;
    }
    return 0;
  });
  EXPECT_EQ(error_name(refused), "ENOSPC") << "the last inodes are not for him";
  EXPECT_TRUE(is_over(kGreedy));
  EXPECT_EQ(error_name(store_as(kModest, "new")), "ok");
  EXPECT_EQ(modest_left(), kEntries);
}

// As one process does that dies, and as a user with more than one number has.
TEST_F(UserShareTest, ManyUsersAreCountedOverATakeover) {
  start(",user_share=1%");
  constexpr int kUsers = 270;
  for (uid_t each = 0; each < kUsers; ++each)
    ASSERT_EQ(error_name(store_as(10'000 + each, "u" + std::to_string(each), 4096 * (each % 3 + 1))), "ok");
  ASSERT_EQ(error_name(store_as(kGreedy, "large", 2 * kMiB)), "ok");
  ASSERT_TRUE(settled(*mount_));
  const auto sum = [this] {
    std::istringstream lines(read_file(mount_->control("users")));
    std::pair<int, int64_t> all;
    std::string user, uid, word, over;
    lines >> word >> uid;  // the share
    for (int64_t bytes = 0, disk = 0;
         lines >> user >> uid >> word >> bytes >> word >> disk >> word >> over;) {
      ++all.first;
      all.second += bytes;
    }
    return all;
  };
  const auto before = sum();
  EXPECT_LE(before.first, 255);
  EXPECT_GE(before.first, 254);
  EXPECT_GT(user("others")["bytes"].size(), 0u);
  if (mount_->serving_pid() == 0) return;  // nobody takes over
  const auto generation = [this] {
    return parse_stats(read_file(mount_->root() + "/.kvcachefs/stats"))["generation"];
  };
  const std::string first = generation();
  ASSERT_EQ(::kill(mount_->serving_pid(), SIGKILL), 0);
  ASSERT_TRUE(eventually([&] { return generation() != first; }));
  EXPECT_EQ(sum(), before);
  EXPECT_EQ(read_file(mount_->control("user_share")), "1%\n");
}

TEST_F(UserShareTest, ASettingThatIsShown) {
  start("");
  ASSERT_EQ(error_name(store_as(kGreedy, "g")), "ok");
  EXPECT_FALSE(is_over(kGreedy)) << "nobody has a share";
  EXPECT_EQ(error_name(write_once(mount_->control("user_share"), "1%")), "ok");
  EXPECT_EQ(read_file(mount_->control("user_share")), "1%\n");
  EXPECT_TRUE(is_over(kGreedy));
  const Outcome status = run({"kvcachefs", "--mount", mount_->root(), "status", "p"});
  EXPECT_NE(status.out.find("1 over a share of 655"), std::string::npos) << status.out;
  EXPECT_NE(status.out.find("4001: 1M, 0 on disk, over"), std::string::npos) << status.out;
  EXPECT_EQ(error_name(write_once(mount_->control("user_share"), "0")), "ok");
  EXPECT_FALSE(is_over(kGreedy));
}

TEST_F(UserShareTest, WrongSettingsAreRefusedAndNotAllWrittenDown) {
  start(",user_share=25%,uid=4001");
  const size_t log_before = mount_->log().size();
  const int answer = as_user(kGreedy, kGreedy, [this] {
    for (int i = 0; i < 2'000; ++i)
      for (const char* wrong : {"101%", "half"})
        if (write_once(mount_->control("user_share"), wrong) != EINVAL) return 1;
    return 0;
  });
  EXPECT_EQ(answer, 0);
  EXPECT_EQ(read_file(mount_->control("user_share")), "25%\n");
  EXPECT_TRUE(eventually([&] {
    return mount_->log().find("user_share: '101%' is not a percentage from 0 to 100", log_before) !=
           std::string::npos;
  }));
  EXPECT_LT(mount_->log().size() - log_before, 8192u);
}

}  // namespace
}  // namespace kvcachefs::test
