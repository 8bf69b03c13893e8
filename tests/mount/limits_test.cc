// The limits of a pool's entries and directories: what leaves at a limit, who is told ENOSPC, and that the
// counts are true whatever happens.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/faults.h"
#include "tests/support/files.h"

namespace kvcachefs::test {
namespace {

constexpr int kThreads = 4;

class LimitsTest : public FaultedTierTest {
 protected:
  // A pool in which every empty directory that is not in use may leave.
  void start_limited(const std::string& limits) { start_pool("p:size=64M,mode=0755," + limits); }
  void a_minute_is(int milliseconds) { arm("failing directory rest " + std::to_string(milliseconds) + "\n"); }

  int store_one(const std::string& name) { return store(path(name), name); }
  void store_all(const std::string& name, int count) {
    for (int i = 0; i < count; ++i)
      ASSERT_EQ(error_name(store_one(name + std::to_string(i))), "ok") << i << "\n" << mount().log();
  }
  int make_one(const std::string& name) { return error_of(::mkdir(path(name).c_str(), 0755)); }
  int create(const std::string& name, int flags = 0) {
    const int fd = ::open(path(name).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC | flags, 0644);
    const int error = error_of(fd);
    if (fd >= 0) ::close(fd);
    return error;
  }

  struct Counts {
    int64_t entries = 0;
    int64_t directories = 0;
    bool operator==(const Counts&) const = default;
  };
  Counts told() { return {stat("entries"), stat("directories")}; }
  Counts found() {
    std::set<uint64_t> files;
    Counts counts;
    std::error_code error;
    for (auto at = std::filesystem::recursive_directory_iterator(mount().path(), error);
         at != std::filesystem::recursive_directory_iterator(); at.increment(error)) {
      struct ::stat status {};
      if (::lstat(at->path().c_str(), &status) != 0) continue;
      if (S_ISREG(status.st_mode)) files.insert(status.st_ino);
      if (S_ISDIR(status.st_mode)) ++counts.directories;
    }
    counts.entries = static_cast<int64_t>(files.size());
    return counts;
  }
  // The pool comes to rest: the counts are those of the tree.
  ::testing::AssertionResult counts_are_true() {
    if (eventually([&] { return told() == found(); })) return ::testing::AssertionSuccess();
    const Counts is = told(), really = found();
    return ::testing::AssertionFailure()
           << is.entries << " entries and " << is.directories << " directories are counted, of "
           << really.entries << " and " << really.directories;
  }
};

TEST_F(LimitsTest, APoolHoldsAsManyEntriesAsItsLimitSays) {
  start_limited("max_entries=100");
  store_all("e", 100);
  EXPECT_EQ(stat("entries"), 100);
  EXPECT_EQ(stat("max_entries"), 100);
  EXPECT_EQ(found().entries, 100) << "none left before a request needed its place";
  for (int i = 0; i < 400; ++i) {
    ASSERT_EQ(error_name(store_one("more" + std::to_string(i))), "ok") << i << "\n" << mount().log();
    ASSERT_LE(stat("entries"), 100);
  }
  EXPECT_EQ(read_file(path("more399")), "more399");
  EXPECT_GE(stat("discards"), 400);
  EXPECT_GE(stat("entries"), 50);
  EXPECT_TRUE(counts_are_true());
}

TEST_F(LimitsTest, WhereNoEntryCanLeaveTheCreatorIsTold) {
  start_limited("max_entries=10");
  std::vector<File> open;
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(error_name(store_one("e" + std::to_string(i))), "ok");
    open.emplace_back(path("e" + std::to_string(i)), O_RDONLY);
  }
  EXPECT_EQ(error_name(create("new")), "ENOSPC");
  EXPECT_EQ(error_name(error_of(::mknod(path("new").c_str(), S_IFREG | 0644, 0))), "ENOSPC");
  EXPECT_EQ(stat("no_space_errors"), 2);
  EXPECT_NE(mount().log().find("pool p: max_entries 10 is reached"), std::string::npos) << mount().log();
  EXPECT_EQ(error_name(create("e1")), "ok") << "it is there";
  EXPECT_EQ(error_name(create("e1", O_EXCL)), "EEXIST");
  EXPECT_EQ(error_name(error_of(::mknod(path("e1").c_str(), S_IFREG | 0644, 0))), "EEXIST");
  // A name that is no entry needs no place.
  EXPECT_EQ(error_name(error_of(::link(path("e1").c_str(), path("link").c_str()))), "ok");
  EXPECT_EQ(error_name(error_of(::symlink("e1", path("symlink").c_str()))), "ok");
  EXPECT_EQ(error_name(error_of(::mknod(path("pipe").c_str(), S_IFIFO | 0644, 0))), "ok");
  EXPECT_EQ(error_name(make_one("d")), "ok");
  const File nameless(mount().path(), O_TMPFILE | O_RDWR);
  const std::string its = "/proc/self/fd/" + std::to_string(nameless.fd());
  const auto name_it = [&] {
    return error_of(::linkat(AT_FDCWD, its.c_str(), AT_FDCWD, path("named").c_str(), AT_SYMLINK_FOLLOW));
  };
  EXPECT_EQ(error_name(name_it()), "ENOSPC");
  EXPECT_EQ(stat("entries"), 10);
  EXPECT_EQ(error_name(error_of(::rename(path("e2").c_str(), path("e3").c_str()))), "ok");
  EXPECT_EQ(stat("entries"), 9);
  EXPECT_EQ(error_name(name_it()), "ok");
  EXPECT_EQ(stat("entries"), 10);
  EXPECT_EQ(error_name(create("new")), "ENOSPC");
  open.clear();
  EXPECT_TRUE(eventually([&] { return create("new") == 0; }));
  EXPECT_LE(stat("entries"), 10);
  EXPECT_TRUE(counts_are_true());
}

TEST_F(LimitsTest, DirectoriesHaveALimitOfTheirOwn) {
  start_limited("max_directories=20");
  std::map<std::string, File> held;  // an empty directory that no process has open leaves
  const auto make_held = [&](const std::string& name) {
    ASSERT_EQ(error_name(make_one(name)), "ok");
    held.try_emplace(name, path(name), O_RDONLY | O_DIRECTORY);
  };
  for (int i = 0; i < 20; ++i) ASSERT_NO_FATAL_FAILURE(make_held("d" + std::to_string(i)));
  EXPECT_EQ(error_name(make_one("new")), "ENOSPC") << "all are held";
  EXPECT_EQ(error_name(make_one("d1")), "EEXIST");
  EXPECT_NE(mount().log().find("pool p: max_directories 20 is reached"), std::string::npos) << mount().log();
  EXPECT_EQ(error_name(store_one("d1/f")), "ok");
  for (const char* name : {"d3", "d4"}) held.erase(name);
  EXPECT_EQ(error_name(error_of(::rename(path("d2").c_str(), path("d3").c_str()))), "ok");
  EXPECT_EQ(told(), (Counts{1, 19}));
  EXPECT_EQ(error_name(error_of(::rmdir(path("d4").c_str()))), "ok");
  ASSERT_NO_FATAL_FAILURE(make_held("new"));
  ASSERT_NO_FATAL_FAILURE(make_held("d5/below"));
  EXPECT_EQ(error_name(make_one("new2")), "ENOSPC");
  held.clear();
  a_minute_is(1);
  EXPECT_TRUE(eventually([&] { return make_one("new2") == 0; })) << mount().log();
  for (int i = 0; i < 100; ++i) {
    const std::string name = "more" + std::to_string(i);
    ASSERT_TRUE(eventually([&] { return make_one(name) == 0; })) << i << "\n" << mount().log();
    ASSERT_LE(stat("directories"), 20);
  }
  EXPECT_TRUE(exists(path("d1/f"))) << "what is not empty stays";
  EXPECT_GE(stat("directories_reclaimed"), 80);
  EXPECT_TRUE(counts_are_true());
}

TEST_F(LimitsTest, ALimitIsChangedWhileThePoolServes) {
  start_limited("size_max=64M");
  EXPECT_EQ(read_file(mount().control("max_entries")), "0\n");
  store_all("e", 300);
  std::vector<File> held;
  for (int i = 0; i < 40; ++i) {
    ASSERT_EQ(make_one("d" + std::to_string(i)), 0);
    held.emplace_back(path("d" + std::to_string(i)), O_RDONLY | O_DIRECTORY);
  }
  set("max_entries", "200");
  set("max_directories", "30");
  EXPECT_EQ(read_file(mount().control("max_entries")), "200\n");
  EXPECT_TRUE(eventually([&] { return stat("entries") <= 200; }));
  EXPECT_EQ(stat("directories"), 40) << "they are held";
  EXPECT_EQ(error_name(make_one("new")), "ENOSPC");
  held.clear();
  a_minute_is(1);
  EXPECT_TRUE(eventually([&] { return stat("directories") <= 30; }));
  set("max_entries", "1");
  EXPECT_TRUE(eventually([&] { return stat("entries") <= 1; }));
  EXPECT_EQ(error_name(store_one("the one")), "ok");
  EXPECT_EQ(read_file(path("the one")), "the one");
  set("max_entries", "0");
  store_all("f", 300);
  EXPECT_EQ(stat("entries"), 301);
  EXPECT_TRUE(counts_are_true());
}

// Everybody makes, renames and removes the same few names, while limits change.
class Crowd {
 public:
  Crowd(const std::string& root, const std::function<bool(int error)>& is_expected) {
    for (int number = 0; number < kThreads; ++number)
      threads_.emplace_back([this, root, is_expected, number] {
        for (int i = 0; !done_; ++i) {
          const std::string name = root + "/" + std::to_string((i * 7 + number) % 50);
          const std::string own = root + "/own" + std::to_string(number) + "-" + std::to_string(i % 20);
          const auto expect = [&](int error) {
            if (error != 0 && !is_expected(error)) first_ = error;
          };
          const int made = error_of(::mkdir((name + "d").c_str(), 0755));
          if (made != EEXIST) expect(made);
          expect(store(own, own));
          (void)::rename(own.c_str(), name.c_str());
          if (i % 3 == 0) (void)::unlink(name.c_str());
          if (i % 5 == 0) (void)::rename((name + "d").c_str(), (root + "/renamed").c_str());
          if (i % 2 == 0) (void)::rmdir((name + "d").c_str());
          ++rounds_;
        }
      });
  }
  ~Crowd() { end(); }
  int rounds() const { return rounds_; }
  int end() {
    done_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    return first_;
  }

