// What a process that takes over serves while it still walks its pools (fs/served_in_part.h).
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "tests/support/faults.h"
#include "tests/support/files.h"

namespace kvcachefs::test {
namespace {

constexpr int kEntries = 8;
using namespace std::chrono_literals;

class ServedInPartTest : public FaultedTierTest {
 protected:
  // `act` is called while a successor waits in the midst of its takeover, and after it that goes on.
  template <class Act>
  void while_it_walks(const std::string& place, Act act) {
    SCOPED_TRACE(place);
    EXPECT_GE(stat("entries"), 0);  // answered when the takeover before this has ended
    const pid_t before = mount().serving_pid();
    arm("pause " + place);
    kill_server();
    ASSERT_TRUE(eventually([&] { return exists(paused()); }));
    EXPECT_NE(mount().serving_pid(), before);
    act();
    go_on();
  }
  void go_on() { (void)::unlink(paused().c_str()); }
  std::vector<std::string> names(const std::string& group) {
    std::vector<std::string> result;
    for (int i = 0; i < kEntries; ++i) result.push_back(path(group + "-" + std::to_string(i)));
    return result;
  }
  std::string paused() const { return fault_file() + ".paused"; }
  void TearDown() override {
    (void)::unlink(paused().c_str());
    FaultedTierTest::TearDown();
  }
};

// A request that is put aside is known by what waits for it: it has not ended although others have.
template <class T>
bool waits(const std::future<T>& call) {
  return call.wait_for(0s) == std::future_status::timeout;
}

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

// Entries that only the disk has are verified, and served from the disk.
class ColdInPartTest : public ServedInPartTest {
 protected:
  void start_cold(const TierOptions& options = {}) {
    start(options);
    add("e", kEntries);
    make_all_cold();
  }
};

TEST_F(ColdInPartTest, WhatIsOnTheDiskIsRead) {
  start_cold();
  ASSERT_EQ(store(path("empty"), ""), 0);
  make_all_cold();
  const int64_t before = stat("served_from_disk");
  for (const char* place : {"walk begun", "adopted the tree", "claimed what the disk has"})
    while_it_walks(place, [&] {
      EXPECT_EQ(check_whole(names("e")), kEntries);
      EXPECT_EQ(read_file(path("empty")), "");
      const File file(path("e-3"), O_RDONLY);
      EXPECT_EQ(read_at(file.fd(), kMiB - 10, 100), pattern(3, kMiB).substr(kMiB - 10));
      EXPECT_EQ(read_at(file.fd(), 2 * kMiB, 100), "");
    });
  // The last process has counted its own.
  EXPECT_GE(stat("served_from_disk") - before, kEntries);
  EXPECT_TRUE(becomes("open_entries", 0));
  EXPECT_EQ(stat("cold_entries"), kEntries + 1);
  expect_whole();
  check_all();
}

// What is still open when the takeover has ended keeps its place on the disk.
TEST_F(ColdInPartTest, WhatStaysOpenIsNotOverwritten) {
  start_cold({.spill_size = "32M"});
  for (const char* place : {"walk begun", "adopted the tree", "claimed what the disk has", "all restored"}) {
    std::vector<File> open;
    while_it_walks(place, [&] {
      open.emplace_back(path("e-0"), O_RDONLY);
      open.emplace_back(path("e-0"), O_RDONLY);
      open.emplace_back(path("e-1"), O_RDONLY);
    });
    EXPECT_TRUE(becomes("open_entries", 2));
    ASSERT_EQ(::unlink(path("e-0").c_str()), 0);
    ASSERT_EQ(store(path("e-1"), pattern(100, kMiB)), 0);
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < kEntries; ++i)
        EXPECT_EQ(store(path("other-" + std::to_string(i)), pattern(200 + round, kMiB)), 0);
      ASSERT_EQ(error_name(sync_directory()), "ok");
    }
    EXPECT_EQ(difference(0, read_at(open[0].fd(), 0, kMiB)), "");
    open.erase(open.begin());
    EXPECT_EQ(difference(0, read_at(open[0].fd(), 0, kMiB)), "");
    EXPECT_EQ(difference(1, read_at(open[1].fd(), 0, kMiB)), "");
    open.clear();
    EXPECT_TRUE(becomes("open_entries", 0));
    for (int i = 0; i < kEntries; ++i) ASSERT_EQ(::unlink(path("other-" + std::to_string(i)).c_str()), 0);
    add("e", 2);
    make_all_cold();
  }
  check_all();
}

