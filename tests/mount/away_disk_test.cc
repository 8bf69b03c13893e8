// A pool that is taken over while its disk cannot be had. It is served from memory, loses nothing that the
// disk has, and has all of it again as soon as the disk is back. Other pools are not disturbed.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/faults.h"
#include "tests/support/files.h"
#include "tests/support/program.h"
#include "tests/support/programs.h"

namespace kvcachefs::test {
namespace {

constexpr size_t kBytes = 256 << 10;

class AwayDiskTest : public FaultedTierTest {
 protected:
  // start_with_entries() makes entries cold-0.. and clean-0.. in a pool that spills to a file.
  void start_with_entries(const std::string& more = "") {
    start({.more = more});
    store_entries();
  }
  void store_entries() {
    fill_pool("cold", 8, kBytes);
    make_all_cold();
    fill_pool("clean", 4, kBytes);
    EXPECT_TRUE(becomes("dirty_entries", 0));
    EXPECT_EQ(error_name(sync_directory()), "ok");
  }
  std::string named(const std::string& name, int i) { return path(name + "-" + std::to_string(i)); }
  void expect_in_memory(const std::string& name, int count) {
    for (int i = 0; i < count; ++i) EXPECT_EQ(difference(i, read_file(named(name, i))), "") << name << i;
  }
  // Cold entries have their names, but an open or truncation of them is EIO.
  void expect_away(int count) {
    EXPECT_EQ(stat("disk_away"), 1);
    EXPECT_EQ(stat("cold_entries"), count);
    for (int i = 0; i < count; ++i) {
      EXPECT_TRUE(exists(named("cold", i)));
      EXPECT_EQ(error_name(load(named("cold", i))), "EIO");
      EXPECT_EQ(error_of(::truncate(named("cold", i).c_str(), 10)), EIO);
    }
  }
  void expect_back() {
    EXPECT_TRUE(becomes("disk_away", 0));
    expect_in_memory("cold", 8);
    expect_in_memory("clean", 4);
    EXPECT_EQ(stat("discards") + stat("checksum_errors") + stat("promote_errors"), 0);
  }
  void expect_sound_disk() {
    EXPECT_TRUE(becomes("dirty_entries", 0));
    stop_and_check();
  }
  std::string hidden() const { return spill_file() + ".away"; }
  void hide() { ASSERT_EQ(::rename(spill_file().c_str(), hidden().c_str()), 0); }
  void show() { ASSERT_EQ(::rename(hidden().c_str(), spill_file().c_str()), 0); }
};

TEST_F(AwayDiskTest, AFileThatIsGoneIsMissedByColdEntriesAlone) {
  start_with_entries();
  hide();
  kill_server();
  expect_in_memory("clean", 4);
  EXPECT_EQ(error_name(store(path("new"), pattern(7, kBytes))), "ok");
  EXPECT_EQ(difference(7, read_file(path("new"))), "");
  // The first open of a cold entry waits a little for the disk.
  const double waited = seconds_of([&] { EXPECT_EQ(error_name(load(named("cold", 0))), "EIO"); });
  EXPECT_LT(waited, 30);
  EXPECT_LT(seconds_of([&] { expect_away(8); }), 20);
  EXPECT_EQ(error_name(sync_directory()), "EIO") << "not durable, and said to be";
  // Entries that leave memory meanwhile are none that the disk has or is to have.
  order(mount(), "100%");
  expect_in_memory("clean", 4);
  EXPECT_EQ(stat("discards"), 0);
  EXPECT_NE(error_name(write_once(mount().control("spill"), "/nowhere/else")), "ok");
  EXPECT_NE(mount().log().find("without its disk"), std::string::npos);

  // Names and contents can change as always.
  ASSERT_EQ(::unlink(named("cold", 1).c_str()), 0);
  ASSERT_EQ(::rename(named("cold", 2).c_str(), path("moved").c_str()), 0);
  ASSERT_EQ(::rename(path("new").c_str(), named("cold", 3).c_str()), 0);
  ASSERT_EQ(error_name(store(named("clean", 1), pattern(11, kBytes))), "ok");
  {
    const File part(named("clean", 2), O_WRONLY);
    ASSERT_EQ(::pwrite(part.fd(), "changed", 7, 100), 7);
  }
  std::string changed = pattern(2, kBytes);
  changed.replace(100, 7, "changed");
  ASSERT_EQ(::truncate(named("cold", 4).c_str(), 0), 0);
  ASSERT_EQ(::link(named("cold", 5).c_str(), path("linked").c_str()), 0);
  make_directory(path("directory"));
  ASSERT_EQ(::rename(named("cold", 6).c_str(), path("directory/moved").c_str()), 0);
  kill_server();
  EXPECT_EQ(stat("disk_away"), 1);
  show();
  EXPECT_TRUE(becomes("disk_away", 0));
  const auto expect_changes = [&] {
    EXPECT_EQ(difference(0, read_file(named("cold", 0))), "");
    EXPECT_FALSE(exists(named("cold", 1)));
    EXPECT_FALSE(exists(named("cold", 2)));
    EXPECT_EQ(difference(2, read_file(path("moved"))), "");
    EXPECT_EQ(difference(7, read_file(named("cold", 3))), "");
    EXPECT_EQ(read_file(named("cold", 4)), "");
    EXPECT_EQ(difference(5, read_file(named("cold", 5))), "");
    EXPECT_EQ(difference(5, read_file(path("linked"))), "");
    EXPECT_EQ(difference(6, read_file(path("directory/moved"))), "");
    EXPECT_EQ(difference(7, read_file(named("cold", 7))), "");
    EXPECT_EQ(difference(11, read_file(named("clean", 1))), "");
    EXPECT_TRUE(read_file(named("clean", 2)) == changed);
    EXPECT_EQ(stat("checksum_errors") + stat("discards"), 0);
  };
  expect_changes();
  expect_sound_disk();
  start();
  expect_changes();
}

TEST_F(AwayDiskTest, AnOpenWaitsForALockThatIsHeldStill) {
  start_with_entries();
  for (const std::string& held : {spill_file(), spill_file() + ".catalog/lock"}) {
    SCOPED_TRACE(held);
    ASSERT_TRUE(exists(held));
    make_all_cold();
    arm("hang taken over\n");
    kill_server();
    // The test takes the lock before the next serving process does.
    File lock(held, O_RDWR);
    ASSERT_TRUE(fired("hang taken over"));
    ASSERT_TRUE(eventually([&] { return ::flock(lock.fd(), LOCK_EX | LOCK_NB) == 0; }));
    ASSERT_EQ(::kill(mount().serving_pid(), SIGKILL), 0);
    EXPECT_TRUE(becomes("disk_away", 1));
    EXPECT_NE(mount().log().find("in use by another"), std::string::npos);
    ASSERT_TRUE(exists(named("cold", 3)));
    // The opener waits for an answer until a serving process has the disk again. So does an fsync.
    const bool syncs = held != spill_file();
    const File fresh(path("fresh-" + std::to_string(syncs)), O_CREAT | O_WRONLY);
    ASSERT_EQ(::write(fresh.fd(), "x", 1), 1);
    const pid_t opener = ::fork();
    if (opener == 0) {
      if (syncs) ::_exit(::fsync(fresh.fd()) == 0 ? 0 : errno);
      const int fd = ::open(named("cold", 3).c_str(), O_RDONLY | O_CLOEXEC);
      ::_exit(fd >= 0 ? 0 : errno);
    }
    const std::string in_open = "/proc/" + std::to_string(opener) + "/wchan";
    ASSERT_TRUE(eventually([&] {
      return read_file(in_open).find("fuse") != std::string::npos ||
             read_file(in_open).find("request_wait_answer") != std::string::npos;
    }));
    ASSERT_EQ(::flock(lock.fd(), LOCK_UN), 0);  // the opener has a copy of the descriptor
    int status = 0;
    ASSERT_EQ(::waitpid(opener, &status, 0), opener);
    EXPECT_EQ(error_name(WEXITSTATUS(status)), "ok");
    expect_back();
  }
  expect_sound_disk();
}

TEST_F(AwayDiskTest, ADeviceThatFails) {
  KVCACHEFS_SKIP_IF(LoopDevice::available() ? std::string() : std::string("loop devices"));
  constexpr uint64_t kDeviceBytes = 64 * kMiB;
  const std::string image = disk().make_file("image", kDeviceBytes);
  const LoopDevice device(image);
  start_pool("p:size=32M,spill=" + device.path() + ",catalog=" + (disk() / "catalog"));
  store_entries();
  std::filesystem::copy_file(image, image + ".copy");
  ASSERT_EQ(::truncate(image.c_str(), 0), 0);  // reads are EIO from now on
  kill_server();
  EXPECT_TRUE(becomes("disk_away", 1));
  expect_in_memory("clean", 4);
  EXPECT_EQ(stat("cold_entries"), 8);
  {
    const File from(image + ".copy", O_RDONLY);
    const File to(image, O_WRONLY);
    std::string bytes = read_at(from.fd(), 0, kDeviceBytes);
    // The superblock is written last, because with it the device is whole.
    ASSERT_EQ(::ftruncate(to.fd(), kDeviceBytes), 0);
    ASSERT_EQ(::pwrite(to.fd(), bytes.data() + kMiB, bytes.size() - kMiB, kMiB),
              static_cast<ssize_t>(bytes.size() - kMiB));
    ASSERT_EQ(::pwrite(to.fd(), bytes.data(), kMiB, 0), static_cast<ssize_t>(kMiB));
  }
  expect_back();
  stop();
}

TEST_F(AwayDiskTest, ACatalogThatIsGone) {
  const std::string catalog = disk() / "state";
  start_with_entries("catalog=" + catalog);
  ASSERT_EQ(::rename(catalog.c_str(), (catalog + ".away").c_str()), 0);
  kill_server();
  EXPECT_TRUE(becomes("disk_away", 1));
  expect_in_memory("clean", 4);
  EXPECT_FALSE(exists(catalog)) << "another was made, which would know of nothing";
  ASSERT_EQ(::rename((catalog + ".away").c_str(), catalog.c_str()), 0);
  expect_back();
  stop();
}

TEST_F(AwayDiskTest, AnotherFileInItsPlaceIsNotIt) {
  start_with_entries();
  hide();
  const std::string other = disk().make_file("spill", 4 * kMiB);
  kill_server();
  EXPECT_TRUE(becomes("disk_away", 1));
  ASSERT_EQ(::truncate(hidden().c_str(), 128 * kMiB), 0) << "one that was cut is not it, either";
  ASSERT_EQ(::rename(hidden().c_str(), other.c_str()), 0);
  EXPECT_TRUE(eventually([&] { return mount().log().find("was made with 256") != std::string::npos; }))
      << mount().log();
  EXPECT_EQ(stat("disk_away"), 1);
  expect_in_memory("clean", 4);
  EXPECT_EQ(stat("discards"), 0);
  stop();
}

TEST_F(AwayDiskTest, DeathsWhileItIsAway) {
  start_with_entries();
  hide();
  for (int i = 0; i < 12; ++i) {
    kill_server();
    EXPECT_EQ(difference(i % 4, read_file(named("clean", i % 4))), "");
    ASSERT_EQ(error_name(store(named("new", i), pattern(i, kBytes))), "ok");
  }
  EXPECT_EQ(stat("disk_away"), 1);
  EXPECT_EQ(stat("cold_entries"), 8);
  EXPECT_EQ(stat("clean_entries"), 4);
  show();
  expect_back();
  expect_in_memory("new", 12);
  expect_sound_disk();
}

TEST_F(AwayDiskTest, DeathsAtEachPlace) {
  start_with_entries();
  for (const char* place :
       {"taken over", "adopted the tree", "without its disk", "pools adopted", "resumed"}) {
    SCOPED_TRACE(place);
    if (!exists(hidden())) hide();
    arm(place);
    kill_server();
    EXPECT_TRUE(fired(place));
    EXPECT_EQ(stat("disk_away"), 1);
    expect_in_memory("clean", 4);
  }
  for (const char* places : {"handing over", "handing over\nclaimed what the disk has",
                             "handing over\nmade up for the catalog\npools adopted"}) {
    SCOPED_TRACE(places);
    if (!exists(hidden())) {
      hide();
      kill_server();
    }
    EXPECT_TRUE(becomes("disk_away", 1));
    ASSERT_EQ(::rename(named("cold", 0).c_str(), path("other").c_str()), 0);
    arm(places);
    show();
    EXPECT_TRUE(fired(places));
    EXPECT_TRUE(becomes("disk_away", 0));
    ASSERT_EQ(::rename(path("other").c_str(), named("cold", 0).c_str()), 0);
    expect_back();
    if (HasFailure()) return;
    make_all_cold();
    EXPECT_EQ(check_whole({named("clean", 0), named("clean", 1), named("clean", 2), named("clean", 3)}), 4);
  }
  expect_sound_disk();
}

TEST_F(AwayDiskTest, APowerCutLosesNothingThatWasCommitted) {
  start_with_entries();
  hide();
  kill_server();
  EXPECT_TRUE(becomes("disk_away", 1));
  ASSERT_EQ(error_name(store(named("clean", 0), pattern(11, kBytes))), "ok");
  ASSERT_EQ(::rename(named("cold", 2).c_str(), path("moved").c_str()), 0);
  ASSERT_EQ(error_name(store(path("new"), pattern(12, kBytes))), "ok");
  kill();  // kills the supervisor as well
  show();
  start();
  EXPECT_EQ(stat("disk_away"), 0);
  expect_in_memory("cold", 8);
  expect_in_memory("clean", 4);
  EXPECT_FALSE(exists(path("new")));
  stop();
}

TEST_F(AwayDiskTest, WithoutDurabilityNewEntriesMakeRoomForNewer) {
  start({.more = "durability=none"});
  fill_pool("e", 8, kBytes);
  make_all_cold();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(difference(i, read_file(named("e", i))), "");
  hide();
  kill_server();
  EXPECT_TRUE(becomes("disk_away", 1));
  const auto names = fill_pool("new", 48);
  EXPECT_GT(stat("discards"), 0);
  EXPECT_EQ(stat("cold_entries"), 4);
  EXPECT_EQ(stat("clean_entries"), 4);
  EXPECT_EQ(check_whole(names), static_cast<int>(survivors(names).size()));
  show();
  EXPECT_TRUE(becomes("disk_away", 0));
  expect_in_memory("e", 8);
  stop();
}

TEST_F(AwayDiskTest, WithDurabilityAFullPoolTakesNoMore) {
  start_with_entries();
  hide();
  kill_server();
  EXPECT_TRUE(becomes("disk_away", 1));
  int stored = 0;
  while (stored < 64 && store(named("new", stored), pattern(stored, kMiB)) == 0) ++stored;
  EXPECT_GE(stored, 20);
  EXPECT_LT(stored, 32);
  (void)::unlink(named("new", stored).c_str());
  EXPECT_EQ(stat("discards"), 0);
  expect_in_memory("new", stored);
  expect_in_memory("clean", 4);
  show();
  expect_back();
  expect_in_memory("new", stored);
  stop();
}

TEST_F(AwayDiskTest, AFirstStartRefusesWhatItCannotHave) {
  start_with_entries();
  stop();
  hide();
  const std::string said = refusal({"p:size=32M,spill_size=256M,spill=" + spill_file()});
  EXPECT_NE(said.find("does not exist; the pool's catalog expects"), std::string::npos) << said;
  show();
  start();
  expect_in_memory("cold", 8);
}

TEST_F(AwayDiskTest, AnUpgradeSeesItBefore) {
  Programs programs;
  start_with_entries();
  const auto upgrade = [&] { return run({"kvcachefs", "--mount", mount().root(), "upgrade"}); };
  const pid_t serving = mount().serving_pid();
  hide();
  const Outcome refused = upgrade();
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.error.find("the next process would be without a disk"), std::string::npos)
      << refused.error;
  EXPECT_EQ(mount().serving_pid(), serving);
  expect_in_memory("cold", 8);
  make_all_cold();
  // A disk that is away already does not refuse the upgrade, because the new program may be able to find the
  // disk.
  kill_server();
  EXPECT_TRUE(becomes("disk_away", 1));
  const Outcome done = upgrade();
  EXPECT_EQ(done.exit_code, 0) << done.error;
  EXPECT_EQ(stat("disk_away"), 1);
  show();
  expect_back();
  EXPECT_EQ(upgrade().exit_code, 0);
  expect_back();
  stop();
}

TEST_F(AwayDiskTest, OtherPoolsAreNotDisturbed) {
  const std::string near = disk() / "near";
  Mount both({.pools = {"p:size=32M,spill_size=64M,spill=" + spill_file(),
                        "q:size=32M,spill_size=64M,spill=" + near, "r:size=16M"}});
  for (const char* pool : {"p", "q", "r"}) (void)fill(both.path(pool), "e", 8, kBytes);
  for (const char* pool : {"p", "q"})
    ASSERT_TRUE(eventually([&] {
      (void)write_once(both.control("evict", pool), "1000000 entries");
      return both.stat_value("cold_entries", pool) == 8;
    }));
  hide();
  ASSERT_EQ(::kill(both.serving_pid(), SIGKILL), 0);
  // The other pools answer at once: no pool waits for another pool's disk.
  EXPECT_LT(seconds_of([&] {
              for (const char* pool : {"q", "r"})
                for (int i = 0; i < 8; ++i)
                  EXPECT_EQ(difference(i, read_file(both.path(pool) + "/e-" + std::to_string(i))), "")
                      << pool;
            }),
            20);
  EXPECT_EQ(both.stat_value("disk_away", "p"), 1);
  EXPECT_EQ(both.stat_value("disk_away", "q"), 0);
  EXPECT_EQ(both.stat_value("disk_away", "r"), 0);
  show();
  EXPECT_TRUE(eventually([&] { return both.stat_value("disk_away", "p") == 0; }));
  for (int i = 0; i < 8; ++i)
    EXPECT_EQ(difference(i, read_file(both.path("p") + "/e-" + std::to_string(i))), "");
  if (HasFailure()) report_daemon_log(both);
  both.stop();
}

}  // namespace
}  // namespace kvcachefs::test