 private:
  std::atomic<bool> done_{false};
  std::atomic<int> rounds_{0};
  std::atomic<int> first_{0};
  std::vector<std::thread> threads_;
};

TEST_F(LimitsTest, CountsAreTrueWhateverCrowdsDo) {
  start_limited("max_entries=60,max_directories=40");
  a_minute_is(1);
  // A create may fail for want of a place, because other clients take freed places, too.
  Crowd crowd(mount().path(), [](int error) { return error == ENOSPC || error == ENOENT; });
  for (int round = 0; round < 20; ++round) {
    const int seen = crowd.rounds();
    set("max_entries", std::to_string(20 + round * 13 % 60));
    set("max_directories", std::to_string(10 + round * 7 % 40));
    ASSERT_TRUE(eventually([&] { return crowd.rounds() > seen + 50; }));
  }
  set("max_entries", "30");
  set("max_directories", "20");
  EXPECT_EQ(error_name(crowd.end()), "ok");
  EXPECT_TRUE(counts_are_true());
  EXPECT_TRUE(eventually([&] { return stat("entries") <= 30 && stat("directories") <= 20; }));
  EXPECT_TRUE(counts_are_true());
}

TEST_F(LimitsTest, ASuccessorCountsAnew) {
  start_limited("max_entries=60,max_directories=40");
  a_minute_is(1);
  {
    Crowd crowd(mount().path(), [](int error) { return error == ENOSPC || error == ENOENT; });
    for (int round = 0; round < 5; ++round) {
      const int seen = crowd.rounds();
      ASSERT_TRUE(eventually([&] { return crowd.rounds() > seen + 100; }));
      set("max_entries", std::to_string(50 - round));
      replace_server();
      serve_for_a_moment();
    }
    EXPECT_EQ(error_name(crowd.end()), "ok");
  }
  EXPECT_TRUE(counts_are_true());
  EXPECT_EQ(stat("max_entries"), 46) << "it has the limit that was set last";
  EXPECT_TRUE(eventually([&] { return stat("entries") <= 46; }));
  EXPECT_EQ(error_name(store_one("new")), "ok");
  EXPECT_LE(stat("entries"), 46);
  EXPECT_LE(stat("directories"), 40);
}

TEST_F(LimitsTest, EntriesOnTheDiskCountToo) {
  start({.more = "max_entries=60,mode=0755"});
  const auto names = fill_pool("e", 60);
  EXPECT_TRUE(becomes("dirty_entries", 0));
  make_all_cold();
  EXPECT_EQ(stat("cold_entries"), 60);
  EXPECT_EQ(stat("entries"), 60);
  const auto more = fill_pool("more", 30);
  EXPECT_EQ(check_whole(more), 30);
  EXPECT_LE(stat("entries"), 60);
  EXPECT_GE(stat("entries"), 30);
  EXPECT_EQ(check_whole(names), static_cast<int>(survivors(names).size())) << "what is left is whole";
  EXPECT_TRUE(counts_are_true());
  // A pool full of what is not on the disk yet takes new ones all the same, as fast as the disk takes them.
  for (int i = 0; i < 200; ++i) {
    const std::string name = "small" + std::to_string(i);
    ASSERT_TRUE(eventually([&] { return store_one(name) == 0; })) << i << "\n" << mount().log();
    ASSERT_LE(stat("entries"), 60);
  }
  EXPECT_TRUE(counts_are_true());
  EXPECT_TRUE(becomes("dirty_entries", 0));
  const Counts before = told();
  stop_and_check();
  start({.more = "max_entries=60,mode=0755"});
  EXPECT_EQ(told(), before);
  stop();
  start({.more = "max_entries=10,mode=0755"});
  EXPECT_TRUE(eventually([&] { return stat("entries") <= 10; })) << stat("entries");
  EXPECT_EQ(error_name(store_one("new")), "ok") << mount().log();
  EXPECT_TRUE(counts_are_true());
  EXPECT_TRUE(becomes("dirty_entries", 0));
  stop_and_check();
}

TEST_F(LimitsTest, DirectoriesComeBackFromTheDisk) {
  start({.more = "max_directories=30,mode=0755"});
  for (int i = 0; i < 10; ++i) {
    const std::string name = "d" + std::to_string(i);
    ASSERT_EQ(make_one(name), 0);
    ASSERT_EQ(make_one(name + "/below"), 0);
    ASSERT_EQ(store_one(name + "/below/f"), 0);
  }
  EXPECT_EQ(told(), (Counts{10, 20}));
  EXPECT_TRUE(becomes("dirty_entries", 0));
  replace_server();
  EXPECT_EQ(told(), (Counts{10, 20}));
  stop_and_check();
  start({.more = "max_directories=30,mode=0755"});
  EXPECT_EQ(told(), (Counts{10, 20}));
  std::vector<File> held;
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(error_name(make_one("e" + std::to_string(i))), "ok");
    held.emplace_back(path("e" + std::to_string(i)), O_RDONLY | O_DIRECTORY);
  }
  EXPECT_EQ(error_name(make_one("new")), "ENOSPC");
}

