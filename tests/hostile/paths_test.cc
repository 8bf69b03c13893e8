// A user without rights gives root paths that lead out of his pool: by links, by directories that he
// exchanges with links meanwhile, by names that root reads. Root must touch nothing outside, tell nothing of
// it, and wait for nothing.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/disk_tier.h"
#include "tests/support/files.h"

namespace kvcachefs::test {
namespace {

constexpr uid_t kNobody = 65534;
constexpr uint64_t kInodeMask = (uint64_t{1} << 48) - 1;  // below the pool's number, fs/nodeid.h

// as_nobody() runs `body` in another process without rights. Returns 0 or the number of the step that failed.
int as_nobody(const std::function<int()>& body) {
  return as_user(kNobody, kNobody, body);
}

int exchange(const std::string& a, const std::string& b) {
  return error_of(::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE));
}

uint64_t inode_below(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(::lstat(path.c_str(), &status), 0) << path;
  return status.st_ino & kInodeMask;
}

class PathsTest : public DiskTierTest {
 protected:
  PathsTest() { ::setenv("KVCACHEFS_FAULT_FILE", fault_file().c_str(), 1); }
  ~PathsTest() override { ::unsetenv("KVCACHEFS_FAULT_FILE"); }

  std::string fault_file() const { return disk() / "fault"; }
  std::string paused() const { return fault_file() + ".paused"; }

  // make_twin() makes a file outside with the inode number of the pool's file, which works because a tmpfs
  // counts its inodes up.
  void make_twin(const std::string& name, uint64_t ino) {
    for (int number = 0; inode_below(outside_.path()) + 1 < ino; ++number) {
      const std::string filler = outside_.path() + "/filler-" + std::to_string(number);
      write_file(filler, "");
      if (inode_below(filler) + 1 == ino) break;
      ASSERT_LT(inode_below(filler), ino);
    }
    write_file(outside_.path() + "/" + name, "root's own");
    ASSERT_EQ(inode_below(outside_.path() + "/" + name), ino);
  }

  // exchange_under() runs `work` until it knows the entry's path; then the directory in that path becomes a
  // link.
  void exchange_under(const std::function<void()>& work) {
    ASSERT_EQ(store(fault_file(), "pause name found\n"), 0);
    std::thread worker(work);
    EXPECT_TRUE(eventually([&] { return exists(paused()); })) << "nobody looked for the name";
    EXPECT_EQ(as_nobody([&] { return exchange(path("directory"), path("link")); }), 0);
    ::unlink(paused().c_str());
    worker.join();
  }

  void make_trap() {
    ASSERT_EQ(as_nobody([&] {
                if (::mkdir(path("directory").c_str(), 0777) != 0) return 1;
                if (::symlink(outside_.path().c_str(), path("link").c_str()) != 0) return 2;
                return store(path("directory/entry"), pattern(1, 8192));
              }),
              0);
    make_twin("entry", inode_below(path("directory/entry")));
  }

  // The names of the counters that an order changes.
  std::string answer_of_prefetch(const std::string& name) {
    const std::string before = read_file(mount().control("prefetch"));
    EXPECT_EQ(write_once(mount().control("prefetch"), name + "\n"), 0);
    EXPECT_TRUE(eventually([&] { return read_file(mount().control("prefetch")).contains("queued 0"); }));
    const auto was = parse_stats(before), is = parse_stats(read_file(mount().control("prefetch")));
    std::string changes;
    for (const auto& [key, value] : is)
      if (was.at(key) != value) changes += key + " ";
    return changes;
  }

  PlainTmpfs outside_{"size=16M,inode64,mode=0700"};
};

TEST_F(PathsTest, AnEvictionTakesNoNameOutsideThePool) {
  start_pool("p:size=32M");
  make_trap();
  exchange_under([&] { (void)write_once(mount().control("evict"), "100%"); });
  EXPECT_TRUE(exists(outside_.path() + "/entry")) << "a file outside the pool was unlinked";
}

// The names that a pool's owner gives are resolved below the pool and through no link.
TEST_F(PathsTest, APrefetchTellsNothingOfWhatIsOutside) {
  start();
  write_file(outside_.path() + "/there", "");
  ASSERT_EQ(::symlink(outside_.path().c_str(), path("link").c_str()), 0);
  EXPECT_EQ(answer_of_prefetch("link/there"), answer_of_prefetch("link/not-there"));
  EXPECT_EQ(answer_of_prefetch("link/there"), answer_of_prefetch("not-there"));
}

// A user who may write to .pool/prefetch may list the pool's entries, wherever they lie, but may not learn
// what else is in other users' directories.
TEST_F(PathsTest, APrefetchTellsOfEntriesAlone) {
  start();
  ASSERT_EQ(as_nobody([&] {
              if (::mkdir(path("closed").c_str(), 0700) != 0) return 1;
              if (::mkdir(path("closed/directory").c_str(), 0700) != 0) return 2;
              if (::symlink("elsewhere", path("closed/link").c_str()) != 0) return 3;
              if (::mkfifo(path("closed/pipe").c_str(), 0600) != 0) return 4;
              return store(path("closed/entry"), pattern(1, 8192));
            }),
            0);
  const std::string missing = answer_of_prefetch("closed/missing");
  for (const char* name : {"closed", "closed/directory", "closed/link", "closed/pipe", "closed/entry/below"})
    EXPECT_EQ(answer_of_prefetch(name), missing) << name;
  make_all_cold();
  EXPECT_NE(answer_of_prefetch("closed/entry"), missing);
  EXPECT_EQ(tier_of(path("closed/entry")), "clean");
}

// The only server thread would have to answer its own question.
TEST_F(PathsTest, APrefetchDoesNotWaitForTheMountItself) {
  ::setenv("KVCACHEFS_DAEMON_ARGS", "-o threads=1", 1);
  start();
  ::unsetenv("KVCACHEFS_DAEMON_ARGS");
  ASSERT_EQ(::symlink(mount().path().c_str(), path("self").c_str()), 0);
  EXPECT_EQ(in_child([&] { return write_once(mount().control("prefetch"), "self/not-there\n"); },
                     std::chrono::seconds(60)),
            0);
}

}  // namespace
}  // namespace kvcachefs::test
