// What a process that takes over serves while it still walks its pools (fs/served_in_part.h).
#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "tests/support/in_part_test.h"

namespace kvcachefs::test {
namespace {

TEST_F(ServedInPartTest, WhatIsInMemoryIsRead) {
  start();
  add("e", kEntries);
  ASSERT_EQ(::mkdir(path("d").c_str(), 0755), 0);
  ASSERT_EQ(store(path("d/inside"), pattern(3, 1000)), 0);
  ASSERT_EQ(::symlink("e-0", path("link").c_str()), 0);
  for (const char* place : {"walk begun", "adopted the tree", "claimed what the disk has"})
    while_it_walks(place, [&] {
      EXPECT_EQ(check_whole(names("e")), kEntries);
      EXPECT_EQ(difference(3, read_file(path("d/inside"))), "");
      EXPECT_EQ(difference(0, read_file(path("link"))), "");
      struct stat status {};
      EXPECT_EQ(::stat(path("e-1").c_str(), &status), 0);
      EXPECT_EQ(status.st_size, static_cast<off_t>(kMiB));
      EXPECT_FALSE(exists(path("nothing")));
      // Python's open() asks each file whether it is a terminal.
      const File file(path("e-0"), O_RDONLY);
      EXPECT_FALSE(::isatty(file.fd()));
    });
  EXPECT_EQ(stat("entries"), kEntries + 1);
  EXPECT_TRUE(becomes("open_entries", 0));
  check_all();
}

TEST_F(ServedInPartTest, WhateverElseWaits) {
  start();
  add("e", kEntries);
  make_all_cold();
  add("warm", kEntries);
  ASSERT_EQ(::mkdir(path("d").c_str(), 0755), 0);
  ASSERT_EQ(store(path("d/read"), pattern(2, kMiB)), 0);
  std::vector<std::future<int>> calls;
  while_it_walks("walk begun", [&] {
    EXPECT_EQ(difference(2, read_file(path("d/read"))), "");
    const auto begin = [&](auto call) { calls.push_back(std::async(std::launch::async, call)); };
    begin([&] { return store(path("new"), pattern(1, kMiB)); });
    begin([&] { return ::rename(path("warm-7").c_str(), path("renamed").c_str()) == 0 ? 0 : errno; });
    begin([&] { return ::unlink(path("warm-6").c_str()) == 0 ? 0 : errno; });
    begin([&] { return ::chmod(path("warm-5").c_str(), 0600) == 0 ? 0 : errno; });
    begin([&] { return static_cast<int>(list(mount().path()).size()) > kEntries ? 0 : EIO; });
    begin([&] { return read_file(mount().path() + "/.pool/stats").empty() ? EIO : 0; });
    // Opened for writing, and closed again.
    begin([&] { return UniqueFd(::open(path("warm-4").c_str(), O_RDWR | O_CLOEXEC)) ? 0 : errno; });
    // The kernel holds the directory in which a name is to be made or to go: only in others names are found.
    for (int i = 0; i < 100; ++i) EXPECT_EQ(difference(2, read_file(path("d/read"))), "");
    for (auto& call : calls) EXPECT_TRUE(waits(call));
  });
  for (auto& call : calls) EXPECT_EQ(error_name(call.get()), "ok");
  EXPECT_EQ(difference(7, read_file(path("renamed"))), "");
  EXPECT_FALSE(exists(path("warm-6")));
  EXPECT_TRUE(becomes("open_entries", 0));
  stop_and_check();
}

// The counts of what was open before, and of what was opened and closed meanwhile, are right in the end.
TEST_F(ServedInPartTest, CountsOfOpensStayTrue) {
  start();
  add("e", kEntries);
  for (const char* place : {"walk begun", "adopted the tree", "claimed what the disk has", "all restored"}) {
    std::vector<File> before;
    for (const std::string& name : names("e")) before.emplace_back(name, O_RDONLY);
    File writer(path("written"), O_RDWR | O_CREAT);
    ASSERT_EQ(::write(writer.fd(), "part", 4), 4);
    std::vector<File> meanwhile;
    while_it_walks(place, [&] {
      for (const std::string& name : names("e")) meanwhile.emplace_back(name, O_RDONLY);
      while (before.size() > kEntries / 2) before.pop_back();
      for (int i = 0; i < kEntries / 2; ++i) EXPECT_EQ(difference(i, read_at(before[i].fd(), 0, kMiB)), "");
    });
    EXPECT_TRUE(becomes("open_entries", kEntries + 1)) << stat("open_entries");
    before.clear();
    meanwhile.clear();
    EXPECT_EQ(::write(writer.fd(), "s", 1), 1);
    writer.close();
    EXPECT_TRUE(becomes("open_entries", 0));
    EXPECT_EQ(read_file(path("written")), "parts");
    EXPECT_EQ(::unlink(path("written").c_str()), 0);
  }
  EXPECT_EQ(stat("entries"), kEntries);
  check_all();
}

TEST_F(ServedInPartTest, ADeathMeanwhileIsADeathAsAnyOther) {
  start();
  add("e", kEntries);
  int round = 0;
  for (const char* place : {"walk begun", "adopted the tree", "claimed what the disk has", "resumed"}) {
    SCOPED_TRACE(place);
    std::future<int> stored;
    std::vector<File> meanwhile;
    while_it_walks("walk begun", [&] {
      for (const std::string& name : names("e")) meanwhile.emplace_back(name, O_RDONLY);
      stored = std::async(std::launch::async,
                          [&] { return store(path("new-" + std::to_string(round)), pattern(round, kMiB)); });
      arm(place);
      kill_server();
      (void)::unlink(paused().c_str());
      EXPECT_TRUE(fired(place));
      for (const File& file : meanwhile) EXPECT_EQ(read_at(file.fd(), 0, 1).size(), 1u);
    });
    EXPECT_EQ(error_name(stored.get()), "ok");
    EXPECT_EQ(difference(round, read_file(path("new-" + std::to_string(round)))), "");
    EXPECT_TRUE(becomes("open_entries", kEntries));
    meanwhile.clear();
    EXPECT_TRUE(becomes("open_entries", 0));
    ++round;
    serve_for_a_moment();
  }
  check_all();
}

// An open that was written down and not answered is counted once.
TEST_F(ServedInPartTest, AnOpenThatIsSentAgainIsCountedOnce) {
  start();
  add("e", kEntries);
  EXPECT_EQ(check_whole(names("e")), kEntries);
  ASSERT_TRUE(all_closed(mount()));
  arm("open written down\npause walk begun");
  auto opened = std::async(std::launch::async, [&] { return difference(3, read_file(path("e-3"))); });
  ASSERT_TRUE(eventually([&] { return exists(paused()); }));
  EXPECT_EQ(difference(2, read_file(path("e-2"))), "");
  go_on();
  EXPECT_EQ(opened.get(), "");
  EXPECT_TRUE(becomes("open_entries", 0));
  check_all();
}

// Of one call the kernel tries an ESTALE once more, whichever processes it met.
TEST_F(ServedInPartTest, ADeathBetweenTheTriesOfAnOpenIsNoErrorToIt) {
  ::setenv("KVCACHEFS_DAEMON_ARGS", "-o threads=1", 1);  // the second try is not received when one dies
  start();
  ::unsetenv("KVCACHEFS_DAEMON_ARGS");
  add("e", kEntries);
  EXPECT_EQ(check_whole(names("e")), kEntries);
  ASSERT_TRUE(all_closed(mount()));
  const File pool(path("."), O_PATH | O_DIRECTORY);  // from here e-3 is the only name to be looked up
  while_it_walks("walk begun", [&] {
    ASSERT_EQ(store(paused(), "emptied when the next walk begins"), 0);
    arm("request answered " + std::to_string(FUSE_LOOKUP) + "\npause walk begun");
    auto opened = std::async(std::launch::async, [&] {
      const UniqueFd entry(::openat(pool.fd(), "e-3", O_RDONLY | O_CLOEXEC));
      return entry ? difference(3, read_at(entry.get(), 0, kMiB)) : error_name(errno);
    });
    EXPECT_TRUE(eventually([&] { return read_file(paused()).empty(); }));
    go_on();
    EXPECT_EQ(opened.get(), "");
  });
  EXPECT_TRUE(becomes("open_entries", 0));
  check_all();
}

// What was opened meanwhile has been used last, and leaves last; what was looked for has not been used.
TEST_F(ServedInPartTest, WhatIsReadMeanwhileLeavesLast) {
  start_pool("p:size=64M");
  const auto all = fill_pool("e", 20);
  ASSERT_TRUE(all_closed(mount()));
  while_it_walks("walk begun", [&] {
    EXPECT_EQ(check_whole({all[0], all[1]}), 2);
    EXPECT_TRUE(exists(all[2]));
  });
  ASSERT_TRUE(all_closed(mount()));
  order(mount(), "18M");
  EXPECT_EQ(survivors(all), (std::vector<int>{0, 1}));
}

}  // namespace
}  // namespace kvcachefs::test