TEST_F(ColdInPartTest, ADamagedOneIsNoMissBeforeTheEnd) {
  start_cold();
  ASSERT_TRUE(damage(pattern(1, kMiB)));
  while_it_walks("walk begun", [&] {
    EXPECT_EQ(error_name(error_of(::open(path("e-1").c_str(), O_RDONLY | O_CLOEXEC))), "EIO");
    EXPECT_EQ(difference(2, read_file(path("e-2"))), "");
  });
  EXPECT_EQ(stat("checksum_errors"), 1);
  EXPECT_EQ(error_name(error_of(::open(path("e-1").c_str(), O_RDONLY | O_CLOEXEC))), "ENOENT");
  EXPECT_EQ(stat("entries"), kEntries - 1);
  EXPECT_TRUE(becomes("open_entries", 0));
  stop_and_check();
}

// An open that comes before the disk does waits for it.
TEST_F(ColdInPartTest, AnOpenWaitsForTheDisk) {
  start_cold();
  std::future<std::string> opened;
  while_it_walks("disks to come", [&] {
    opened = std::async(std::launch::async, [&] { return difference(1, read_file(path("e-1"))); });
    EXPECT_TRUE(exists(path("e-2")));
    EXPECT_TRUE(waits(opened));
    arm("pause walk begun");
    go_on();
    ASSERT_TRUE(eventually([&] { return exists(paused()); }));
    EXPECT_EQ(opened.get(), "");
  });
  EXPECT_TRUE(becomes("open_entries", 0));
  check_all();
}

// A disk that is not there yet when the successor looks for it may be when its walk has ended.
TEST_F(ColdInPartTest, TheDiskIsTriedAgainAfterTheWalk) {
  start_cold();
  const std::string hidden = spill_file() + ".away";
  std::future<std::string> opened;
  ASSERT_EQ(::rename(spill_file().c_str(), hidden.c_str()), 0);
  while_it_walks("walk begun", [&] {
    opened = std::async(std::launch::async, [&] { return difference(1, read_file(path("e-1"))); });
    EXPECT_TRUE(exists(path("e-2")));
    EXPECT_TRUE(waits(opened));
    ASSERT_EQ(::rename(hidden.c_str(), spill_file().c_str()), 0);
  });
  EXPECT_EQ(opened.get(), "");
  EXPECT_EQ(stat("disk_away"), 0);
  EXPECT_TRUE(becomes("open_entries", 0));
  check_all();
}

// The disk can be read, and the catalog cannot be made to agree with the files: the disk is away, and what is
// open of it can be read when it is back.
TEST_F(ColdInPartTest, TheDiskFailsAfterAnOpen) {
  start_cold();
  for (const std::string fault : {"fail look at what is there 12", "fail look at what is there 23 7"}) {
    SCOPED_TRACE(fault);
    std::vector<File> open;
    while_it_walks("adopted the tree", [&] {
      open.emplace_back(path("e-3"), O_RDONLY);
      EXPECT_EQ(difference(3, read_at(open[0].fd(), 0, kMiB)), "");
      arm(fault);
    });
    EXPECT_TRUE(fired(fault));
    EXPECT_TRUE(becomes("disk_away", 0));
    EXPECT_EQ(difference(3, read_at(open[0].fd(), 0, kMiB)), "");
    open.clear();
    EXPECT_TRUE(becomes("open_entries", 0));
    expect_whole();
    make_all_cold();
  }
  check_all();
}

TEST_F(ColdInPartTest, ADeathMeanwhileIsADeathAsAnyOther) {
  start_cold();
  for (const char* place : {"verification begun", "open written down", "adopted the tree"}) {
    SCOPED_TRACE(place);
    std::vector<File> meanwhile;
    std::future<std::string> opened;
    while_it_walks("walk begun", [&] {
      meanwhile.emplace_back(path("e-3"), O_RDONLY);
      arm(place);
      opened = std::async(std::launch::async, [&] { return difference(1, read_file(path("e-1"))); });
      if (std::string_view(place).starts_with("adopted")) {
        EXPECT_EQ(opened.get(), "");
        go_on();
      }
      EXPECT_TRUE(fired(place));
      go_on();
    });
    if (opened.valid()) {
      EXPECT_EQ(opened.get(), "");
    }
    EXPECT_EQ(difference(3, read_at(meanwhile[0].fd(), 0, kMiB)), "");
    EXPECT_TRUE(becomes("open_entries", 1));
    meanwhile.clear();
    EXPECT_TRUE(becomes("open_entries", 0));
    serve_for_a_moment();
    make_all_cold();
  }
  check_all();
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
