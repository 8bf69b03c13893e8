// Which entries leave a full pool, in which order, and which must never leave.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/pool_pressure.h"

namespace kvcachefs::test {
namespace {

constexpr int kPoolMiB = 64;

class EvictionTest : public SharedMount<EvictionTest> {
 public:
  static MountOptions options() { return {.pools = {"p:size=64M"}}; }

 protected:
  void SetUp() override {
    SharedMount::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    mount().stop_squeezing();  // each test evicts by itself
    set("size", "64M");
    set("policy", "lru");
    set("watermarks", "95:98");
    set("entry_size", "auto");
  }
  static void set(std::string_view file, std::string_view value) {
    ASSERT_EQ(error_name(write_once(mount().place_to_write(file), value)), "ok") << file << " = " << value;
  }
  static std::vector<std::string> fill_pool(const std::string& name, int count) {
    return fill(mount().path(), name, count);
  }
  static void open_and_close(const std::string& name) { EXPECT_EQ(read_file(name).size(), kMiB); }
  static std::vector<int> range(int from, int to) {
    std::vector<int> numbers(to - from);
    std::iota(numbers.begin(), numbers.end(), from);
    return numbers;
  }
};

TEST_F(EvictionTest, WorkingSetOfFourTimesThePool) {
  std::atomic<bool> done = false;
  uint64_t peak = 0;
  std::thread watcher([&] {
    while (!done) peak = std::max(peak, tmpfs_used_bytes(mount()));
  });
  const auto names = fill_pool("e", 4 * kPoolMiB);
  done = true;
  watcher.join();
  EXPECT_LE(peak, kPoolMiB * kMiB);
  EXPECT_LE(mount().stat_value("used_bytes"), static_cast<int64_t>(kPoolMiB * kMiB));
  const std::vector<int> left = in_memory(names);
  EXPECT_GE(left.size(), 50u);
  EXPECT_LE(left.size(), size_t{kPoolMiB});
  // The newest entries are all there and the oldest are all gone; in between the evictor may have skipped an
  // entry that it found in use.
  const std::vector<int> newest = range(4 * kPoolMiB - 40, 4 * kPoolMiB);
  EXPECT_TRUE(std::ranges::includes(left, newest)) << left[left.size() - 40];
  EXPECT_GE(left.front(), 2 * kPoolMiB);
  if (every_pool_spills()) {
    EXPECT_EQ(check_whole(names), 4 * kPoolMiB);
    EXPECT_EQ(mount().stat_value("discards"), 0);
  } else {
    EXPECT_EQ(check_whole(names), static_cast<int>(left.size()));
    EXPECT_GE(mount().stat_value("discards"), 3 * kPoolMiB);
  }
}

TEST_F(EvictionTest, LeastRecentlyOpenedGoFirst) {
  const auto names = fill_pool("e", 20);
  for (int i = 0; i < 20; i += 2) open_and_close(names[i]);
  ASSERT_TRUE(settled(mount()));
  order(mount(), "10 entries");
  EXPECT_EQ(in_memory(names), (std::vector<int>{0, 2, 4, 6, 8, 10, 12, 14, 16, 18}));
  order(mount(), "3");
  EXPECT_EQ(in_memory(names), (std::vector<int>{6, 8, 10, 12, 14, 16, 18}));
}

TEST_F(EvictionTest, FifoIgnoresOpens) {
  set("policy", "fifo");
  const auto names = fill_pool("e", 20);
  for (int i = 0; i < 20; i += 2) open_and_close(names[i]);
  ASSERT_TRUE(settled(mount()));
  order(mount(), "5 entries");
  EXPECT_EQ(in_memory(names), range(5, 20));
}

TEST_F(EvictionTest, LeastFrequentlyUsedGoFirst) {
  set("policy", "lfu");
  const auto names = fill_pool("e", 12);
  for (int round = 0; round < 6; ++round) {
    for (int i = 0; i < 12; i += 3) open_and_close(names[i]);
  }
  ASSERT_TRUE(settled(mount()));
  order(mount(), "8 entries");
  EXPECT_EQ(in_memory(names), (std::vector<int>{0, 3, 6, 9}));
}

TEST_F(EvictionTest, LowestPriorityGoesFirst) {
  set("policy", "priority");
  const auto names = fill_pool("e", 12);
  for (int i = 0; i < 12; ++i) {
    const std::string value = std::to_string(i % 3 - 1);
    ASSERT_EQ(set_xattr(names[i], "user.kv.priority", value), 0);
  }
  open_and_close(names[0]);
  ASSERT_TRUE(settled(mount()));
  order(mount(), "3 entries");
  EXPECT_EQ(in_memory(names), (std::vector<int>{0, 1, 2, 4, 5, 7, 8, 10, 11}));
  order(mount(), "5 entries");
  EXPECT_EQ(in_memory(names), (std::vector<int>{2, 5, 8, 11}));
}

TEST_F(EvictionTest, PolicyChangesWithoutLosingEntries) {
  const auto names = fill_pool("e", 20);
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(set_xattr(names[i], "user.kv.priority", i < 10 ? "5" : "-5"), 0);
  }
  for (const char* policy : {"lfu", "fifo", "priority", "lru", "priority"}) {
    set("policy", policy);
    EXPECT_EQ(mount().stat_value("entries"), 20) << policy;
  }
  ASSERT_TRUE(settled(mount()));
  order(mount(), "10 entries");
  EXPECT_EQ(in_memory(names), range(0, 10));
  EXPECT_EQ(check_whole(names), every_pool_spills() ? 20 : 10);
}

TEST_F(EvictionTest, WhatIsInUseIsNotTouched) {
  const auto names = fill_pool("e", 30);
  std::vector<File> readers;
  for (int i = 0; i < 5; ++i) readers.emplace_back(names[i], O_RDONLY);
  const Mapping mapping(File(names[5], O_RDONLY).fd(), kMiB, PROT_READ, MAP_SHARED);
  ASSERT_TRUE(mapping.valid());
  const Mapping writable(File(names[6], O_RDWR).fd(), kMiB, PROT_READ | PROT_WRITE, MAP_SHARED);
  ASSERT_TRUE(writable.valid());
  const File writer(path("being-written"), O_WRONLY | O_CREAT);
  const std::string piece = pattern(99, kMiB);
  ASSERT_EQ(::write(writer.fd(), piece.data(), kMiB / 2), static_cast<ssize_t>(kMiB / 2));
  // With passthrough the kernel maps the pool's file directly, and the descriptors that made the mappings
  // count as closed. In daemon I/O they stay open as long as the mappings.
  const int64_t in_use = mode() == Mode::kDaemonIo ? 8 : 6;
  ASSERT_TRUE(eventually([in_use] { return mount().stat_value("open_entries") == in_use; }));

  order(mount(), "100%");
  EXPECT_TRUE(in_memory(names) == range(0, 7)) << in_memory(names).size() << " left";
  // More entries than the pool holds come after the ones in use, which stay.
  fill_pool("pressure", 3 * kPoolMiB);
  EXPECT_EQ(in_memory(names), range(0, 7));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(difference(i, read_at(readers[i].fd(), 0, kMiB)), "");
  EXPECT_EQ(difference(5, mapping.text()), "");
  EXPECT_EQ(difference(6, writable.text()), "");
  ASSERT_EQ(::write(writer.fd(), piece.data() + kMiB / 2, kMiB / 2), static_cast<ssize_t>(kMiB / 2));
  EXPECT_EQ(difference(99, read_file(path("being-written"))), "");
}

TEST_F(EvictionTest, ClosedFilesBecomeVictims) {
  const auto names = fill_pool("e", 5);
  std::vector<File> readers;
  for (const std::string& name : names) readers.emplace_back(name, O_RDONLY);
  order(mount(), "100%");
  EXPECT_EQ(in_memory(names), range(0, 5));
  readers.clear();
  ASSERT_TRUE(all_closed(mount()));
  order(mount(), "100%");
  EXPECT_EQ(in_memory(names), std::vector<int>());
}

// The last close of a removed entry would give it back to the policy, and the kernel forgets its inode only
// later.
TEST_F(EvictionTest, RemovedWhileInUseIsNoVictimAgain) {
  const auto names = fill_pool("e", 20);
  std::vector<File> readers;
  for (const std::string& name : names) readers.emplace_back(name, O_RDONLY);
  order(mount(), "20 entries");
  for (const std::string& name : names) ASSERT_EQ(::unlink(name.c_str()), 0);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(difference(i, read_at(readers[i].fd(), 0, kMiB)), "");
  readers.clear();
  ASSERT_TRUE(all_closed(mount()));
  const auto more = fill_pool("more", 2 * kPoolMiB);
  // The order matters: the evictor may still be at work, but a name that exists can be read.
  const int whole = check_whole(more);
  EXPECT_GE(whole, static_cast<int>(survivors(more).size()));
}

TEST_F(EvictionTest, TemporaryFileClosedButNotYetRenamedSurvives) {
  // The file is spared for a second, less a tick of the clock. A busy machine may need several tries to store
  // a whole pool within that time.
  constexpr std::chrono::milliseconds kSpared(990);
  const std::string content = pattern(7, kMiB);
  for (int attempt = 0; attempt < 20; ++attempt) {
    const auto begin = std::chrono::steady_clock::now();
    write_file(path("block.tmp"), content);
    fill_pool("pressure", kPoolMiB + 10);
    const int error = error_of(::rename(path("block.tmp").c_str(), path("block").c_str()));
    if (error == 0) {
      EXPECT_EQ(difference(7, read_file(path("block"))), "");
      return;
    }
    ASSERT_GE(std::chrono::steady_clock::now() - begin, kSpared) << error_name(error);
  }
  FAIL() << "a pool could not be filled within a second";
}

TEST_F(EvictionTest, FilesThatAreNeverRenamedLeaveToo) {
  for (int i = 0; i < 10; ++i) write_file(path("plain-" + std::to_string(i)), pattern(i, kMiB));
  EXPECT_TRUE(eventually([] {
    order(mount(), "100%");
    return every_pool_spills() ? mount().stat_value("cold_entries") == 10 : list(mount().path()).empty();
  })) << list(mount().path()).size();
  EXPECT_TRUE(eventually([] { return mount().stat_value("used_bytes") == 0; }))
      << mount().stat_value("used_bytes");
}

TEST_F(EvictionTest, WhatAClientHasMappedIsNotSaidToBeEvictable) {
  const auto names = fill_pool("e", 4);
  ASSERT_TRUE(settled(mount()));
  const auto evictable = [] { return mount().stat_value("evictable_bytes"); };
  {
    const Mapping mapping(File(names[0], O_RDONLY).fd(), kMiB, PROT_READ, MAP_SHARED);
    ASSERT_TRUE(mapping.valid());
    // In daemon I/O a mapping keeps its file open.
    EXPECT_TRUE(eventually([&] {
      order(mount(), "100%");
      return in_memory(names) == range(0, 1) && evictable() == 0;
    })) << evictable();
    EXPECT_EQ(mount().stat_value("used_bytes"), static_cast<int64_t>(kMiB));
  }
  EXPECT_TRUE(eventually([&] { return evictable() == static_cast<int64_t>(kMiB); })) << evictable();
}

TEST_F(EvictionTest, OrdersSayHowMuchWent) {
  const auto names = fill_pool("e", 40);
  ASSERT_TRUE(settled(mount()));
  ASSERT_TRUE(eventually([] {
    return mount().stat_value("evictable_bytes") == static_cast<int64_t>(40 * kMiB);
  })) << mount().stat_value("evictable_bytes");
  const auto said = [] { return read_file(mount().control("evict")); };
  order(mount(), "25%");
  EXPECT_EQ(said(), "evicted 10 entries 10M\n");
  order(mount(), "5M\n");
  EXPECT_EQ(said(), "evicted 5 entries 5M\n");
  order(mount(), "3 entries\n");
  EXPECT_EQ(said(), "evicted 3 entries 3M\n");
  order(mount(), "2");
  EXPECT_EQ(said(), "evicted 2 entries 2M\n");
  EXPECT_EQ(in_memory(names), range(20, 40));
  for (const char* wrong : {"much", "-1", "101%", "-5%", "3 rabbits", "5M entries"}) {
    EXPECT_EQ(error_name(write_once(mount().control("evict"), wrong)), "EINVAL") << wrong;
  }
  EXPECT_EQ(in_memory(names), range(20, 40));
  order(mount(), "1000 entries");
  EXPECT_EQ(said(), "evicted 20 entries 20M\n");
  order(mount(), "100%");
  EXPECT_TRUE(said().starts_with("evicted 0 entries")) << said();
}

TEST_F(EvictionTest, AnEvictedNameIsGoneInEveryWay) {
  make_directory(path("d"));
  const auto names = fill(path("d"), "e", 3);
  ASSERT_EQ(::link(names[0].c_str(), path("second-name").c_str()), 0);
  struct stat status {};
  EXPECT_EQ(::stat(names[1].c_str(), &status), 0);
  ASSERT_TRUE(all_closed(mount()));
  order(mount(), "100%");
  EXPECT_EQ(list(path("d")), std::vector<std::string>());
  EXPECT_EQ(list(mount().path()), std::vector<std::string>{"d"}) << "both names of a file go";
  for (const std::string& name : names) {
    EXPECT_EQ(error_name(error_of(::open(name.c_str(), O_RDONLY))), "ENOENT");
    EXPECT_EQ(error_name(error_of(::stat(name.c_str(), &status))), "ENOENT");
    EXPECT_EQ(error_name(error_of(::unlink(name.c_str()))), "ENOENT");
    EXPECT_EQ(error_name(error_of(::rename(name.c_str(), path("x").c_str()))), "ENOENT");
  }
  EXPECT_EQ(store(names[1], "new"), 0);
  EXPECT_EQ(read_file(names[1]), "new");
  EXPECT_EQ(::unlink(names[1].c_str()), 0);
  EXPECT_EQ(::rmdir(path("d").c_str()), 0);
}

TEST_F(EvictionTest, OnlyFilesLeave) {
  make_directory(path("d"));
  ASSERT_EQ(::symlink("nowhere", path("link").c_str()), 0);
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0644), 0);
  const auto names = fill_pool("e", 3);
  ASSERT_TRUE(settled(mount()));
  order(mount(), "100%");
  EXPECT_EQ(in_memory(names), std::vector<int>());
  const auto left = list(mount().path());
  for (const char* name : {"d", "link", "pipe"}) EXPECT_EQ(std::ranges::count(left, name), 1) << name;
}

