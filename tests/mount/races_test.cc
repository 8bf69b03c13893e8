// Many threads use few names while the pool evicts: a call that loses a race may fail only in the ways that
// POSIX names.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/pool_pressure.h"

namespace kvcachefs::test {
namespace {

constexpr int kThreads = 8;
constexpr std::chrono::milliseconds kRunTime(1500);
// The longest time for a run to meet its condition; it suffices under a sanitizer on a busy machine, too.
constexpr std::chrono::seconds kLongestRunTime(30);

class RacesTest : public SharedMount<RacesTest> {
 public:
  static MountOptions options() { return {.pools = {"p:size=32M"}}; }

 protected:
  // run() runs `step` in each thread until the time is over, more than 100 steps were made and `enough()` is
  // true. An error of `step` that `allowed` lacks fails the test with the error's name.
  static void run(
      const std::function<int(int thread, Random& random)>& step, const std::set<int>& allowed,
      const std::function<bool()>& enough = [] { return true; }) {
    Mutex mutex;
    std::set<std::string> wrong;
    std::atomic<long> steps = 0;
    const auto begin = std::chrono::steady_clock::now();
    const auto goes_on = [&] {
      const auto lasted = std::chrono::steady_clock::now() - begin;
      return lasted < kRunTime || (lasted < kLongestRunTime && (steps <= 100 || !enough()));
    };
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        Random random(t);
        while (goes_on()) {
          const int error = step(t, random);
          ++steps;
          if (error == 0 || allowed.contains(error)) continue;
          const MutexLock lock(mutex);
          wrong.insert(error_name(error));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& name : wrong) ADD_FAILURE() << "a call failed with " << name;
    EXPECT_GT(steps, 100);
  }
};

// A content that shows whether it is whole: its seed, then the pattern of that seed.
std::string sealed(uint64_t seed, size_t bytes) {
  std::string content = pattern(seed, bytes);
  std::memcpy(content.data(), &seed, sizeof(seed));
  return content;
}

std::string why_not_whole(std::string content, size_t bytes) {
  if (content.size() != bytes) return std::to_string(content.size()) + " bytes";
  uint64_t seed = 0;
  std::memcpy(&seed, content.data(), sizeof(seed));
  const std::string start = pattern(seed, sizeof(seed));
  std::memcpy(content.data(), start.data(), sizeof(seed));
  return difference(seed, content);
}

// The path of the file with this name anywhere below a directory; empty if there is none.
std::string find_below(const std::string& directory, const std::string& name) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (entry.path().filename() == name) return entry.path();
  }
  return "";
}

TEST_F(RacesTest, FewNamesUnderEviction) {
  constexpr size_t kBytes = 256 << 10;
  const auto name = [](Random& random) { return path("n-" + std::to_string(random.below(12))); };
  std::atomic<long> read = 0;
  const auto step = [&](int thread, Random& random) {
    switch (random.below(8)) {
      case 0:
      case 1: {
        const std::string own = path("tmp-" + std::to_string(thread));
        write_file(own, sealed(random.next(), kBytes));
        return error_of(::rename(own.c_str(), name(random).c_str()));
      }
      case 2:  // Pressure: names that no thread opens again.
        return store(path("x-" + std::to_string(thread) + "-" + std::to_string(random.below(50))),
                     sealed(random.next(), kBytes));
      case 3:
        return error_of(::unlink(name(random).c_str()));
      case 4:
        return error_of(::rename(name(random).c_str(), name(random).c_str()));
      case 5: {
        struct stat status {};
        const int error = error_of(::stat(name(random).c_str(), &status));
        if (error == 0) {
          EXPECT_EQ(status.st_size, static_cast<off_t>(kBytes));
        }
        return error;
      }
      default: {
        std::string content;
        const std::string from = name(random);
        const int error = load(from, &content);
        if (error == 0) {
          EXPECT_EQ(why_not_whole(std::move(content), kBytes), "") << from;
          ++read;
        }
        return error;
      }
    }
  };
  // A store's rename finds that its temporary file is gone only if a thread took it, and none does.
  run(step, {ENOENT}, [&] { return read > 50; });
  EXPECT_GT(read, 50);
}

