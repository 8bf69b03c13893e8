// The commands of the kvcachefs tool for the disk tier.
#include <gtest/gtest.h>

#include <string>

#include "daemon/cli/progress.h"
#include "tests/unit/daemon/cli_fixture.h"

namespace kvcachefs::cli_disk_test {

TEST_F(CliTest, ShowsDisks) {
  mount_.add_pool("a");
  mount_.add_pool("b");
  mount_.write("a/.pool/stats", mount_.read("a/.pool/stats") +
                                    "spill_size_bytes 214748364800\nspill_used_bytes 53687091200\n"
                                    "spill_largest_free_run_bytes 1073741824\ndirty_entries 3\n"
                                    "dirty_bytes 6291456\nclean_entries 4\nclean_bytes 8388608\n"
                                    "cold_entries 5\ncold_bytes 10485760\nspilled_bytes 104857600\n");
  mount_.write("a/.pool/spill", "/dev/nvme0n1 200G\n");
  mount_.write("a/.pool/durability", "writeback\n");
  const std::string all = run({"status"}).out;
  EXPECT_NE(all.find("DISCARDS  DISK  ON DISK  DISK%  DIRTY  COLD\n"), std::string::npos) << all;
  EXPECT_NE(all.find("     412  200G      50G    25%     6M   10M\n"), std::string::npos) << all;
  EXPECT_NE(all.find("     412     0        0      -      0     0\n"), std::string::npos) << all;
  const std::string one = run({"status", "a"}).out;
  for (const char* line :
       {"disk          /dev/nvme0n1 200G\n", "disk used     50G (25%), largest free run 1G\n",
        "durability    writeback\n", "copies        3 dirty (6M), 4 clean (8M), 5 cold (10M)\n",
        "spills        0 (100M), 0 errors, 0 not made\n"}) {
    EXPECT_NE(one.find(line), std::string::npos) << one << line;
  }
  const std::string rates = run({"top", "--once"}).out;
  EXPECT_NE(rates.find("DISCARDS/s  DISK%  SPILLED/s  PROMOTED/s\n"), std::string::npos) << rates;
  EXPECT_NE(rates.find("  25%         1M           0\n"), std::string::npos) << rates;
}

TEST_F(CliTest, WritesADiskTierAsOneOrder) {
  mount_.add_pool("a");
  for (const char* file : {"durability", "admission", "auto_prefetch"}) {
    mount_.write("a/.pool/" + std::string(file), "");
  }
  Outcome result = run({"set", "a", "durability=sync", "spill_size=8G", "spill=/data/a b", "prefetch=off",
                        "catalog=/c", "admission=tinylfu"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(mount_.read("a/.pool/spill"), "/data/a b 8G\ncatalog=/c");
  EXPECT_EQ(mount_.read("a/.pool/durability"), "sync");
  EXPECT_EQ(mount_.read("a/.pool/admission"), "tinylfu");
  EXPECT_EQ(mount_.read("a/.pool/auto_prefetch"), "off");
  // A new spill_size keeps the path of the spill setting.
  mount_.write("a/.pool/spill", "/data/a b 8G");
  EXPECT_EQ(run({"set", "a", "spill_size=9G"}).exit_code, 0);
  EXPECT_EQ(mount_.read("a/.pool/spill"), "/data/a b 9G");
  mount_.write("a/.pool/spill", "none\n");
  result = run({"set", "a", "spill_size=9G"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.error.find("spill_size=9G needs a disk tier"), std::string::npos) << result.error;
  EXPECT_EQ(mount_.read("a/.pool/spill"), "none\n");
}

// Because the fake mount returns what was written to it, the test plays the daemon's part between two reads.
class CliPrefetchTest : public CliTest {
 protected:
  // The order overwrites the beginning of this line and leaves the rest of the file.
  const std::string kUnderTheOrder = std::string(100, '-') + "\n";

  CliPrefetchTest() { mount_.add_pool("a"); }
  void progress(int queued, int done, int failed, int dropped, int bytes) {
    mount_.write("a/.pool/prefetch", kUnderTheOrder + "queued " + std::to_string(queued) + "\ndone " +
                                         std::to_string(done) + "\nfailed " + std::to_string(failed) +
                                         "\ndropped " + std::to_string(dropped) + "\nbytes " +
                                         std::to_string(bytes) + "\n");
  }
};

TEST_F(CliPrefetchTest, OrdersAndGoesOn) {
  mount_.write("a/.pool/prefetch", "");
  Outcome result =
      run({"prefetch", "a", "--no-wait", "--priority", "7", "x/y", (mount_.root() / "a/z").native()});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(result.out, "ordered 2 entries\n");
  EXPECT_EQ(mount_.read("a/.pool/prefetch"), "x/y\t7\nz\t7\n");
  mount_.write("a/.pool/prefetch", "");
  input_ = "one\ntwo 5\n\nthree\twords\t-1\n";
  result = run({"prefetch", "a", "-", "--no-wait"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(mount_.read("a/.pool/prefetch"), "one\t0\ntwo\t5\nthree\\twords\t-1\n");
}

TEST_F(CliPrefetchTest, WaitsUntilAllAreThere) {
  views_ = 100;
  int looks = 0;
  on_wait_ = [&] {
    if (++looks == 1) progress(2, 100, 10, 1, 4096);
    if (looks == 2) progress(1, 101, 10, 1, 1 << 20);
    if (looks == 3) progress(0, 102, 10, 1, (2 << 20) + 4096);
  };
  progress(5, 100, 10, 1, 4096);
  terminal_ = true;
  const Outcome result = run({"prefetch", "a", "x", "y"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(looks, 3);
  EXPECT_NE(result.out.find("[###############...............]  50% 1 of 2 entries"), std::string::npos)
      << result.out;
  EXPECT_TRUE(result.out.ends_with("\r\033[Kprefetched 2 entries, 2M read from disk\n")) << result.out;
}

TEST_F(CliPrefetchTest, TellsWhatDidNotCome) {
  progress(3, 0, 0, 0, 0);
  views_ = 100;
  on_wait_ = [&] { progress(0, 1, 1, 1, 5); };
  Outcome result = run({"prefetch", "a", "x", "y", "z"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "prefetched 1 entries, 5 read from disk\n");
  EXPECT_EQ(result.error, "kvcachefs: 1 entries are not there or could not be read, 1 found no room\n");
  result = run({"prefetch", "a", "/elsewhere/x"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.error, "kvcachefs: '/elsewhere/x' is not a name in the pool\n");
  input_ = "good\n../bad\n";
  result = run({"prefetch", "a", "-"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.error, "kvcachefs: line 2: '../bad' is not a name in the pool\n");
}

TEST_F(CliTest, ScrubsAPool) {
  mount_.add_pool("a");
  const std::string start = "state running\nentries_done 1\nentries_total 4\nbytes 1048576\ndamaged 0\n";
  // The order overwrites only the beginning of the file, which then no longer says that a scrub runs.
  mount_.write("a/.pool/scrub", start);
  Outcome result = run({"scrub", "a", "--stop"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_TRUE(mount_.read("a/.pool/scrub").starts_with("stop"));
  mount_.write("a/.pool/scrub", "start 50M\n" + start);
  views_ = 100;
  int looks = 0;
  on_wait_ = [&] {
    mount_.write("a/.pool/scrub", ++looks == 1 ? start
                                               : "state idle\nentries_done 4\nentries_total 4\n"
                                                 "bytes 4194304\ndamaged 2\n");
  };
  terminal_ = true;
  result = run({"scrub", "a", "--rate", "50M"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(looks, 2);
  EXPECT_NE(result.out.find("]  25% 1 of 4 entries 1M"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("\033[Kscrubbed 4 of 4 entries, 4M at "), std::string::npos) << result.out;
  EXPECT_EQ(result.error, "kvcachefs: 2 entries were damaged and are discarded\n");
}

TEST(Progress, IsALine) {
  EXPECT_EQ(progress_line(0, 0, 0, 0), "[..............................]   0% 0 of 0 entries 0");
  EXPECT_EQ(progress_line(5, 10, 1 << 20, 2),
            "[###############...............]  50% 5 of 10 entries 1M 512K/s 2s left");
  EXPECT_EQ(byte_progress_line(1 << 20, 4 << 20, 1),
            "[#######.......................]  25% 1M of 4M 1M/s 3s left");
  EXPECT_EQ(progress_line(12, 10, 1 << 20, 0.1), "[##############################] 100% 10 of 10 entries 1M");
}

}  // namespace kvcachefs::cli_disk_test