TEST_F(EvictionTest, FreeSpaceStaysBetweenTheWatermarks) {
  set("watermarks", "50:60");
  fill_pool("e", 2 * kPoolMiB);
  const auto used = [] { return mount().stat_value("used_bytes"); };
  EXPECT_TRUE(eventually([&] { return used() <= static_cast<int64_t>(kPoolMiB * kMiB * 60 / 100); }))
      << used();
  EXPECT_GE(used(), static_cast<int64_t>(kPoolMiB * kMiB * 45 / 100));
}

TEST_F(EvictionTest, GrowsAndShrinksUnderUse) {
  std::atomic<bool> done = false;
  std::atomic<int> stored = 0;
  std::thread writer([&] {
    for (int i = 0; !done; ++i) {
      EXPECT_EQ(error_name(store(path("w-" + std::to_string(i)), pattern(i, kMiB))), "ok");
      ++stored;
    }
  });
  const auto more_stored = [&] {
    const int from = stored;
    return eventually([&, from] { return stored > from + 80; });
  };
  EXPECT_TRUE(more_stored());
  set("size", "128M");
  EXPECT_TRUE(eventually([] { return tmpfs_used_bytes(mount()) > 100 * kMiB; }));
  set("size", "32M");
  EXPECT_LE(tmpfs_used_bytes(mount()), 32 * kMiB);
  EXPECT_TRUE(more_stored());
  EXPECT_LE(tmpfs_used_bytes(mount()), 32 * kMiB);
  set("size", "64M");
  EXPECT_TRUE(more_stored());
  done = true;
  writer.join();
  EXPECT_GT(check_whole([&] {
              std::vector<std::string> names;
              for (int i = 0; i < stored; ++i) names.push_back(path("w-" + std::to_string(i)));
              return names;
            }()),
            20);
}