TEST_F(RacesTest, ExclusiveCreationHasOneWinner) {
  std::atomic<int> made = 0;
  std::atomic<int> removed = 0;
  const auto step = [&](int, Random& random) {
    const std::string name = path("n-" + std::to_string(random.below(3)));
    if (random.one_in(2)) {
      const int error = error_of(::unlink(name.c_str()));
      if (error == 0) ++removed;
      return error;
    }
    const int fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    const int error = error_of(fd);
    if (error == 0) {
      ++made;
      ::close(fd);
    }
    return error;
  };
  run(step, {ENOENT, EEXIST});
  EXPECT_EQ(made - removed, static_cast<int>(list(mount().path()).size()));
}

TEST_F(RacesTest, DirectoriesComeAndGo) {
  const auto name = [](Random& random) { return path("d-" + std::to_string(random.below(4))); };
  const auto step = [&](int thread, Random& random) {
    const std::string file = name(random) + "/f-" + std::to_string(random.below(4));
    switch (random.below(7)) {
      case 0:
        return error_of(::mkdir(name(random).c_str(), 0755));
      case 1:
        return error_of(::rmdir(name(random).c_str()));
      case 2:
        return error_of(::rename(name(random).c_str(), name(random).c_str()));
      case 3: {
        // Each thread has its temporary name, because two threads that write one file may see half of each
        // other's content.
        const std::string own = file + "-" + std::to_string(thread);
        const int error = store(own, "content");
        return error != 0 ? error : error_of(::rename(own.c_str(), file.c_str()));
      }
      case 4:
        return error_of(::unlink(file.c_str()));
      case 5:
        return error_of(
            ::link(file.c_str(), (name(random) + "/f-" + std::to_string(random.below(4))).c_str()));
      default: {
        std::string content;
        const int error = load(file, &content);
        if (error == 0) {
          EXPECT_EQ(content, "content");
        }
        return error;
      }
    }
  };
  run(step, {ENOENT, EEXIST, ENOTEMPTY});
}

// Writers truncate and write files that readers read. While they run, a reader may see any state, but when
// they are done the kernel shows the content that the memory holds.
TEST_F(RacesTest, TruncatingWritersLeaveNoStaleViews) {
  const auto step = [&](int, Random& random) {
    const std::string name = path("n-" + std::to_string(random.below(3)));
    if (random.one_in(2)) {
      write_file(name, pattern(random.below(50), 1 + random.below(9000)));
      return 0;
    }
    std::string content;
    return load(name, &content);
  };
  run(step, {ENOENT});
  mount().stop_squeezing();
  const auto memory = mounts_below(mount().runtime_dir());
  ASSERT_EQ(memory.size(), 1u);
  ASSERT_FALSE(list(mount().path()).empty());
  for (const std::string& name : list(mount().path())) {
    const auto backing = find_below(memory[0].directory, name);
    ASSERT_FALSE(backing.empty()) << name << " is not below " << memory[0].directory;
    const std::string seen = read_file(path(name));  // the read brings it back to memory
    EXPECT_EQ(seen, read_file(backing)) << name;
  }
}

