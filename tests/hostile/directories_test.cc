// Directories take inodes as files do, and engines spread their entries over as many as a million of them.
// Directories that have become empty leave when inodes run short, except those that a client holds or has
// just made.
#include <fcntl.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/faults.h"
#include "tests/support/files.h"

namespace kvcachefs::test {
namespace {

constexpr const char* kSmallPool = "p:size=4M";  // this pool has 5,734 inodes
constexpr int kMoreThanFit = 7000;
constexpr size_t kEntryBytes = 1024;
constexpr int kAnHour = 3'600'000;  // for a minute: then a second is a minute

int make_all(const std::string& directory) {
  for (size_t at = directory.find('/', 1); at != std::string::npos; at = directory.find('/', at + 1)) {
    const std::string above = directory.substr(0, at);
    if (!exists(above) && ::mkdir(above.c_str(), 0755) != 0 && errno != EEXIST) return errno;
  }
  return ::mkdir(directory.c_str(), 0755) == 0 || errno == EEXIST ? 0 : errno;
}

class DirectoriesTest : public FaultedTierTest {
 protected:
  void SetUp() override {
    FaultedTierTest::SetUp();
    a_minute_is(1);
  }

  void a_minute_is(int milliseconds) { arm("failing directory rest " + std::to_string(milliseconds) + "\n"); }
  // The path of a block as vLLM names it.
  std::string leaf(const std::string& top, int block) {
    return path(top + "_r0/" + std::to_string(block % 64) + "/" + std::to_string(block) + "_g0");
  }
  int store_block(const std::string& top, int block) {
    if (const int error = make_all(leaf(top, block)); error != 0) return error;
    return store(leaf(top, block) + "/hash.bin", pattern(block, kEntryBytes));
  }
  void store_blocks(const std::string& top, int count) {
    for (int block = 0; block < count; ++block)
      ASSERT_EQ(error_name(store_block(top, block)), "ok") << block << "\n" << mount().log();
  }
  // crowd() makes `count` empty directories.
  void crowd(const std::string& name, int count = kMoreThanFit) {
    for (int i = 0; i < count; ++i)
      ASSERT_EQ(error_name(error_of(::mkdir(path(name + std::to_string(i)).c_str(), 0755))), "ok") << i;
  }
  uint64_t free_inodes() {
    struct statvfs status {};
    EXPECT_EQ(::statvfs(mount().path().c_str(), &status), 0);
    return status.f_ffree;
  }
  // count_in() lists a directory without a lookup of its names, so that the question changes nothing.
  size_t count_in(const std::string& directory) { return list(directory).size(); }
};

TEST_F(DirectoriesTest, ABlockOfItsOwnDirectoryIsStoredForEver) {
  start_pool(kSmallPool);
  store_blocks("model", kMoreThanFit);
  EXPECT_GT(stat("directories_reclaimed"), 1000);
  EXPECT_GT(stat("entries"), 500);
  const int last = kMoreThanFit - 1;
  EXPECT_EQ(difference(last, read_file(leaf("model", last) + "/hash.bin")), "");
  EXPECT_EQ(mount().log().find("no inode"), std::string::npos) << mount().log();
  store_blocks("again", 1000);
}

TEST_F(DirectoriesTest, ParentsGoAfterWhatIsInThem) {
  start_pool(std::string(kSmallPool) + ",mode=0755");
  for (int i = 0; i < 500; ++i) ASSERT_EQ(make_all(path("deep" + std::to_string(i) + "/a/b/c")), 0);
  int round = 0;
  EXPECT_TRUE(eventually(
      [&] {
        crowd("crowd" + std::to_string(++round) + "-", 1000);
        return std::ranges::none_of(list(mount().path()),
                                    [](const std::string& name) { return name.starts_with("deep"); });
      },
      std::chrono::seconds(60)));
}

TEST_F(DirectoriesTest, ThoseAtTheTopLeaveLast) {
  start_pool(kSmallPool);
  make_directory(path("made-at-start"));
  for (int i = 0; i < kMoreThanFit; ++i)
    ASSERT_EQ(error_name(make_all(path("model/" + std::to_string(i)))), "ok");
  EXPECT_GT(stat("directories_reclaimed"), 500);
  EXPECT_TRUE(exists(path("made-at-start")));
}

TEST_F(DirectoriesTest, WhatAClientHasJustMadeStays) {
  start_pool(kSmallPool);
  a_minute_is(kAnHour);
  int made = 0;
  int error = 0;
  for (; error == 0 && made < kMoreThanFit; made += error == 0 ? 1 : 0)
    error = error_of(::mkdir(path("d" + std::to_string(made)).c_str(), 0755));
  EXPECT_EQ(error_name(error), "ENOSPC");
  EXPECT_GT(made, 5000);
  EXPECT_EQ(count_in(mount().path()), static_cast<size_t>(made));
  EXPECT_EQ(stat("directories_reclaimed"), 0);
  EXPECT_NE(mount().log().find("pool p: no inode is left"), std::string::npos) << mount().log();
  // After the minute there is room.
  a_minute_is(1);
  EXPECT_TRUE(eventually([&] { return free_inodes() > 1000; })) << free_inodes();
  EXPECT_EQ(error_name(store_block("model", 1)), "ok");
}

TEST_F(DirectoriesTest, WhatIsMadeAgainStaysForAnotherMinute) {
  start_pool(kSmallPool);
  crowd("d", 1000);
  a_minute_is(kAnHour);
  // `mkdir -p` finds that the directory exists, and it has to exist when the client makes a file in it.
  for (int i = 0; i < 1000; ++i)
    ASSERT_EQ(error_name(error_of(::mkdir(path("d" + std::to_string(i)).c_str(), 0755))), "EEXIST");
  int made = 0;
  while (made < kMoreThanFit && ::mkdir(path("e" + std::to_string(made)).c_str(), 0755) == 0) ++made;
  EXPECT_LT(made, kMoreThanFit);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(exists(path("d" + std::to_string(i)))) << i;
}

// A Sitter is a process that has the directory as working directory until leave().
class Sitter {
 public:
  explicit Sitter(const std::string& directory) {
    int ready[2];
    if (::pipe2(ready, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    process_ = ::fork();
    if (process_ == 0) {
      const bool sits = ::chdir(directory.c_str()) == 0;
      (void)!::write(ready[1], sits ? "y" : "n", 1);
      for (;;) ::pause();
    }
    char answer = 0;
    sits_ = ::read(ready[0], &answer, 1) == 1 && answer == 'y';
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~Sitter() { leave(); }
  bool sits() const { return sits_; }
  void leave() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = 0;
  }

 private:
  pid_t process_ = 0;
  bool sits_ = false;
};

TEST_F(DirectoriesTest, WhatSomebodyHoldsStays) {
  // With the sticky bit, the first 64 directories of each owner that could leave stay.
  start_pool(std::string(kSmallPool) + ",mode=0755");
  const std::vector<std::string> names = {"open",  "path",    "cwd",  "watched",
                                          "bound", "mounted", "free", "probed"};
  for (const std::string& name : names) {
    make_directory(path(name), 0750);
    ASSERT_EQ(set_xattr(path(name), "user.of", name), 0);
    // The kernel remembers a name that was looked for in vain, and keeps the directory for it.
    const bool looked_in = name == "open" || name == "cwd" || name == "probed";
    EXPECT_FALSE(looked_in && exists(path(name + "/none")));
  }
  const File open(path("open"), O_RDONLY | O_DIRECTORY);
  File by_path(path("path"), O_PATH | O_DIRECTORY);
  Sitter sitter(path("cwd"));
  ASSERT_TRUE(sitter.sits());
  File watcher(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  ASSERT_GE(::inotify_add_watch(watcher.fd(), path("watched").c_str(), IN_CREATE | IN_DELETE_SELF), 0);
  const std::string bound = disk() / "bound";
  make_directory(bound);
  ASSERT_EQ(::mount(path("bound").c_str(), bound.c_str(), nullptr, MS_BIND, nullptr), 0);
  ASSERT_EQ(::mount("none", path("mounted").c_str(), "tmpfs", 0, nullptr), 0);
  write_file(path("mounted/file"), "on top");

  crowd("crowd");
  int round = 0;
  EXPECT_TRUE(eventually(
      [&] {
        crowd("round" + std::to_string(++round) + "-", 1000);
        return !exists(path("free")) && !exists(path("probed"));
      },
      std::chrono::seconds(60)));
  for (const std::string name : {"open", "path", "cwd", "watched", "bound"}) {
    struct ::stat status {};
    ASSERT_EQ(::stat(path(name).c_str(), &status), 0) << name;
    EXPECT_EQ(status.st_mode, S_IFDIR | 0750u) << name;
    EXPECT_EQ(xattr(path(name), "user.of"), name);
  }
  EXPECT_EQ(read_file(path("mounted/file")), "on top");
  const File inside(::openat(open.fd(), "entry", O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  EXPECT_GE(inside.fd(), 0);
  EXPECT_EQ(error_name(store(bound + "/entry", pattern(1, kEntryBytes))), "ok");
  EXPECT_EQ(difference(1, read_file(path("bound/entry"))), "");

  // A directory that is let go of leaves in its turn.
  ASSERT_EQ(::umount2(bound.c_str(), MNT_DETACH), 0);
  ASSERT_EQ(::umount2(path("mounted").c_str(), MNT_DETACH), 0);
  by_path.close();
  watcher.close();
  sitter.leave();
  EXPECT_TRUE(eventually(
      [&] {
        crowd("more" + std::to_string(++round) + "-", 1000);
        for (const std::string name : {"path", "cwd", "watched", "mounted"})
          if (exists(path(name))) return false;
        return true;
      },
      std::chrono::seconds(60)));
}

TEST_F(DirectoriesTest, CreatesInThemWinOrMissThem) {
  start_pool(kSmallPool);
  std::atomic<int> stored{0};
  std::atomic<int> missed{0};
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 4; ++writer)
    writers.emplace_back([&, writer] {
      for (int i = 0; i < 2500; ++i) {
        // The block is in a directory of this writer, or in one that all writers use.
        const int block = i % 4 == 0 ? i % 100 : 10'000 * (writer + 1) + i;
        const int error = store_block("model", block);
        if (error == 0) ++stored;
        if (error == ENOENT) ++missed;
        if (error != 0 && error != ENOENT) ADD_FAILURE() << error_name(error) << " at " << i;
        if (HasFailure()) return;
        if (i % 64 != 0) continue;
        std::string content;
        const int read = load(leaf("model", block) + "/hash.bin", &content);
        EXPECT_TRUE(read != 0 || difference(block, content).empty()) << block;
      }
    });
  for (std::thread& writer : writers) writer.join();
  // The minute, which is a millisecond here, makes misses rare.
  EXPECT_GT(stored, 10 * missed) << missed;
  EXPECT_GT(stat("directories_reclaimed"), 1000);
}

TEST_F(DirectoriesTest, ASuccessorGoesOn) {
  start_pool(kSmallPool);
  store_blocks("model", 2000);
  const File open(leaf("model", 1), O_RDONLY | O_DIRECTORY);
  replace_server();
  order(mount(), "100%");
  store_blocks("more", kMoreThanFit);
  EXPECT_GT(stat("directories_reclaimed"), 1000);
  int left = 0;
  for (int block = 0; block < 2000; ++block) left += exists(leaf("model", block)) ? 1 : 0;
  EXPECT_LT(left, 200);
  EXPECT_TRUE(exists(leaf("model", 1)));
  EXPECT_EQ(error_name(error_of(::mkdirat(open.fd(), "inside", 0755))), "ok");
}

TEST_F(DirectoriesTest, DeathAtAnyStepCostsNothing) {
  start_pool(kSmallPool);
  for (const std::string place : {"directory found empty", "directory reclaimed"}) {
    crowd(place.substr(place.rfind(' ') + 1), 4000);
    const pid_t serving = mount().serving_pid();
    arm(place + "\nfailing directory rest 1\n");
    crowd("more of " + place, 4000);
    EXPECT_TRUE(eventually([&] { return mount().serving_pid() != serving; })) << place;
    a_minute_is(1);
    EXPECT_EQ(error_name(store_block("model", 1)), "ok");
  }
}

class DirectoriesOnDiskTest : public DirectoriesTest {
 protected:
  // The pool has 4,505 inodes, and entries leave its disk, too.
  void start_with_disk() { start({.size = "1M", .spill_size = "16M"}); }
  // Some of a user's directories in the pool's root, which has the sticky bit, stay: the first that the
  // evictor comes to, in any order after a start.
  void expect_few_left(char first_letter) {
    const auto names = list(mount().path());
    EXPECT_LE(std::ranges::count(names, first_letter, [](const std::string& name) { return name[0]; }), 64);
  }
};

TEST_F(DirectoriesOnDiskTest, TheCatalogForgetsThemToo) {
  start_with_disk();
  store_blocks("model", 1000);
  crowd("d", 5000);
  EXPECT_GT(stat("directories_reclaimed"), 1000);
  EXPECT_GT(stat("entries"), 50);
  const size_t left = count_in(mount().path());
  stop_and_check();
  start_with_disk();
  EXPECT_LE(count_in(mount().path()), left);
  EXPECT_GT(stat("entries"), 50);
  // Empty directories that came back leave as well, and before those that are made now.
  crowd("e", 5000);
  EXPECT_GT(stat("directories_reclaimed"), 1000);
  expect_few_left('d');
  EXPECT_TRUE(exists(path("e4999")));
}

TEST_F(DirectoriesOnDiskTest, ASuccessorKnowsTheCatalogsDirectories) {
  start_with_disk();
  store_blocks("model", 500);
  crowd("d", 2000);
  replace_server();
  crowd("e", 5000);
  EXPECT_GT(stat("directories_reclaimed"), 1000);
  expect_few_left('d');
  // The serving process dies when a directory has gone that the catalog still has.
  const pid_t serving = mount().serving_pid();
  arm("directory reclaimed\nfailing directory rest 1\n");
  crowd("f", 3000);
  EXPECT_NE(mount().serving_pid(), serving);
  stop_and_check();
}

// A tenant's own directory, closed to others, in a pool of mode 1777: another user who could push it out and
// make it anew would read and replace what the tenant stores next.
TEST_F(DirectoriesTest, NobodyTakesTheDirectoryOfAnother) {
  start_pool(kSmallPool);
  constexpr uid_t kTenant = 1000, kHostile = 65534;
  const std::string key = path("tenant/key");
  ASSERT_EQ(as_user(kTenant, kTenant,
                    [&] {
                      const int made = error_of(::mkdir(path("tenant").c_str(), 0700));
                      return made != 0 ? made : store(key, "secret");
                    }),
            0);
  const int taken = as_user(kHostile, kHostile, [&] {
    for (int round = 0; round < 12; ++round) {
      for (int i = 0; i < 1000; ++i) {
        const std::string name = path("h" + std::to_string(round) + "-" + std::to_string(i));
        if (i % 4 == 0) (void)store(name + ".f", pattern(i, 32 << 10));
        (void)::mkdir(name.c_str(), 0755);
      }
      if (::mkdir(path("tenant").c_str(), 0777) == 0) return 0;
    }
    return 250;
  });
  EXPECT_EQ(taken, 250) << "another user has made it his";
  EXPECT_GT(stat("directories_reclaimed"), 1000);
  EXPECT_EQ(as_user(kTenant, kTenant, [&] { return store(key, "secret"); }), 0);
}

// Directories in which a name was looked up in vain, as at a cache miss, leave as others do once no request
// waits.
TEST_F(DirectoriesTest, ProbedOnesLeaveToo) {
  start_pool(kSmallPool);
  for (int i = 0; i < kMoreThanFit; ++i) {
    const std::string name = path("d" + std::to_string(i));
    (void)::mkdir(name.c_str(), 0755);
    (void)exists(name + "/none");
  }
  // Directories leave when an eighth of the inodes is free, until a quarter is free, perhaps several times.
  EXPECT_TRUE(eventually([&] { return free_inodes() >= 5734 / 8; })) << free_inodes() << " inodes are free";
  EXPECT_GT(stat("directories_reclaimed"), kMoreThanFit - 5734);
  EXPECT_EQ(error_name(store(path("entry"), "content")), "ok");
}

// Their names are dropped also while requests always wait for an inode in the directory that they are in.
TEST_F(DirectoriesTest, ProbedOnesLeaveUnderThoseWhoWait) {
  constexpr int kClients = 4;
  constexpr int kEach = 200;
  a_minute_is(kAnHour);
  start_pool(kSmallPool);
  int error = 0;
  for (int i = 0; error == 0; ++i) {
    const std::string name = path("d" + std::to_string(i));
    error = error_of(::mkdir(name.c_str(), 0755));
    EXPECT_FALSE(exists(name + "/none"));
  }
  EXPECT_EQ(error_name(error), "ENOSPC");
  std::atomic<int> failures = 0;
  std::vector<std::thread> clients;
  for (int client = 0; client < kClients; ++client) {
    clients.emplace_back([&, client] {
      for (int made = 0; made < kEach && failures < 200;) {
        const std::string name = path("c" + std::to_string(client) + "-" + std::to_string(made));
        ::mkdir(name.c_str(), 0755) == 0 ? ++made : ++failures;
        (void)exists(name + "/none");
      }
    });
  }
  a_minute_is(1);
  for (std::thread& client : clients) client.join();
  EXPECT_LT(failures, 200) << free_inodes() << " inodes are free\n" << stat("directories_reclaimed");
}

}  // namespace
}  // namespace kvcachefs::test
