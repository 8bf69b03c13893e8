// How a successor treats entries that lie on a disk: opens that waited for the disk or are served from it
// when the serving process died; entries that were unlinked meanwhile; and a disk tier that was being given
// to the pool.
#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "tests/support/faults.h"
#include "tests/support/files.h"

namespace kvcachefs::test {
namespace {

std::string at_request(const char* stage, uint32_t opcode) {
  return std::string("request ") + stage + " " + std::to_string(opcode);
}

class TakeoverTest : public FaultedTierTest {
 protected:
  // hold_memory() opens entries so that all memory is in use and cold entries are served from the disk.
  std::vector<File> hold_memory() {
    std::vector<File> readers;
    for (const std::string& name : fill_pool("held", 31)) readers.emplace_back(name, O_RDONLY);
    return readers;
  }
};

TEST_F(TakeoverTest, AnOpenThatWaitedForTheDiskIsAnsweredOnce) {
  start();
  add("e", 4);
  for (const std::string& place :
       {at_request("begun", FUSE_OPEN), std::string("promotion begun"), std::string("marked promoted"),
        std::string("open written down"), at_request("done", FUSE_OPEN), at_request("answered", FUSE_OPEN)}) {
    SCOPED_TRACE(place);
    make_all_cold();
    die_at(place, [&] {
      const File reader(path("e-1"), O_RDONLY);
      EXPECT_EQ(difference(1, read_at(reader.fd(), 0, kMiB)), "");
      EXPECT_GE(stat("open_entries"), 1);
    });
    EXPECT_TRUE(becomes("open_entries", 0));
    make_all_cold();
    die_at(place, [&] {
      const File writer(path("e-2"), O_RDWR);
      EXPECT_EQ(difference(2, read_at(writer.fd(), 0, kMiB)), "");
    });
    EXPECT_TRUE(becomes("open_entries", 0));
    serve_for_a_moment();
    if (HasFailure()) return;
  }
  check_all();
}

TEST_F(TakeoverTest, AnOpenServedFromTheDiskStaysSo) {
  start();
  const auto cold = fill_pool("cold", 2, kMiB + 777);
  make_all_cold();
  const std::string content = pattern(1, kMiB + 777);
  {
    const std::vector<File> holders = hold_memory();
    for (const std::string& place : {at_request("begun", FUSE_OPEN), std::string("open written down"),
                                     at_request("done", FUSE_OPEN), at_request("answered", FUSE_OPEN)}) {
      SCOPED_TRACE(place);
      die_at(place, [&] {
        const File first(cold[1], O_RDONLY);
        EXPECT_TRUE(read_at(first.fd(), 0, 2 * kMiB) == content);
      });
      EXPECT_TRUE(becomes("open_entries", 31));
      const File first(cold[1], O_RDONLY);
      die_at(place, [&] {
        const File second(cold[1], O_RDONLY);
        EXPECT_TRUE(read_at(second.fd(), 0, 2 * kMiB) == content);
        EXPECT_TRUE(read_at(first.fd(), 0, 2 * kMiB) == content);
        EXPECT_EQ(tier_of(cold[1]), "cold");
      });
      serve_for_a_moment();
      if (HasFailure()) return;
    }
    // Because a writer needs memory, it has the entry brought there; a reader from the disk goes on.
    const File first(cold[1], O_RDONLY);
    std::vector<File> fewer;
    replace_server();
    EXPECT_TRUE(read_at(first.fd(), 0, 2 * kMiB) == content);
  }
  EXPECT_TRUE(becomes("open_entries", 0));
  for (const std::string& name : cold) EXPECT_EQ(read_file(name).size(), kMiB + 777);
  EXPECT_TRUE(read_file(cold[1]) == content);
  EXPECT_EQ(stat("checksum_errors"), 0);
}

// The entry was opened from the disk, then brought to memory and changed by a writer.
TEST_F(TakeoverTest, ReadersFromTheDiskSeeWhatIsWrittenAfterATakeover) {
  start();
  const auto cold = fill_pool("cold", 1, kMiB + 777);
  make_all_cold();
  std::vector<File> holders = hold_memory();
  File reader(cold[0], O_RDONLY);
  ASSERT_EQ(stat("served_from_disk"), 1);
  holders.clear();
  {
    const File writer(cold[0], O_RDWR);
    ASSERT_EQ(::pwrite(writer.fd(), "new", 3, 0), 3);
    replace_server();
    EXPECT_EQ(read_at(reader.fd(), 0, 3), "new");
  }
  reader.close();
  EXPECT_TRUE(becomes("open_entries", 0));
  EXPECT_EQ(read_file(cold[0]).substr(0, 3), "new");
}

// The server died before it answered that it serves the open from the disk. Meanwhile there is memory, and a
// writer has the entry open.
TEST_F(TakeoverTest, AnOpenFromTheDiskThatWasNotAnsweredIsBegunAnew) {
  start();
  const auto cold = fill_pool("cold", 1, kMiB + 777);
  make_all_cold();
  std::vector<File> holders = hold_memory();
  const std::string paused = fault_file() + ".paused";
  arm("open written down\npause " + at_request("begun", FUSE_OPEN));
  std::thread reader([&] {
    const UniqueFd file(::open(cold[0].c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) return void(ADD_FAILURE() << std::strerror(errno));
    EXPECT_TRUE(read_at(file.get(), 0, 2 * kMiB) == pattern(0, kMiB + 777));
    void* const view = ::mmap(nullptr, kMiB, PROT_READ, MAP_SHARED, file.get(), 0);
    EXPECT_NE(view, MAP_FAILED) << std::strerror(errno);
    if (view != MAP_FAILED) ::munmap(view, kMiB);
  });
  EXPECT_TRUE(eventually([&] { return exists(paused); }));
  holders.clear();
  EXPECT_TRUE(becomes("open_entries", 1));
  {
    const File writer(cold[0], O_RDWR);
    ::unlink(paused.c_str());
    reader.join();
  }
  EXPECT_TRUE(becomes("open_entries", 0));
  make_all_cold();
  EXPECT_EQ(tier_of(cold[0]), "cold");
}

// The file was made and recorded, but the successor cannot get what it needs for the answer: the create
// begins anew.
TEST_F(TakeoverTest, ACreateThatCannotBeAnsweredAsItWasIsBegunAnew) {
  start();
  for (const int flags : {O_CREAT | O_EXCL | O_RDWR, O_CREAT | O_WRONLY, O_TMPFILE | O_RDWR}) {
    SCOPED_TRACE(flags);
    const bool named = (flags & O_TMPFILE) != O_TMPFILE;
    const std::string name = path(named ? "made-" + std::to_string(flags) : ".");
    die_at("open written down\nfail open again 24", [&] {
      const UniqueFd file(::open(name.c_str(), flags | O_CLOEXEC, 0644));
      ASSERT_TRUE(file) << std::strerror(errno);
      EXPECT_EQ(::pwrite(file.get(), "new", 3, 0), 3);
    });
    EXPECT_TRUE(becomes("open_entries", 0));
    if (named) {
      EXPECT_EQ(read_file(name), "new");
    }
    serve_for_a_moment();
  }
}

// The first answer of a successor may be the statistics, which are complete.
TEST_F(TakeoverTest, TheStatsSayWhoServesFromTheFirstAnswerOn) {
  start();
  const std::string stats = mount().root() + "/.kvcachefs/stats";
  const std::string mode = parse_stats(read_file(stats)).at("io_mode");
  for (int i = 0; i < 8; ++i) {
    std::map<std::string, std::string> said;
    die_at(at_request("begun", FUSE_OPEN), [&] { said = parse_stats(read_file(stats)); });
    EXPECT_EQ(said["pid"], std::to_string(mount().serving_pid()));
    EXPECT_EQ(said["io_mode"], mode);
    EXPECT_NE(said["memory_bytes"], "0");
    EXPECT_NE(said["threads"], "0");
    serve_for_a_moment();
  }
}

TEST_F(TakeoverTest, OthersThatWaitForTheDiskAreAnsweredOnce) {
  start();
  add("e", 2);
  const std::string cut = path("cut"), synced = path("synced");
  for (const std::string& place : {at_request("begun", FUSE_SETATTR), std::string("copied from the disk"),
                                   at_request("done", FUSE_SETATTR), at_request("answered", FUSE_SETATTR)}) {
    SCOPED_TRACE(place);
    ASSERT_EQ(error_name(store(cut, pattern(5, kMiB))), "ok");
    make_all_cold();
    die_at(place, [&] { EXPECT_EQ(::truncate(cut.c_str(), 700'001), 0); });
    EXPECT_TRUE(read_file(cut) == pattern(5, kMiB).substr(0, 700'001));
    serve_for_a_moment();
    if (HasFailure()) return;
  }
  for (const std::string& place : {at_request("begun", FUSE_FSYNC), std::string("copied to the disk"),
                                   std::string("disk flushed"), std::string("catalog committed"),
                                   at_request("done", FUSE_FSYNC), at_request("answered", FUSE_FSYNC)}) {
    SCOPED_TRACE(place);
    const File file(synced, O_RDWR | O_CREAT);
    ASSERT_EQ(::pwrite(file.fd(), place.data(), place.size(), 0), static_cast<ssize_t>(place.size()));
    die_at(place, [&] { EXPECT_EQ(::fsync(file.fd()), 0); });
    EXPECT_EQ(read_at(file.fd(), 0, 100).substr(0, place.size()), place);
    serve_for_a_moment();
    if (HasFailure()) return;
  }
  check_all();
}

TEST_F(TakeoverTest, WhatWasUnlinkedWhileServedFromTheDiskIsReadOn) {
  start();
  const auto cold = fill_pool("cold", 3, kMiB + 777);
  make_all_cold();
  const int64_t used = stat("spill_used_bytes");
  {
    const std::vector<File> holders = hold_memory();
    File reader(cold[1], O_RDONLY);
    ASSERT_EQ(stat("served_from_disk"), 1);
    // When the server is killed at once, the catalog may still name the entry; later it does not.
    ASSERT_EQ(::unlink(cold[1].c_str()), 0);
    replace_server();
    const std::string content = pattern(1, kMiB + 777);
    EXPECT_TRUE(read_at(reader.fd(), 0, 2 * kMiB) == content);
    fill_pool("churn", 30, 65536);
    EXPECT_TRUE(becomes("dirty_entries", 0));
    replace_server();
    EXPECT_TRUE(read_at(reader.fd(), 0, 2 * kMiB) == content);
    EXPECT_FALSE(exists(cold[1]));
    for (int i = 0; i < 30; ++i) ::unlink(path("churn-" + std::to_string(i)).c_str());
    const pid_t serving = mount().serving_pid();
    reader.close();
    EXPECT_TRUE(becomes("open_entries", 31));
    EXPECT_EQ(mount().serving_pid(), serving) << "its close ended the server";
  }
  for (int i = 0; i < 31; ++i) ::unlink(path("held-" + std::to_string(i)).c_str());
  EXPECT_TRUE(becomes("spill_used_bytes", used - (17 << 16))) << "its space is free again";
  EXPECT_TRUE(read_file(cold[0]) == pattern(0, kMiB + 777));
  EXPECT_EQ(stat("checksum_errors"), 0);
}

// A serving pool is given a disk tier: the entries of the catalog come back, name by name.
class GivenTierTest : public TakeoverTest {
 protected:
  void store_entries() {
    start();
    add("e", 12);
    make_directory(path("d"));
    add("d/e", 6);
    ASSERT_EQ(::link(path("d/e-1").c_str(), path("second").c_str()), 0);
    ASSERT_EQ(::symlink("d/e-2", path("third").c_str()), 0);
    EXPECT_TRUE(becomes("dirty_entries", 0));
    stop();
  }
  void expect_all() {
    EXPECT_TRUE(becomes("disk_restoring", 0));  // a successor serves before all is back
    expect_whole();
    EXPECT_EQ(difference(1, read_file(path("second"))), "");
    EXPECT_EQ(difference(2, read_file(path("third"))), "");
    EXPECT_EQ(difference(7, read_file(path("own"))), "");
  }
};

TEST_F(GivenTierTest, IsFinishedByASuccessor) {
  store_entries();
  for (const char* places :
       {"disk tier named", "restored 1", "restored 9", "all restored", "restored 9\nrestored 3",
        "restored 5\nadopted the tree\nclaimed what the disk has\nrestored 4\nall restored"}) {
    SCOPED_TRACE(places);
    start_pool("p:size=32M");
    ASSERT_EQ(error_name(store(path("own"), pattern(7, kMiB))), "ok");
    make_directory(path("d"));
    die_at(places, [&] { set("spill", spill_file() + " 256M"); });
    expect_all();
    EXPECT_EQ(stat("entries"), 19);
    EXPECT_TRUE(becomes("dirty_entries", 0));
    // An entry that was removed stays away.
    ASSERT_EQ(::unlink(path("own").c_str()), 0);
    replace_server();
    EXPECT_FALSE(exists(path("own")));
    ASSERT_EQ(error_name(store(path("own"), pattern(7, kMiB))), "ok");
    EXPECT_TRUE(becomes("dirty_entries", 0));
    EXPECT_EQ(sync_directory(), 0);
    if (HasFailure()) return;
    kill();
    start();
    expect_all();
    ASSERT_EQ(::unlink(path("own").c_str()), 0);
    stop();
    if (HasFailure()) return;
  }
  start();
  expect_whole();
}

TEST_F(GivenTierTest, AtTheFirstStartToo) {
  store_entries();
  arm("restored 9");
  EXPECT_THROW(start(), MountError);
  start();
  expect_whole();
}

}  // namespace
}  // namespace kvcachefs::test