TEST_F(RacesTest, ManyOpenTheSameFileAtOnce) {
  constexpr size_t kBytes = 128 << 10;
  write_file(path("shared"), pattern(1, kBytes));
  std::barrier together(kThreads);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 150; ++round) {
        together.arrive_and_wait();
        const int fd = ::open(path("shared").c_str(), (t % 2 == 0 ? O_RDONLY : O_RDWR) | O_CLOEXEC);
        if (fd < 0) {
          ++wrong;
          ADD_FAILURE() << "open: " << error_name(error_of(fd));
          continue;
        }
        const File file(fd);
        if (round % 3 == 0) {
          const Mapping mapping(fd, kBytes, PROT_READ, MAP_SHARED);
          EXPECT_TRUE(mapping.valid());
          if (mapping.valid()) {
            EXPECT_EQ(difference(1, mapping.text()), "");
          }
        } else {
          EXPECT_EQ(difference(1, read_at(fd, 0, kBytes)), "");
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(all_closed(mount()));
}

TEST_F(RacesTest, OrdersAndSwitchesWhileOthersWork) {
  constexpr size_t kBytes = 200'000;
  static constexpr const char* kPolicies[] = {"lru", "lfu", "fifo", "priority"};
  const auto step = [&](int thread, Random& random) {
    if (thread == 0)
      return write_once(mount().control("evict"), std::to_string(random.below(20)) + " entries");
    if (thread == 1) return write_once(mount().control("policy"), kPolicies[random.below(4)]);
    if (thread == 2) return read_file(mount().control("entries")).empty() ? EIO : 0;
    if (thread == 3) return mount().stats().empty() ? EIO : 0;
    const std::string name = path("n-" + std::to_string(random.below(150)));
    if (random.one_in(3)) return store(name + "-" + std::to_string(thread), sealed(random.next(), kBytes));
    std::string content;
    const int error = load(name + "-" + std::to_string(4 + random.below(4)), &content);
    if (error == 0) {
      EXPECT_EQ(why_not_whole(std::move(content), kBytes), "") << name;
    }
    return error;
  };
  run(step, {ENOENT});
  EXPECT_EQ(write_once(mount().control("policy"), "lru"), 0);
}

TEST_F(RacesTest, PoolsComeAndGo) {
  const auto step = [&](int, Random& random) {
    const std::string pool = mount().root() + "/extra-" + std::to_string(random.below(2));
    switch (random.below(4)) {
      case 0:
        return error_of(::mkdir(pool.c_str(), 0755));
      case 1:
        return error_of(::rmdir(pool.c_str()));
      case 2:
        return store(pool + "/file", "content");
      default:
        return error_of(::unlink((pool + "/file").c_str()));
    }
  };
  // EBUSY: a file of the pool is open, or the kernel has not forgotten it yet.
  run(step, {ENOENT, EEXIST, ENOTEMPTY, EBUSY});
  for (const std::string pool : {"extra-0", "extra-1"}) {
    const std::string directory = mount().root() + "/" + pool;
    if (!exists(directory)) continue;
    remove_content(directory);
    EXPECT_TRUE(eventually([&] { return ::rmdir(directory.c_str()) == 0; })) << pool;
  }
}

// A closed copy of a descriptor, which each child of a fork that executes a program makes, does not tell
// whether another descriptor is still written. The writer's reservation must not be taken away under its
// bytes.
TEST_F(RacesTest, ACopyIsClosedWhileTheOtherIsWritten) {
  constexpr size_t kBytes = 256 << 10;
  // The pool learns how large entries are, and then reserves that size.
  for (int i = 0; i < 8; ++i) ASSERT_EQ(store(path("learn-" + std::to_string(i)), pattern(i, kBytes)), 0);
  std::atomic<int> writing = -1;
  std::atomic<bool> ends = false;
  std::thread closer([&] {
    while (!ends)
      if (const int copy = ::fcntl(writing, F_DUPFD_CLOEXEC, 0); copy >= 0) ::close(copy);
  });
  const std::string name = path("entry");
  for (int i = 0; i < 500 && !HasFailure(); ++i) {
    const std::string content = pattern(i, kBytes);
    {
      const File file(name, O_WRONLY | O_CREAT | O_CLOEXEC);
      writing = file.fd();
      EXPECT_EQ(::write(file.fd(), content.data(), 28), 28);
      EXPECT_EQ(::write(file.fd(), content.data() + 28, kBytes - 28), static_cast<ssize_t>(kBytes - 28));
      writing = -1;
    }
    EXPECT_EQ(difference(i, read_file(name)), "") << "file " << i;
    EXPECT_EQ(::unlink(name.c_str()), 0);
  }
  ends = true;
  closer.join();
}

}  // namespace
}  // namespace kvcachefs::test
