// Which entries are worth the disk, and which are brought back before a client waits for them: admission,
// prefetch orders, successors. Also the ways in which a pool gets its disk tier.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/disk_tier.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

namespace kvcachefs::test {
namespace {

class SpillChoiceTest : public DiskTierTest {
 protected:
  void expect_cold(const std::vector<std::string>& names, const std::vector<int>& cold) {
    for (const int i : cold) EXPECT_EQ(tier_of(names[i]), "cold") << names[i];
  }
  // A value of .pool/prefetch.
  int64_t progress(const std::string& what) {
    return std::stoll(parse_stats(read_file(mount().control("prefetch"))).at(what));
  }
};

TEST_F(SpillChoiceTest, SecondAccessIsAdmitted) {
  start({.more = "admission=second_access"});
  const auto names = fill_pool("e", 12);
  for (int i = 0; i < 12; i += 3) EXPECT_EQ(read_file(names[i]).size(), kMiB);
  EXPECT_TRUE(becomes("clean_entries", 4));
  ASSERT_TRUE(all_closed(mount()));
  order(mount(), "100%");
  EXPECT_EQ(survivors(names), (std::vector<int>{0, 3, 6, 9}));
  expect_cold(names, {0, 3, 6, 9});
  EXPECT_EQ(stat("spills"), 4);
  EXPECT_EQ(stat("admitted_bytes"), static_cast<int64_t>(4 * kMiB));
  EXPECT_EQ(stat("refused_bytes"), static_cast<int64_t>(8 * kMiB));
  EXPECT_EQ(stat("discards"), 8);
  EXPECT_EQ(check_whole(names), 4);
}

TEST_F(SpillChoiceTest, WritingIsNoSecondAccess) {
  start({.more = "admission=second_access"});
  const auto names = fill_pool("e", 3);
  EXPECT_EQ(read_file(names[0]).size(), kMiB);
  EXPECT_TRUE(becomes("clean_entries", 1));
  for (const int i : {1, 2}) {
    const File file(names[i], O_RDWR);
    const std::string content = pattern(i, kMiB);
    ASSERT_EQ(::pwrite(file.fd(), content.data(), kMiB, 0), static_cast<ssize_t>(kMiB));
  }
  EXPECT_EQ(read_file(names[2]).size(), kMiB);
  EXPECT_TRUE(becomes("clean_entries", 2));
  ASSERT_TRUE(all_closed(mount()));
  order(mount(), "100%");
  EXPECT_EQ(survivors(names), (std::vector<int>{0, 2}));
}

// The kernel reports a close at some later time, here when the mapping goes, so that a reader may come first.
TEST_F(SpillChoiceTest, AReaderThatComesBeforeTheWriterIsGoneIsAnAccess) {
  start({.more = "admission=second_access"});
  const auto names = fill_pool("e", 2);
  std::vector<std::unique_ptr<Mapping>> kept;
  for (const int i : {0, 1}) {
    const File file(names[i], O_RDWR);
    ASSERT_EQ(::pwrite(file.fd(), "x", 1, 0), 1);
    kept.push_back(std::make_unique<Mapping>(file.fd(), kMiB, PROT_READ, MAP_PRIVATE));
  }
  EXPECT_EQ(read_file(names[1]).size(), kMiB);
  ASSERT_EQ(stat("clean_entries"), 0);
  kept.clear();
  EXPECT_TRUE(becomes("clean_entries", 1));
  EXPECT_EQ(tier_of(names[1]), "clean");
}

TEST_F(SpillChoiceTest, WhatIsRefusedCanBeSynced) {
  start({.more = "admission=second_access"});
  const auto names = fill_pool("e", 2);
  { ASSERT_EQ(::fsync(File(names[1], O_RDONLY).fd()), 0); }
  ASSERT_TRUE(all_closed(mount()));
  order(mount(), "100%");
  EXPECT_EQ(survivors(names), std::vector<int>{1});
}

TEST_F(SpillChoiceTest, FrequentNamesAreAdmittedByTinyLfu) {
  start({.more = "admission=tinylfu"});
  const auto names = fill_pool("once", 8);
  const auto again = fill_pool("again", 4);
  for (int round = 0; round < 3; ++round)
    for (const std::string& name : again) EXPECT_EQ(read_file(name).size(), kMiB);
  ASSERT_TRUE(all_closed(mount()));
  order(mount(), "100%");
  EXPECT_EQ(survivors(again).size(), 4u);
  EXPECT_EQ(survivors(names).size(), 0u);
  EXPECT_GT(stat("refused_bytes"), 0);
}

TEST_F(SpillChoiceTest, AdmissionChangesWhileItServes) {
  start({.more = "admission=second_access"});
  EXPECT_EQ(read_file(mount().control("admission")), "second_access\n");
  set("admission", "all");
  const auto names = fill_pool("e", 4);
  EXPECT_TRUE(becomes("clean_entries", 4));
  EXPECT_EQ(error_name(write_once(mount().control("admission"), "some")), "EINVAL");
  EXPECT_EQ(read_file(mount().control("admission")), "all\n");
}

TEST_F(SpillChoiceTest, PrefetchOrders) {
  start({.more = "prefetch=off"});
  const auto names = fill_pool("e", 8);
  make_directory(path("d"));
  ASSERT_EQ(error_name(store(path("d/with blank"), pattern(9, kMiB))), "ok");
  make_all_cold();
  set("prefetch", "e-0\ne-1 5\nnothing\ne-1\n");
  EXPECT_TRUE(rises_to("promotes", 2));
  EXPECT_TRUE(eventually([&] { return progress("queued") == 0; }));
  EXPECT_EQ(progress("failed"), 1);
  EXPECT_EQ(stat("promotes"), 2) << "each once";
  EXPECT_EQ(tier_of(names[0]), "clean");
  EXPECT_EQ(tier_of(names[2]), "cold");
  EXPECT_EQ(stat("promote_waits"), 0);
  EXPECT_EQ(difference(0, read_file(names[0])), "");
  EXPECT_EQ(stat("promote_waits"), 0) << "it was there";
  EXPECT_EQ(stat("prefetch_useful"), 1);
  const Outcome outcome = run({"kvcachefs", "--mount", mount().root(), "prefetch", "p", "e-4", "e-5"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_EQ(tier_of(names[4]), "clean");
  EXPECT_EQ(tier_of(names[5]), "clean");
  make_all_cold();
  EXPECT_EQ(stat("prefetch_wasted"), 3) << "e-1, e-4 and e-5 were never opened";
}

TEST_F(SpillChoiceTest, APinnedEntryComesBackIntoMemory) {
  start();
  const auto names = fill_pool("e", 3);
  make_all_cold();
  ASSERT_EQ(set_xattr(names[1], "user.kvcachefs.pinned", "1"), 0);
  EXPECT_TRUE(eventually([&] { return tier_of(names[1]) == "clean"; }));
  order(mount(), "100%");
  EXPECT_EQ(tier_of(names[1]), "clean");
  EXPECT_TRUE(becomes("pinned_bytes", static_cast<int64_t>(kMiB)));
}

TEST_F(SpillChoiceTest, ColdEntriesCountAgainstThePinsLimit) {
  start();
  const auto names = fill_pool("e", 40);
  make_all_cold();
  for (int i = 0; i < 16; ++i) EXPECT_EQ(set_xattr(names[i], "user.kvcachefs.pinned", "1"), 0) << i;
  EXPECT_EQ(stat("pinned_bytes"), static_cast<int64_t>(16 * kMiB));
  EXPECT_EQ(error_name(set_xattr(names[16], "user.kvcachefs.pinned", "1")), "ENOSPC") << "half of 32M";
  EXPECT_TRUE(becomes("clean_entries", 16));
  EXPECT_EQ(stat("pinned_bytes"), static_cast<int64_t>(16 * kMiB));
  ASSERT_EQ(set_xattr(names[0], "user.kvcachefs.pinned", "0"), 0);
  EXPECT_EQ(error_name(set_xattr(names[16], "user.kvcachefs.pinned", "1")), "ok");
}

// open_in_order() opens the first `count` of these names, one after the other, as one client.
int open_in_order(const std::vector<std::string>& names, size_t count) {
  return in_child([&] {
    for (size_t i = 0; i < count; ++i)
      if (read_file(names[i]).empty()) return 1;
    return 0;
  });
}

TEST_F(SpillChoiceTest, SuccessorsComeEarly) {
  start();
  const auto names = fill_pool("e", 6);
  for (int round = 0; round < 3; ++round) ASSERT_EQ(open_in_order(names, 6), 0);
  make_all_cold();
  const int64_t useful = stat("prefetch_useful");
  ASSERT_EQ(open_in_order(names, 1), 0);
  EXPECT_TRUE(eventually([&] { return tier_of(names[1]) == "clean"; })) << "e-1 follows e-0";
  EXPECT_EQ(tier_of(names[0]), "clean");
  EXPECT_EQ(difference(1, read_file(names[1])), "");
  EXPECT_EQ(stat("prefetch_useful"), useful + 1);
}

// A client may have a pool of threads: the order counts for the process.
TEST_F(SpillChoiceTest, SuccessorsOfWhatSeveralThreadsOpen) {
  start();
  const auto names = fill_pool("e", 6);
  const auto open_by_threads = [&](size_t count) {
    for (size_t i = 0; i < count; ++i)
      std::thread([&] { EXPECT_EQ(difference(i, read_file(names[i])), ""); }).join();
  };
  for (int round = 0; round < 3; ++round) open_by_threads(6);
  make_all_cold();
  open_by_threads(1);
  EXPECT_TRUE(eventually([&] { return tier_of(names[1]) == "clean"; })) << "e-1 follows e-0";
}

// The pool holds a third of these entries. What prefetches have come to is known when all are cold again.
TEST_F(SpillChoiceTest, PrefetchBacksOffWhereItDoesNotHelp) {
  start({.size = "16M"});
  auto names = fill_pool("e", 36);
  // A prefetch that meets a full memory waits for no room: it is asked for again at the next open.
  const auto follow = [&] {
    for (size_t i = 0; i + 1 < names.size() && !HasFailure(); ++i) {
      EXPECT_TRUE(eventually([&] {
        EXPECT_NE(read_file(names[i]), "");
        return eventually([&] { return tier_of(names[i + 1]) != "cold"; }, std::chrono::milliseconds(100));
      })) << names[i + 1];
    }
  };
  ASSERT_EQ(open_in_order(names, names.size()), 0);
  make_all_cold();
  ASSERT_EQ(open_in_order(names, names.size()), 0);
  for (int round = 0; round < 2; ++round) follow();
  make_all_cold();
  const int64_t useful = stat("prefetch_useful"), wasted = stat("prefetch_wasted");
  EXPECT_GT(useful, 60) << "an order that comes again helps";
  EXPECT_LT(wasted, useful);
  std::mt19937 random(1);
  for (int round = 0; round < 12; ++round) {
    std::ranges::shuffle(names, random);
    ASSERT_EQ(open_in_order(names, names.size()), 0);
  }
  make_all_cold();
  const int64_t of_no_use = stat("prefetch_wasted");
  EXPECT_LT(of_no_use - wasted, 120) << "of " << 12 * names.size() << " opens";
  for (int round = 0; round < 6; ++round) {
    std::ranges::shuffle(names, random);
    ASSERT_EQ(open_in_order(names, names.size()), 0);
  }
  make_all_cold();
  EXPECT_LT(stat("prefetch_wasted") - of_no_use, 10);
  // The order comes again: so do the prefetches.
  const int64_t useful_before = stat("prefetch_useful");
  for (int round = 0; round < 12; ++round) ASSERT_EQ(open_in_order(names, names.size()), 0);
  follow();
  EXPECT_GT(stat("prefetch_useful") - useful_before, 100) << "of " << 13 * names.size() << " opens";
}

TEST_F(SpillChoiceTest, SuccessorsStayWherePrefetchIsOff) {
  start({.more = "prefetch=off"});
  const auto names = fill_pool("e", 6);
  for (int round = 0; round < 3; ++round) ASSERT_EQ(open_in_order(names, 6), 0);
  make_all_cold();
  const int64_t promotes = stat("promotes");
  ASSERT_EQ(open_in_order(names, 3), 0);
  // A prefetch of e-3 would come before the order given here, and so the counts show that there was none.
  set("prefetch", "e-5");
  EXPECT_TRUE(eventually([&] { return tier_of(names[5]) == "clean"; }));
  EXPECT_EQ(stat("promotes"), promotes + 4);
  EXPECT_EQ(tier_of(names[3]), "cold");
}

TEST_F(SpillChoiceTest, ADiskTierForAPoolThatServes) {
  start_pool("p:size=32M");
  EXPECT_EQ(read_file(mount().control("spill")), "none\n");
  const auto names = fill_pool("e", 8);
  set("spill", spill_file() + " 128M");
  EXPECT_EQ(read_file(mount().control("spill")), spill_file() + " 128M\n");
  EXPECT_TRUE(becomes("clean_entries", 8)) << "what was there before is the tier's, too";
  make_all_cold();
  EXPECT_EQ(check_whole(names), 8);
  EXPECT_EQ(error_name(write_once(mount().administrators("spill"), spill_file() + " 64M")), "EBUSY");
}

TEST_F(SpillChoiceTest, ADiskTierThatComesLateFindsItsDirectoriesThere) {
  const std::string spilled = spill_file() + " 128M";
  start({.size = "32M", .spill_size = "128M"});
  make_directory(path("model"));
  fill(path("model"), "e", 4);
  fill_pool("top", 4);
  const File directory(path("model"), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(error_name(error_of(::fsync(directory.fd()))), "ok");
  make_all_cold();
  stop();
  const auto expect_all = [&] {
    EXPECT_EQ(read_file(path("model/e-0")), "newer");
    for (int i = 1; i < 4; ++i) EXPECT_EQ(difference(i, read_file(path("model/e-" + std::to_string(i)))), "");
    for (int i = 0; i < 4; ++i) EXPECT_EQ(difference(i, read_file(path("top-" + std::to_string(i)))), "");
  };
  start_pool("p:size=32M");
  make_directory(path("model"));  // as a server does when it starts
  ASSERT_EQ(store(path("model/e-0"), "newer"), 0);
  set("spill", spilled);
  expect_all();
  const auto all_committed = [&] {
    const File pool(mount().path(), O_RDONLY | O_DIRECTORY);
    return becomes("dirty_entries", 0) && ::fsync(pool.fd()) == 0;
  };
  EXPECT_TRUE(all_committed());
  start_pool("p:size=32M,spill=" + spill_file() + ",spill_size=128M");
  expect_all();
}

// Several names of a file, a link and empty directories, of which no catalog was told.
TEST_F(SpillChoiceTest, ADiskTierThatComesLateLearnsAllNames) {
  start_pool("p:size=32M");
  ASSERT_EQ(error_name(store(path("a"), pattern(1, 300'000))), "ok");
  make_directory(path("d"));
  make_directory(path("d/empty"));
  ASSERT_EQ(::link(path("a").c_str(), path("d/b").c_str()), 0);
  ASSERT_EQ(::symlink("a", path("d/link").c_str()), 0);
  set("spill", spill_file() + " 128M");
  EXPECT_TRUE(becomes("clean_entries", 1));
  ASSERT_EQ(::unlink(path("a").c_str()), 0);
  const File pool(mount().path(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(error_name(error_of(::fsync(pool.fd()))), "ok");
  // The entries stored next would overwrite its place on the disk if that had been given away.
  EXPECT_EQ(check_whole(fill_pool("e", 40, 300'000)), 40);
  make_all_cold();
  EXPECT_EQ(difference(1, read_file(path("d/b"))), "");
  EXPECT_EQ(stat("checksum_errors"), 0);
  kill();
  start_pool("p:size=32M,spill=" + spill_file() + ",spill_size=128M");
  EXPECT_FALSE(exists(path("a")));
  EXPECT_EQ(difference(1, read_file(path("d/b"))), "");
  EXPECT_EQ(list(path("d")), (std::vector<std::string>{"b", "empty", "link"}));
}

TEST_F(SpillChoiceTest, WhatWasNotThereComesBackWithADiskTier) {
  start({.size = "32M", .spill_size = "128M"});
  make_directory(path("d"));
  ASSERT_EQ(error_name(store(path("d/e"), pattern(1, 300'000))), "ok");
  ASSERT_EQ(error_name(store(path("f"), pattern(2, 300'000))), "ok");
  stop();
  start_pool("p:size=32M");
  make_directory(path("d"));
  EXPECT_FALSE(exists(path("d/e")) || exists(path("f"))) << "a miss that the kernel remembers";
  set("spill", spill_file() + " 128M");
  EXPECT_TRUE(eventually([&] { return exists(path("d/e")) && exists(path("f")); }));
  EXPECT_EQ(difference(1, read_file(path("d/e"))), "");
  EXPECT_EQ(difference(2, read_file(path("f"))), "");
}

TEST_F(SpillChoiceTest, CreatedByCommandWithADiskTier) {
  start_pool("p:size=32M");
  const Outcome outcome = run({"kvcachefs", "--mount", mount().root(), "create", "q", "--size", "16M",
                               "--spill", disk() / "q", "--spill-size", "64M", "--durability", "sync"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_EQ(read_file(mount().control("durability", "q")), "sync\n");
  const auto names = fill(mount().path("q"), "e", 40);
  EXPECT_EQ(check_whole(names), 40);
  EXPECT_GE(mount().stat_value("cold_entries", "q"), 20);
  EXPECT_EQ(error_name(error_of(::rmdir(mount().path("q").c_str()))), "ENOTEMPTY");
  remove_content(mount().path("q"));
  EXPECT_EQ(::rmdir(mount().path("q").c_str()), 0);
  EXPECT_EQ(::mkdir(mount().path("q").c_str(), 0755), 0);
  EXPECT_EQ(mount().stat_value("entries", "q"), 0);
}

// use_until() calls fsync on a file of a removed pool, again and again while the disk's threads end, and
// closes the file at `end`. It returns the different results.
std::vector<std::string> use_until(std::chrono::steady_clock::time_point end, int fd) {
  std::set<std::string> outcomes;
  while (std::chrono::steady_clock::now() < end) outcomes.insert(error_name(error_of(::fsync(fd))));
  outcomes.insert("close: " + error_name(error_of(::close(fd))));
  return {outcomes.begin(), outcomes.end()};
}

TEST_F(SpillChoiceTest, AFileOfARemovedPoolIsAnswered) {
  start_pool("p:size=32M");
  const Outcome outcome = run({"kvcachefs", "--mount", mount().root(), "create", "q", "--size", "16M",
                               "--spill", disk() / "q", "--spill-size", "64M", "--durability", "sync"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.error;
  const std::string name = mount().path("q") + "/e";
  const int fd = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(::write(fd, "content", 7), 7);
  EXPECT_EQ(::fsync(fd), 0);
  ASSERT_EQ(::unlink(name.c_str()), 0);
  ASSERT_EQ(::rmdir(mount().path("q").c_str()), 0);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  auto outcomes = std::async(std::launch::async, [=] { return use_until(end, fd); });
  // A call that is never answered ends only with the daemon, even if the caller is killed.
  if (outcomes.wait_for(std::chrono::seconds(60)) != std::future_status::ready) {
    ADD_FAILURE() << "it hangs";
    kill();
  }
  const auto seen = outcomes.get();
  EXPECT_EQ(seen, (std::vector<std::string>{"close: ok", "ok"}));
}

TEST_F(SpillChoiceTest, TwoPoolsDoNotShareADisk) {
  const std::string said = refusal({"p:size=32M,spill=" + spill_file() + ",spill_size=64M",
                                    "q:size=32M,spill=" + spill_file() + ",spill_size=64M"});
  EXPECT_NE(said.find("ended with 2"), std::string::npos) << said;
}

}  // namespace
}  // namespace kvcachefs::test
