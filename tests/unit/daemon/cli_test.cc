#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "daemon/cli/arguments.h"
#include "daemon/cli/table.h"
#include "daemon/cli/views.h"
#include "tests/unit/daemon/cli_fixture.h"

namespace kvcachefs::cli_test {

// A process of a supervisor's name, which SIGHUP does nothing to.
class Supervisor {
 public:
  Supervisor() {
    int ends[2];
    if (::pipe(ends) != 0 || (pid_ = ::fork()) < 0) std::abort();
    if (pid_ == 0) {
      ::prctl(PR_SET_NAME, "kvcachefs-super");
      ::signal(SIGHUP, SIG_IGN);
      ::close(ends[1]);
      for (;;) ::pause();
    }
    ::close(ends[1]);
    char none;
    if (::read(ends[0], &none, 1) != 0) std::abort();  // the end, when the child has closed its own
    ::close(ends[0]);
  }
  ~Supervisor() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;
  std::string pid() const { return std::to_string(pid_); }
  // It stays a zombie.
  void end() const {
    ::kill(pid_, SIGKILL);
    siginfo_t ended{};
    if (::waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOWAIT) != 0) std::abort();
  }

 private:
  pid_t pid_ = 0;
};

TEST_F(CliTest, ShowsAllPools) {
  mount_.add_pool("llama");
  mount_.add_pool("b");
  mount_.write("b/.pool/stats", "size_bytes 0\npolicy lfu\n");
  const Outcome result = run({"status"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(
      result.out,
      "kvcachefs 0.1.0 at " + mount_.root().native() +
          ": passthrough over dev_fuse, 4 threads, up 1m 40s\n"
          "16G in 2 pools, 64G of memory\n"
          "\n"
          "POOL   POLICY  SIZE   USED  USE%  EVICTABLE  PINNED  ENTRIES  OPEN   HITS  MISSES  DISCARDS\n"
          "b      lfu        0      0     -          0       0        0     0      0       0         0\n"
          "llama  lru      16G  12.3G   77%        11G    512M     6120     3  10234     121       412\n");
}

TEST_F(CliTest, ShowsOnePool) {
  mount_.add_pool("llama");
  const Outcome result = run({"status", "llama"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(result.out,
            "pool          llama\n"
            "policy        lru\n"
            "watermarks    95:98\n"
            "size          16G\n"
            "used          12.3G (77%)\n"
            "free          3.7G\n"
            "evictable     11G\n"
            "pinned        512M of at most 8G\n"
            "users         2, 1 over a share of 4G\n"
            "              1000: 2M, 0 on disk, over\n"
            "              7: 4K, 1K on disk\n"
            "huge pages    12G\n"
            "entries       6120 of at most 10000, 3 open\n"
            "directories   12\n"
            "entry size    auto 2M\n"
            "opens         10234 hits, 121 misses (99% hits)\n"
            "changes       6500 created, 380 removed\n"
            "evictions     412, 412 discarded (24G): 0 expired, 0 with their group\n"
            "reservations  6500, 12 waited 34 ms in all, 0 failed, 0 times ENOSPC\n"
            "I/O           passthrough\n");
}

TEST_F(CliTest, PrintsTheDaemonsJson) {
  mount_.add_pool("llama");
  EXPECT_EQ(run({"status", "--json"}).out, "{\"version\":\"0.1.0\"}\n");
  EXPECT_EQ(run({"status", "llama", "--json"}).out, "{\"policy\":\"lru\"}\n");
}

TEST_F(CliTest, WritesControlFiles) {
  mount_.add_pool("a");
  for (const char* file : {"size", "policy", "watermarks", "entry_size", "pinned_max"}) {
    mount_.write("a/.pool/" + std::string(file), "");
  }
  const Outcome result =
      run({"set", "a", "size=8G", "policy=lfu", "watermarks=80:90", "entry_size=2M", "pinned_max=10%"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(mount_.read("a/.pool/size"), "8G");
  EXPECT_EQ(mount_.read("a/.pool/policy"), "lfu");
  EXPECT_EQ(mount_.read("a/.pool/watermarks"), "80:90");
  EXPECT_EQ(mount_.read("a/.pool/entry_size"), "2M");
  EXPECT_EQ(mount_.read("a/.pool/pinned_max"), "10%");
}

TEST_F(CliTest, WritesTheAdministratorsFilesWhereTheyAre) {
  mount_.add_pool("a");
  std::filesystem::create_directories(mount_.root() / ".kvcachefs/pools/a");
  for (const char* file : {"size", "size_max", "pinned_max", "spill"}) {
    mount_.write(".kvcachefs/pools/a/" + std::string(file), "");
  }
  const Outcome result = run(
      {"set", "a", "size_max=32G", "size=8G", "policy=lfu", "pinned_max=10%", "spill=/s", "spill_size=1G"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(mount_.read(".kvcachefs/pools/a/size"), "8G");
  EXPECT_EQ(mount_.read(".kvcachefs/pools/a/size_max"), "32G");
  EXPECT_EQ(mount_.read(".kvcachefs/pools/a/pinned_max"), "10%");
  EXPECT_EQ(mount_.read(".kvcachefs/pools/a/spill"), "/s 1G");
  EXPECT_EQ(mount_.read("a/.pool/size"), "16G\n");
  EXPECT_EQ(mount_.read("a/.pool/policy").substr(0, 3), "lfu");
}

TEST_F(CliTest, OrdersEvictions) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--percent", "25"}, "25%"}, {{"--percent", "25%"}, "25%"},  {{"--bytes", "10G"}, "10485760K"},
      {{"--bytes", "1"}, "1K"},     {{"--bytes", "1.5M"}, "1536K"}, {{"--entries", "1000"}, "1000 entries"},
  };
  for (const auto& [amount, order] : cases) {
    mount_.add_pool("a");
    std::vector<std::string> arguments{"evict", "a"};
    arguments.insert(arguments.end(), amount.begin(), amount.end());
    const Outcome result = run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.error;
    EXPECT_EQ(result.out, std::string(order) + "\n");  // the fake returns what was written
  }
}

TEST_F(CliTest, ListsPoliciesWithoutAMount) {
  const Outcome result = run_alone({"policies"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(result.out.starts_with("POLICY    WHAT LEAVES FIRST\nlru       ")) << result.out;
  for (const char* name : {"\nlfu ", "\nfifo ", "\npriority "})
    EXPECT_NE(result.out.find(name), std::string::npos);
}

TEST_F(CliTest, DeletesPools) {
  mount_.add_pool("a");
  std::filesystem::remove_all(mount_.root() / "a/.pool");
  mount_.write("a/entry", "x");
  std::filesystem::create_directories(mount_.root() / "a/deep/er");
  Outcome result = run({"delete", "a"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.error, "kvcachefs: pool 'a' has content (--force removes it too)\n");
  EXPECT_TRUE(std::filesystem::exists(mount_.root() / "a/entry"));
  EXPECT_EQ(run({"delete", "--force", "a"}).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(mount_.root() / "a"));
  EXPECT_EQ(run({"delete", "a"}).error, "kvcachefs: there is no pool 'a'\n");
}

TEST_F(CliTest, TakesAPoolAwayThatCannotBeSet) {
  Outcome result = run({"create", "a", "--size", "1G"});  // a plain directory has no control files
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.error.find("a/.pool/size"), std::string::npos) << result.error;
  EXPECT_FALSE(std::filesystem::exists(mount_.root() / "a"));
  mount_.add_pool("b");
  result = run({"create", "b", "--size", "1G"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.error, "kvcachefs: pool 'b' exists\n");
  EXPECT_EQ(mount_.read("b/.pool/size"), "16G\n");
}

TEST_F(CliTest, ShowsRates) {
  mount_.add_pool("llama");
  Outcome result = run({"top", "--once"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_NE(result.out.find("POOL   SIZE   USED  USE%  PINNED  ENTRIES  OPEN  HITS/s  MISSES/s  HIT%"),
            std::string::npos);
  EXPECT_NE(result.out.find("llama   16G  12.3G   77%    512M     6120     3     102       1.2   99%"),
            std::string::npos)
      << result.out;
  views_ = 3;
  result = run({"top", "--interval", "0.5"});
  EXPECT_EQ(result.exit_code, 0);
  size_t views = 0;
  for (size_t at = 0; (at = result.out.find("POOL ", at)) != std::string::npos; ++at) ++views;
  EXPECT_EQ(views, 3u);
}

TEST_F(CliTest, CountsRatesBetweenSamples) {
  Sample earlier{10, "/m", {}, {{"a", StatsReading::parse("opens_hit 100\nevictions 10\ndiscards 5\n")}}};
  Sample later{12, "/m", {}, {{"a", StatsReading::parse("opens_hit 103\nevictions 16\ndiscards 4\n")}}};
  const std::string view = top_view(later, &earlier);
  EXPECT_NE(view.find("  REMOVES/s  EVICTIONS/s  DISCARDS/s\n"), std::string::npos) << view;
  EXPECT_NE(view.find("    1.5         0  100%          0          0          2.5         2.0\n"),
            std::string::npos)
      << view;
}

TEST_F(CliTest, FindsTheMount) {
  mount_.add_pool("a");
  const std::string mounted =
      "40 26 0:45 / " + mount_.root().native() + " rw - fuse.kvcachefs kvcachefs rw,user_id=0\n";
  write_mountinfo(mounted);
  EXPECT_EQ(run_alone({"status", "a"}).exit_code, 0);
  write_mountinfo("39 26 0:44 / /home/user/kv rw - fuse.kvcachefs kvcachefs rw,user_id=1000\n" + mounted);
  EXPECT_EQ(run_alone({"status", "a"}).exit_code, 0) << "another user's mount is none of kvcachefs";
  EXPECT_EQ(run_alone({"version"}).out, "kvcachefs 0.1.0\n" + mount_.root().native() + ": kvcachefs 0.1.0\n");
  write_mountinfo(mounted + "41 26 0:46 / /elsewhere rw - fuse.kvcachefs kvcachefs rw,user_id=0\n");
  const Outcome several = run_alone({"status"});
  EXPECT_EQ(several.exit_code, 2);
  EXPECT_NE(several.error.find("/elsewhere): say which with --mount"), std::string::npos) << several.error;
  EXPECT_EQ(run({"status", "a"}).exit_code, 0);
}

TEST_F(CliTest, UpgradesTheDaemonOfAProcessAlone) {
  const std::string root = mount_.root().native();
  write_mountinfo("40 26 0:45 / " + root + " rw - fuse.kvcachefs kvcachefs rw,user_id=0\n");
  EXPECT_EQ(run_alone({"upgrade"}).exit_code, 1) << "it is the only one, and has no supervisor";
  const std::string pid = std::to_string(::getpid());
  const Outcome none = run_alone({"upgrade", "--pid", pid});
  EXPECT_EQ(none.exit_code, 3);
  EXPECT_EQ(none.error, "kvcachefs: process " + pid + " serves no kvcachefs that is mounted here\n");
  EXPECT_EQ(run_alone({"upgrade", "--pid", "0"}).exit_code, 2);
}

TEST_F(CliTest, TellsAnUpgradeThatIsRefusedFromOneWhoseEndIsNotKnown) {
  const Supervisor supervisor;
  mount_.write(".kvcachefs/stats", "supervisor_pid " + supervisor.pid() + "\n");
  mount_.write(".kvcachefs/upgrades", "done 2\nrefused 0\nreason \n");
  views_ = 5;
  const Outcome open = run({"upgrade"});
  EXPECT_EQ(open.exit_code, 4);
  EXPECT_TRUE(open.error.contains("process " + supervisor.pid() + " has neither become another nor refused"))
      << open.error;

  views_ = 5;
  on_wait_ = [&] { mount_.write(".kvcachefs/upgrades", "done 2\nrefused 1\nreason no room\n"); };
  const Outcome refused = run({"upgrade"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(refused.error, "kvcachefs: no room\n");

  views_ = 5;
  on_wait_ = [&] { mount_.write(".kvcachefs/upgrades", "done 3\nrefused 1\nreason no room\n"); };
  EXPECT_EQ(run({"upgrade"}).exit_code, 0);
}

TEST_F(CliTest, AnUpgradeWithoutASupervisorFailsAtOnce) {
  mount_.write(".kvcachefs/upgrades", "done 2\nrefused 0\nreason \n");
  Supervisor supervisor;
  mount_.write(".kvcachefs/stats", "supervisor_pid " + supervisor.pid() + "\n");
  views_ = 1000;
  on_wait_ = [&] {  // it dies after the signal
    supervisor.end();
    mount_.write(".kvcachefs/stats", "supervisor_pid 0\n");
  };
  const Outcome died = run({"upgrade"});
  EXPECT_EQ(died.exit_code, 1);
  EXPECT_TRUE(died.error.contains("the supervisor has died")) << died.error;
  EXPECT_EQ(views_, 999);
  on_wait_ = {};
  mount_.write(".kvcachefs/stats", "supervisor_pid " + supervisor.pid() + "\n");
  const Outcome zombie = run({"upgrade"});
  EXPECT_EQ(zombie.exit_code, 1);
  EXPECT_EQ(zombie.error, died.error);
  EXPECT_EQ(views_, 999);
}

TEST_F(CliTest, SaysThatNothingIsMounted) {
  for (const std::vector<std::string>& command : {std::vector<std::string>{"status"},
                                                  {"top", "--once"},
                                                  {"create", "a", "--size", "1G"},
                                                  {"delete", "a"}}) {
    const Outcome result = run_alone(command);
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_EQ(result.error, "kvcachefs: no kvcachefs is mounted\n");
    EXPECT_EQ(result.out, "");
  }
  const Outcome there = run_alone({"--mount", "/tmp", "status"});
  EXPECT_EQ(there.exit_code, 3);
  EXPECT_EQ(there.error, "kvcachefs: /tmp is not a kvcachefs mount\n");
  EXPECT_EQ(run_alone({"version"}).exit_code, 0);
  EXPECT_EQ(run_alone({"version", "--mount", "/tmp"}).exit_code, 3);
}

TEST_F(CliTest, NamesMistakes) {
  mount_.add_pool("a");
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{}, "a command is missing"},
      {{"dance"}, "dance"},
      {{"create", "a"}, "--size"},
      {{"create", "a/b", "--size", "1G"}, "'a/b' is not a pool name"},
      {{"create", "c", "--size", "1X"}, "--size: size: '1X'"},
      {{"create", "c", "--size", "1G", "--watermarks", "9:1"}, "--watermarks: watermarks: '9:1'"},
      {{"create", "c", "--size", "1G", "--entry-size", "0"}, "--entry-size"},
      {{"create", "c", "--size", "1G", "--policy", "best"}, "there are lru"},
      {{"create", "c", "--size", "1G", "--spill", "x"}, "--spill: spill: 'x' is not an absolute path"},
      {{"create", "c", "--size", "1G", "--spill-size", "1G"}, "spill_size=1G needs a disk tier"},
      {{"create", "c", "--size", "1G", "--durability", "sync"}, "durability=sync needs a disk tier"},
      {{"create", "c", "--size", "1G", "--spill", "/x", "--durability", "fast"}, "--durability"},
      {{"create", "c", "--size", "1G", "--force"}, "spill_force=on needs a disk tier"},
      {{"set", "a"}, "SETTING"},
      {{"set", "a", "size"}, "'size' is not key=value"},
      {{"set", "a", "colour=red"}, "unknown pool option 'colour'"},
      {{"set", "a", "mode=0700"}, "chmod and chown"},
      {{"set", "a", "policy=lfu", "size=1X"}, "size: '1X'"},
      {{"evict", "a"}, "[--percent,--bytes,--entries]"},
      {{"evict", "a", "--percent", "0"}, "--percent"},
      {{"evict", "a", "--percent", "101"}, "--percent"},
      {{"evict", "a", "--entries", "-1"}, "--entries"},
      {{"evict", "a", "--bytes", "x"}, "--bytes"},
      {{"evict", "a", "--bytes", "1G", "--entries", "1"}, "2 were given"},
      {{"pin"}, "PATH"},
      {{"prefetch", "a"}, "NAME"},
      {{"prefetch", "a", "x", "--priority", "1001"}, "--priority"},
      {{"scrub", "a", "--rate", "fast"}, "--rate: 'fast' is not a size a second"},
      {{"top", "--interval", "0"}, "--interval"},
      {{"top", "--interval", "nan"}, "--interval"},
  };
  for (const auto& [arguments, reason] : cases) {
    const Outcome result = run(arguments);
    EXPECT_EQ(result.exit_code, 2) << reason;
    EXPECT_NE(result.error.find(reason), std::string::npos) << result.error << reason;
    EXPECT_EQ(std::count(result.error.begin(), result.error.end(), '\n'), 1) << result.error;
  }
  EXPECT_EQ(mount_.read("a/.pool/policy"), "lru\n");
  EXPECT_EQ(run({"status", "nobody"}).exit_code, 1);
  EXPECT_EQ(run({"status", "nobody"}).error, "kvcachefs: there is no pool 'nobody'\n");
}

TEST_F(CliTest, HelpsWithEachCommand) {
  const Outcome help = run_alone({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* command :
       {"create", "status", "evict", "set", "policies", "delete", "pin", "unpin", "stat", "top", "version",
        "prefetch", "scrub", "check", "upgrade", "stop", "metrics", "stats", "report"}) {
    EXPECT_NE(help.out.find(command), std::string::npos) << command;
    EXPECT_EQ(run_alone({command, "--help"}).exit_code, 0) << command;
  }
}

TEST_F(CliTest, ReportsEveryPathThatCannotBePinned) {
  const Outcome result = run_alone({"pin", "/nowhere/a", "/nowhere/b"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.error.find("/nowhere/a: No such file"), std::string::npos) << result.error;
  EXPECT_NE(result.error.find("/nowhere/b: No such file"), std::string::npos) << result.error;
}

TEST(Table, AlignsColumns) {
  Table table({{"A", Align::kLeft}, {"LONG"}, {"C", Align::kLeft}});
  table.add({"abc", "1", ""});
  table.add({"d", "22222", "x"});
  EXPECT_EQ(table.text(),
            "A     LONG  C\n"
            "abc      1\n"
            "d    22222  x\n");
}

TEST(Duration, HasTwoUnits) {
  EXPECT_EQ(format_duration(0), "0s");
  EXPECT_EQ(format_duration(61), "1m 1s");
  EXPECT_EQ(format_duration(7500), "2h 5m");
  EXPECT_EQ(format_duration(90000), "1d 1h");
}

}  // namespace kvcachefs::cli_test
