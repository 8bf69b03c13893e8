// A pool that spills to a file on a disk: which entries go there, which come back, and the limits of both
// tiers.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "base/checksum.h"
#include "tests/support/disk_tier.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

namespace kvcachefs::test {
namespace {

class SpillTest : public DiskTierTest {
 protected:
  static void open_and_close(const std::string& name) { EXPECT_FALSE(read_file(name).empty()); }
  // hold_memory() opens these entries of 1 MiB, so that all memory is in use while the result exists.
  std::vector<File> hold_memory(const std::vector<std::string>& names) {
    std::vector<File> readers;
    for (const std::string& name : names) readers.emplace_back(name, O_RDONLY);
    return readers;
  }
};

TEST_F(SpillTest, WorkingSetOfFourTimesTheMemory) {
  start();
  std::atomic<bool> done = false;
  uint64_t peak = 0;
  std::thread watcher([&] {
    while (!done) peak = std::max(peak, tmpfs_used_bytes(mount()));
  });
  const auto names = fill_pool("e", 128);
  EXPECT_EQ(check_whole(names), 128);
  EXPECT_EQ(check_whole(names), 128);
  done = true;
  watcher.join();
  EXPECT_LE(peak, 32 * kMiB);
  EXPECT_EQ(stat("discards"), 0);
  EXPECT_GE(stat("spills"), 96);
  EXPECT_GE(stat("promotes"), 96);
  EXPECT_GE(stat("cold_entries"), 96);
  EXPECT_EQ(stat("entries"), 128);
  EXPECT_EQ(stat("checksum_errors"), 0);
  EXPECT_EQ(stat("promote_errors"), 0);
}

TEST_F(SpillTest, EachClosedEntryIsSpilledByItself) {
  start();
  fill_pool("e", 8);
  EXPECT_TRUE(becomes("clean_entries", 8));
  EXPECT_EQ(stat("dirty_entries"), 0);
  EXPECT_EQ(stat("spills"), 8);
  EXPECT_EQ(stat("spilled_bytes"), static_cast<int64_t>(8 * kMiB));
  EXPECT_EQ(stat("promotes"), 0);
  // A temporary file that no client renames is spilled, too.
  write_file(path("plain"), pattern(1, 1000));
  EXPECT_TRUE(becomes("clean_entries", 9));
}

TEST_F(SpillTest, OnlyPressureSpillsWithoutDurability) {
  start({.more = "durability=none"});
  const auto names = fill_pool("e", 8);
  write_file(path("plain"), "x");
  make_all_cold();
  EXPECT_EQ(stat("spills"), 9) << "by the order to evict";
  EXPECT_EQ(stat("discards"), 0);
  EXPECT_EQ(check_whole(names), 8);
  const auto more = fill_pool("f", 4);
  ASSERT_TRUE(all_closed(mount()));
  EXPECT_EQ(stat("dirty_entries"), 4);
  EXPECT_EQ(stat("spills"), 9);
}

TEST_F(SpillTest, PromotionMakesCleanAndEvictionNeedsNoSecondWrite) {
  start();
  const auto names = fill_pool("e", 10);
  make_all_cold();
  EXPECT_EQ(tmpfs_used_bytes(mount()) / kMiB, 0u);
  EXPECT_EQ(stat("evictions"), 10);
  EXPECT_EQ(check_whole(names), 10);
  EXPECT_EQ(stat("promotes"), 10);
  EXPECT_EQ(stat("promoted_bytes"), static_cast<int64_t>(10 * kMiB));
  EXPECT_EQ(stat("clean_entries"), 10);
  make_all_cold();
  EXPECT_EQ(stat("spills"), 10);
  EXPECT_EQ(stat("evictions"), 20);
}

TEST_F(SpillTest, FullDiskDiscardsByThePolicy) {
  start({.size = "16M", .spill_size = "64M"});
  std::atomic<bool> done = false;
  int64_t most_used = 0;
  std::thread watcher([&] {
    while (!done) most_used = std::max(most_used, stat("spill_used_bytes"));
  });
  const auto names = fill_pool("e", 200);
  done = true;
  watcher.join();
  EXPECT_LE(most_used, static_cast<int64_t>(64 * kMiB));
  struct ::stat status {};
  ASSERT_EQ(::stat(spill_file().c_str(), &status), 0);
  EXPECT_EQ(status.st_size, static_cast<off_t>(64 * kMiB));
  EXPECT_GT(stat("disk_discards"), 100);
  EXPECT_EQ(stat("spill_errors"), 0);
  // The daemon discards entries until a 32nd of the disk is free for new ones.
  EXPECT_TRUE(becomes("dirty_entries", 0));
  EXPECT_TRUE(eventually([&] { return stat("spill_used_bytes") <= static_cast<int64_t>(62 * kMiB); }));
  const std::vector<int> left = survivors(names);
  EXPECT_GE(left.size(), 48u);
  EXPECT_LE(left.size(), 80u);
  EXPECT_EQ(left.back(), 199);
  // The oldest cold entries go first; an entry that was in use when its turn came may still be in memory.
  EXPECT_LE(std::ranges::count_if(left, [](int i) { return i < 130; }), 3) << ::testing::PrintToString(left);
  EXPECT_EQ(check_whole(names), static_cast<int>(left.size()));
}

TEST_F(SpillTest, EntriesLargerThanTheDiskStayInMemory) {
  start({.size = "64M", .spill_size = "16M"});
  ASSERT_EQ(error_name(store(path("large"), pattern(1, 24 * kMiB))), "ok");
  ASSERT_EQ(error_name(store(path("small"), pattern(2, kMiB))), "ok");
  EXPECT_TRUE(becomes("clean_entries", 1));
  EXPECT_TRUE(rises_to("spills_not_made", 1));
  EXPECT_EQ(stat("spill_errors"), 0);
  EXPECT_EQ(difference(1, read_file(path("large"))), "");
  EXPECT_EQ(difference(2, read_file(path("small"))), "");
}

TEST_F(SpillTest, TierAndChecksumAreShown) {
  start({.more = "durability=none"});
  const std::string content = pattern(3, 3 * kMiB + 123);
  const std::string name = path("e");
  const auto listed = [&] {
    char value[64] = {};
    const int error = error_of(::getxattr(name.c_str(), "user.kvcachefs.checksum", value, sizeof value - 1));
    return error == 0 ? std::string(value) : error_name(error);
  };
  ASSERT_EQ(error_name(store(name, content)), "ok");
  EXPECT_EQ(tier_of(name), "dirty");
  EXPECT_EQ(listed(), "ENODATA");
  make_all_cold();
  const Checksum checksum = checksum_of(std::as_bytes(std::span(content)));
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(checksum.high),
                static_cast<unsigned long long>(checksum.low));
  EXPECT_EQ(tier_of(name), "cold");
  EXPECT_EQ(listed(), text);
  EXPECT_NE(read_file(mount().control("entries")).find("\tcold\t"), std::string::npos);
  EXPECT_EQ(read_file(name), content);
  EXPECT_EQ(tier_of(name), "clean");
  EXPECT_EQ(listed(), text);
  { const File writer(name, O_WRONLY | O_APPEND); }
  EXPECT_EQ(tier_of(name), "dirty");
  EXPECT_EQ(listed(), "ENODATA");
  EXPECT_EQ(set_xattr(name, "user.kvcachefs.tier", "cold"), EPERM);
  EXPECT_EQ(set_xattr(name, "user.kvcachefs.checksum", text), EPERM);
}

TEST_F(SpillTest, ColdEntriesTakeNoMemory) {
  start();
  ASSERT_EQ(error_name(store(path("e"), pattern(3, 3 * kMiB))), "ok");
  make_all_cold();
  struct ::stat status {};
  ASSERT_TRUE(eventually([&] { return ::stat(path("e").c_str(), &status) == 0 && status.st_blocks == 0; }))
      << status.st_blocks;
  EXPECT_EQ(status.st_size, static_cast<off_t>(3 * kMiB));
  EXPECT_EQ(run({"/usr/bin/du", "-k", path("e")}).out, "0\t" + path("e") + "\n");
  EXPECT_EQ(run({"/usr/bin/du", "-k", "--apparent-size", path("e")}).out, "3072\t" + path("e") + "\n");
  EXPECT_TRUE(run({"/bin/ls", "-s", path("e")}).out.starts_with("0 "));
  EXPECT_EQ(stat("promotes"), 0) << "looking promotes nothing";
  open_and_close(path("e"));
  ASSERT_EQ(::stat(path("e").c_str(), &status), 0);
  EXPECT_EQ(status.st_blocks, static_cast<blkcnt_t>(3 * kMiB / 512));
}

TEST_F(SpillTest, WhatIsOpenStaysInMemory) {
  start();
  const auto names = fill_pool("held", 4);
  const std::vector<File> readers = hold_memory(names);
  EXPECT_TRUE(becomes("dirty_entries", 0)) << "open for reading is no obstacle to a copy";
  order(mount(), "100%");
  for (const std::string& name : names) EXPECT_EQ(tier_of(name), "clean");
  fill_pool("pressure", 64);
  for (const std::string& name : names) EXPECT_EQ(tier_of(name), "clean");
  for (int i = 0; i < 4; ++i) EXPECT_EQ(difference(i, read_at(readers[i].fd(), 0, kMiB)), "");
}

TEST_F(SpillTest, DamagedContentIsDiscarded) {
  start();
  const auto names = fill_pool("e", 5, 300'000);
  make_all_cold();
  ASSERT_TRUE(damage(pattern(2, 300'000)));
  std::string content;
  EXPECT_EQ(error_name(load(names[2], &content)), "ENOENT");
  EXPECT_EQ(error_name(load(names[2], &content)), "ENOENT");
  EXPECT_FALSE(exists(names[2]));
  EXPECT_EQ(stat("checksum_errors"), 1);
  EXPECT_EQ(stat("promote_errors"), 1);
  EXPECT_EQ(check_whole(names), 4);
  const std::string log = mount().log();
  const std::regex line(
      "bytes that are not the entry's at byte [0-9]+: an entry of 300000 bytes there is discarded");
  EXPECT_EQ(std::distance(std::sregex_iterator(log.begin(), log.end(), line), std::sregex_iterator()), 1)
      << log;
  // The name and the space of the damaged entry are free again.
  EXPECT_EQ(error_name(store(names[2], pattern(2, 300'000))), "ok");
  make_all_cold();
  EXPECT_EQ(check_whole(names), 5);
}

TEST_F(SpillTest, ServedFromTheDiskWhenAllMemoryIsInUse) {
  start();
  const auto cold = fill_pool("cold", 3, kMiB + 777);
  make_all_cold();
  const auto names = fill_pool("held", 31);
  const std::vector<File> readers = hold_memory(names);
  {
    const File reader(cold[1], O_RDONLY);
    EXPECT_EQ(stat("served_from_disk"), 1);
    EXPECT_EQ(tier_of(cold[1]), "cold");
    const std::string content = pattern(1, kMiB + 777);
    EXPECT_EQ(read_at(reader.fd(), 0, kMiB + 777), content);
    EXPECT_EQ(read_at(reader.fd(), 4097, 10'000), content.substr(4097, 10'000));
    EXPECT_EQ(read_at(reader.fd(), kMiB, 4096), content.substr(kMiB)) << "ends where the entry does";
    EXPECT_EQ(read_at(reader.fd(), 2 * kMiB, 10), "");
    EXPECT_EQ(::lseek(reader.fd(), 0, SEEK_END), static_cast<off_t>(kMiB + 777));
    // The entry is removed while it is read: its bytes stay until the close.
    ASSERT_EQ(::unlink(cold[1].c_str()), 0);
    fill_pool("churn", 4, 4096);
    EXPECT_EQ(read_at(reader.fd(), 0, kMiB + 777), content);
    // A change needs a promotion, which is not possible for an entry without a name.
    const std::string its_path = "/proc/self/fd/" + std::to_string(reader.fd());
    EXPECT_NE(error_of(::truncate(its_path.c_str(), 100)), 0);
    EXPECT_EQ(read_at(reader.fd(), 0, kMiB + 777), content);
  }
  // An open for writing needs memory.
  EXPECT_EQ(error_name(error_of(::open(cold[0].c_str(), O_WRONLY))), "ENOSPC");
  EXPECT_TRUE(exists(cold[0]));
  // Damage is seen before the first byte is given out.
  ASSERT_TRUE(damage(pattern(2, kMiB + 777)));
  std::string content;
  EXPECT_EQ(error_name(load(cold[2], &content)), "ENOENT");
  EXPECT_EQ(stat("checksum_errors"), 1);
  EXPECT_EQ(difference(0, read_file(cold[0])), "");
}

// The files are written in place, and evicted before the second has passed that a client has for a rename.
TEST_F(SpillTest, WhatLeftEarlyComesAndGoesLikeOthers) {
  start({.size = "64M"});
  std::vector<std::string> names;
  for (int i = 0; i < 48; ++i) {
    names.push_back(path("plain-" + std::to_string(i)));
    write_file(names.back(), pattern(i, kMiB));
  }
  set("size", "16M");
  set("size", "64M");
  for (int round = 0; round < 2; ++round) {
    make_all_cold();
    EXPECT_EQ(check_whole(names), 48);
  }
}

// The daemon makes room on the disk by discarding entries that lie there, none that are only in memory.
TEST_F(SpillTest, AFullDiskCostsNothingThatIsInMemoryAlone) {
  start({.size = "128M", .spill_size = "32M", .more = "admission=second_access"});
  const auto kept = fill_pool("kept", 8);
  const auto names = fill_pool("e", 60);
  for (const std::string& name : names) EXPECT_EQ(read_file(name).size(), kMiB);
  EXPECT_TRUE(eventually([&] { return stat("disk_discards") > 20; })) << stat("disk_discards");
  EXPECT_EQ(survivors(kept).size(), 8u);
  EXPECT_EQ(check_whole(kept), 8);
}

TEST_F(SpillTest, ConcurrentOpenersShareAPromotion) {
  start({.size = "64M"});
  const auto names = fill_pool("e", 4, 8 * kMiB);
  for (int round = 1; round <= 3; ++round) {
    make_all_cold();
    std::vector<std::thread> readers;
    for (int i = 0; i < 24; ++i) {
      readers.emplace_back([&, i] { EXPECT_EQ(difference(i % 4, read_file(names[i % 4])), ""); });
    }
    for (std::thread& reader : readers) reader.join();
    EXPECT_EQ(stat("promotes"), 4 * round);
  }
  EXPECT_EQ(stat("served_from_disk"), 0);
}

TEST_F(SpillTest, ARemovedEntryCancelsItsPromotion) {
  start({.size = "64M"});
  for (int round = 0; round < 10; ++round) {
    const auto names = fill_pool("e", 8, 4 * kMiB);
    make_all_cold();
    std::string lines;
    for (int i = 0; i < 8; ++i) lines += "e-" + std::to_string(i) + "\n";
    set("prefetch", lines);
    // Half of the entries are removed and half are replaced, at whatever stage their promotions are.
    for (int i = 0; i < 8; ++i) {
      if (i % 2 == 0)
        EXPECT_EQ(::unlink(names[i].c_str()), 0);
      else
        EXPECT_EQ(error_name(store(names[i], "new")), "ok");
    }
    for (int i = 0; i < 8; ++i) {
      if (i % 2 == 0)
        EXPECT_FALSE(exists(names[i]));
      else
        EXPECT_EQ(read_file(names[i]), "new");
    }
    EXPECT_TRUE(eventually([&] {
      return read_file(mount().control("prefetch")).find("queued 0") != std::string::npos;
    })) << read_file(mount().control("prefetch"));
    EXPECT_TRUE(becomes("entries", 4));
    EXPECT_TRUE(eventually([&] { return tmpfs_used_bytes(mount()) < kMiB; })) << "removed, and yet in memory";
    for (int i = 1; i < 8; i += 2) EXPECT_EQ(::unlink(names[i].c_str()), 0);
    EXPECT_TRUE(becomes("entries", 0));
  }
  EXPECT_EQ(stat("promote_errors"), 0);
  // Space on the disk is free again, too: only the first unit is taken.
  EXPECT_TRUE(becomes("spill_used_bytes", 64 << 10));
}

}  // namespace
}  // namespace kvcachefs::test