TEST_F(EvictionTest, WhatIsLargerThanThePoolCostsNobodyAnything) {
  const auto names = fill_pool("e", 20);
  const File file(path("huge"), O_WRONLY | O_CREAT);
  EXPECT_EQ(error_name(error_of(::fallocate(file.fd(), 0, 0, off_t{1} << 40))), "ENOSPC");
  EXPECT_EQ(in_memory(names).size(), 20u);
}

TEST_F(EvictionTest, DoesNotShrinkBelowWhatIsInUse) {
  const auto names = fill_pool("e", 40);
  std::vector<File> readers;
  for (const std::string& name : names) readers.emplace_back(name, O_RDONLY);
  EXPECT_EQ(error_name(write_once(mount().administrators("size"), "16M")), "EBUSY");
  EXPECT_EQ(read_file(mount().control("size")), "64M\n");
  EXPECT_EQ(in_memory(names).size(), 40u);
  readers.clear();
  ASSERT_TRUE(all_closed(mount()));
  EXPECT_EQ(error_name(write_once(mount().administrators("size"), "16M")), "ok");
  EXPECT_LE(tmpfs_used_bytes(mount()), 16 * kMiB);
  // The kernel is told of the evicted names one after the other.
  EXPECT_TRUE(eventually([&] { return in_memory(names).size() <= 16; })) << in_memory(names).size();
  EXPECT_GT(check_whole(names), 8);
}

class MixedSizesTest : public EvictionTest {
 protected:
  static void store_mixed(size_t large_bytes) {
    Random random(5);
    std::vector<std::string> names;
    for (int i = 0; i < 300; ++i) {
      names.push_back(path("m-" + std::to_string(i)));
      const size_t bytes = random.one_in(10) ? large_bytes : random.below(2 * kMiB) + 1;
      EXPECT_EQ(error_name(store(names.back(), pattern(i, bytes))), "ok") << i << ": " << bytes;
    }
    EXPECT_LE(tmpfs_used_bytes(mount()), kPoolMiB * kMiB);
    EXPECT_GT(check_whole(names), 10);
  }
};

TEST_F(MixedSizesTest, UpToWhatIsLearned) {
  store_mixed(3 * kMiB);
}

// A size above an eighth of the pool has to be set, because a guess never reserves more than that.
TEST_F(MixedSizesTest, UpToWhatIsGiven) {
  set("entry_size", "8M");
  store_mixed(8 * kMiB);
}

}  // namespace
}  // namespace kvcachefs::test