TEST_F(LimitsTest, XattrsOfEachInode) {
  start_limited("max_xattr_bytes=100,max_xattrs=3");
  ASSERT_EQ(store_one("f"), 0);
  ASSERT_EQ(make_one("d"), 0);
  for (const char* name : {"f", "d"}) {
    const std::string its = path(name);
    const auto put = [&](const std::string& xattr, size_t bytes) {
      const int error = ::setxattr(its.c_str(), xattr.c_str(), std::string(bytes, 'x').data(), bytes, 0);
      return error_name(error == 0 ? 0 : errno);
    };
    set("max_xattr_bytes", "100");
    EXPECT_EQ(put("user.a", 94), "ok") << "the name counts, too";
    EXPECT_EQ(put("user.a", 95), "ENOSPC");
    EXPECT_EQ(put("user.b", 1), "ENOSPC");
    EXPECT_EQ(put("user.a", 10), "ok");
    EXPECT_EQ(put("user.b", 1), "ok");
    EXPECT_EQ(put("user.c", 1), "ok");
    EXPECT_EQ(put("user.d", 1), "ENOSPC") << "three are the most";
    EXPECT_EQ(put("user.c", 2), "ok") << "it is there";
    set("max_xattr_bytes", "20");
    EXPECT_EQ(put("user.c", 3), "ENOSPC") << "from now on";
    EXPECT_EQ(put("user.c", 2), "ok") << "it takes no more than before";
    EXPECT_EQ(::getxattr(its.c_str(), "user.a", nullptr, 0), 10) << "what is there stays";
    EXPECT_EQ(::removexattr(its.c_str(), "user.a"), 0);
    EXPECT_EQ(put("user.c", 1), "ok");
  }
  replace_server();
  EXPECT_EQ(::setxattr(path("f").c_str(), "user.c", "12345678", 8, 0), -1) << "a successor has the limit";
  EXPECT_EQ(errno, ENOSPC);
}

TEST_F(LimitsTest, WhoWaitsInOnePoolHoldsUpNoOther) {
  start_limited("max_entries=20");
  std::vector<File> open;
  for (int i = 0; i < 20; ++i) open.emplace_back(path("e" + std::to_string(i)), O_CREAT | O_RDWR);
  // Far more than there are threads: each is refused, and none while another pool's or this one's reads wait.
  std::atomic<int> refused{0};
  std::vector<std::thread> creators;
  for (int i = 0; i < 64; ++i)
    creators.emplace_back([&, i] { refused += create("new" + std::to_string(i)) == ENOSPC ? 1 : 0; });
  for (int i = 0; i < 1000; ++i) (void)exists(path("nothing" + std::to_string(i)));
  for (std::thread& creator : creators) creator.join();
  EXPECT_EQ(refused, 64);
  EXPECT_EQ(stat("entries"), 20);
}

}  // namespace
}  // namespace kvcachefs::test
