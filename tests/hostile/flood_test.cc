// What one user can bring about by calls as fast as possible: how much the daemon logs or keeps of refused
// calls, and what directories that have just been made push out.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "tests/support/faults.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::test {
namespace {

constexpr uid_t kNobody = 65534;
constexpr int kRefusals = 3000;
constexpr size_t kMostLogBytes = 8192;

TEST(Flood, RefusalsOfOneUserAreNotAllWrittenDown) {
  KVCACHEFS_NEED_DAEMON();
  Mount mount({.pools = {"p:size=64M,pinned_max=0%"}});
  const size_t log_before = mount.log().size();
  const int refused = as_user(kNobody, kNobody, [&] {
    const std::string name = mount.path() + "/entry";
    write_file(name, "content");
    for (int i = 0; i < kRefusals; ++i)
      if (set_xattr(name, "user.kvcachefs.pinned", "1") != ENOSPC) return 1;
    return 0;
  });
  EXPECT_EQ(refused, 0);
  EXPECT_NE(mount.log().find("no room to pin", log_before), std::string::npos) << "not even the first";
  EXPECT_LT(mount.log().size() - log_before, kMostLogBytes);
  // Messages about the administrator's own calls are logged nevertheless.
  const size_t log_of_root = mount.log().size();
  EXPECT_EQ(error_name(write_once(mount.control("evict"), "some nonsense")), "EINVAL");
  EXPECT_TRUE(
      eventually([&] { return mount.log().find("some nonsense", log_of_root) != std::string::npos; }));
}

// A pool of 5,734 inodes. A directory rests for a minute, and for a second if inodes are very short.
class DirectoryFlood : public FaultedTierTest {
 protected:
  static constexpr int kInodes = 5734;
  static constexpr size_t kEntryBytes = 1024;
  static constexpr int kAnHourMs = 3'600'000;  // for a minute: then a second is a minute

  void SetUp() override {
    FaultedTierTest::SetUp();
    if (!IsSkipped()) start_pool("p:size=4M");
  }
  int make(const std::string& name) { return error_of(::mkdir(path(name).c_str(), 0755)); }
  // Stores a block as vLLM does, in two directories of its own.
  int store_block(int block) {
    const std::string above = "model_r0/" + std::to_string(block);
    if (const int error = make(above); error != 0) return error;
    if (const int error = make(above + "/g0"); error != 0) return error;
    return store(path(above + "/g0/hash.bin"), pattern(block, kEntryBytes));
  }
};

TEST_F(DirectoryFlood, YoungDirectoriesTakeNoEntrysPlace) {
  ASSERT_EQ(error_name(make("model_r0")), "ok");
  for (int block = 0; block < kInodes; ++block)
    ASSERT_EQ(error_name(store_block(block)), "ok") << block << ": " << stat("entries") << " entries\n"
                                                    << mount().log();
  EXPECT_GT(stat("entries"), 500);
  EXPECT_GT(stat("directories_reclaimed"), 1000);
}

// No directory is empty before an entry leaves: those that have just been made are no empty ones for long.
TEST_F(DirectoryFlood, EntriesDeepInDirectoriesOfTheirOwnLeaveForOthers) {
  constexpr int kDeep = 5, kBlocks = kInodes / 3;  // twice as many as have inodes
  for (int block = 0; block < kBlocks; ++block) {
    std::string name = "b" + std::to_string(block);
    for (int i = 0; i < kDeep; ++i, name += "/d")
      ASSERT_EQ(error_name(make(name)), "ok") << block << " " << i << "\n" << mount().log();
    ASSERT_EQ(error_name(store(path(name), pattern(block, kEntryBytes))), "ok") << block << "\n"
                                                                                << mount().log();
  }
  EXPECT_GT(stat("entries"), 200);
}

// Empty directories hold the inodes: entries leave for new entries, and not for more directories.
TEST_F(DirectoryFlood, MkdirEvictsNothing) {
  constexpr int kEntries = 200;
  arm("failing directory rest " + std::to_string(kAnHourMs) + "\n");
  ASSERT_EQ(error_name(make("kept")), "ok");
  const auto store_all = [&](const std::string& prefix) {
    for (int i = 0; i < kEntries; ++i)
      ASSERT_EQ(error_name(store(path("kept/" + prefix + std::to_string(i)), pattern(i, kEntryBytes))), "ok")
          << prefix << i;
  };
  store_all("old");
  int error = 0;
  for (int i = 0; error == 0 && i < kInodes; ++i) error = make("d" + std::to_string(i));
  EXPECT_EQ(error_name(error), "ENOSPC");
  EXPECT_EQ(stat("entries"), kEntries);
  store_all("new");
  EXPECT_EQ(error_name(make("more")), "ENOSPC");
  EXPECT_GE(stat("entries"), kEntries);
}

TEST_F(DirectoryFlood, WhatAClientHasJustMadeIsThereWhenItIsUsed) {
  arm("failing directory rest 180000\n");  // three seconds where inodes are very short
  ASSERT_EQ(error_name(make("model_r0")), "ok");
  std::atomic<bool> ends = false;
  std::thread hostile([&] {
    for (int i = 0; !ends; ++i) (void)make("h" + std::to_string(i));
  });
  int stored = 0;
  for (int block = 0; stat("directories_reclaimed") < 2 * kInodes && !HasFailure(); ++block) {
    const int error = store_block(block);
    stored += error == 0 ? 1 : 0;
    EXPECT_TRUE(error == 0 || error == ENOSPC) << block << ": " << error_name(error);
  }
  ends = true;
  hostile.join();
  EXPECT_GT(stored, 0);
}

}  // namespace
}  // namespace kvcachefs::test
