// The commands of the kvcachefs tool that watch: `metrics` and `stats`.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "daemon/cli/masked_names.h"
#include "daemon/log_file.h"
#include "tests/unit/daemon/cli_fixture.h"

namespace kvcachefs::cli_watch_test {

using CliWatchTest = CliTest;

const char* const kMetrics = "# TYPE kvcachefs_info gauge\nkvcachefs_info 1\n";

TEST_F(CliWatchTest, PrintsTheMetrics) {
  mount_.write(".kvcachefs/metrics", kMetrics);
  const Outcome result = run({"metrics"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(result.out, kMetrics);
}

TEST_F(CliWatchTest, WritesTheMetricsToAFileOfTheirOwn) {
  mount_.write(".kvcachefs/metrics", kMetrics);
  std::filesystem::create_directory(mount_.root() / "out");
  const std::string file = mount_.root() / "out/kv.prom";
  mount_.write("elsewhere", "old");
  std::filesystem::create_symlink(mount_.root() / "elsewhere", file);
  const Outcome result = run({"metrics", "--textfile", file});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(mount_.read("out/kv.prom"), kMetrics);
  EXPECT_EQ(mount_.read("elsewhere"), "old") << "it was replaced, not written through";
  const auto entries = std::filesystem::directory_iterator(mount_.root() / "out");
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1) << "something is left beside it";

  views_ = 2;
  on_wait_ = [&] {
    EXPECT_EQ(mount_.read("out/kv.prom"), kMetrics);
    std::filesystem::remove(file);
  };
  EXPECT_EQ(run({"metrics", "--textfile", file, "--interval", "5"}).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(file)) << "the second wait came after a second file";
}

TEST_F(CliWatchTest, LeavesNoFileOfOldNumbers) {
  mount_.write(".kvcachefs/metrics", kMetrics);
  const std::string file = mount_.root() / "kv.prom";
  EXPECT_EQ(run({"metrics", "--textfile", file}).exit_code, 0);
  std::filesystem::rename(mount_.root() / ".kvcachefs", mount_.root() / "away");
  const Outcome once = run({"metrics", "--textfile", file});
  EXPECT_EQ(once.exit_code, 3);
  EXPECT_FALSE(std::filesystem::exists(file));
  views_ = 4;
  on_wait_ = [&] {
    if (views_ == 2) std::filesystem::rename(mount_.root() / "away", mount_.root() / ".kvcachefs");
  };
  const Outcome again = run({"metrics", "--textfile", file, "--interval", "1"});
  EXPECT_EQ(again.error,
            "kvcachefs: " + mount_.root().native() + " is not a kvcachefs mount\nkvcachefs: written again\n");
  EXPECT_EQ(mount_.read("kv.prom"), kMetrics);
}

TEST_F(CliWatchTest, SaysWhereAFileCannotBeWritten) {
  mount_.write(".kvcachefs/metrics", kMetrics);
  const Outcome result = run({"metrics", "--textfile", "/nowhere/kv.prom"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.error.find("/nowhere/kv.prom"), std::string::npos) << result.error;
  EXPECT_NE(result.error.find(": No such file or directory"), std::string::npos) << result.error;
}

TEST_F(CliWatchTest, ServesWhatItReads) {
  mount_.write(".kvcachefs/metrics", kMetrics);
  serve_metrics_ = [&](const ListenAddress& address, std::function<Result<std::string>()> source,
                       const std::function<void(const std::string&)>& serving) -> Result<void> {
    EXPECT_EQ(address.host, "::1");
    EXPECT_EQ(address.port, 9400);
    serving("http://there");
    EXPECT_EQ(source().value(), kMetrics);
    std::filesystem::remove_all(mount_.root() / ".kvcachefs");
    EXPECT_EQ(source().error().message, mount_.root().native() + " is not a kvcachefs mount");
    return fail(EADDRINUSE, "it is in use");
  };
  const Outcome result = run({"metrics", "--listen", "[::1]:9400"});
  EXPECT_EQ(result.out, "http://there\n");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.error, "kvcachefs: it is in use\n");
}

TEST_F(CliWatchTest, PrintsTheCounters) {
  mount_.add_pool("a");
  mount_.add_pool("b");
  mount_.write("b/.pool/stats", "entries 7\n");
  EXPECT_EQ(run({"stats", "b"}).out, "entries 7\n");
  const Outcome all = run({"stats"});
  EXPECT_EQ(all.exit_code, 0) << all.error;
  EXPECT_TRUE(all.out.starts_with("version 0.1.0\n")) << all.out;
  EXPECT_NE(all.out.find("\npid 42\n\npool a\nsize_bytes 17179869184\n"), std::string::npos) << all.out;
  EXPECT_TRUE(all.out.ends_with("\nio_mode passthrough\n\npool b\nentries 7\n")) << all.out;
  const Outcome none = run({"stats", "nobody"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_EQ(none.error, "kvcachefs: there is no pool 'nobody'\n");
}

TEST_F(CliWatchTest, PrintsTheCountersAgainAndAgain) {
  mount_.add_pool("a");
  mount_.write("a/.pool/stats", "entries 1\n");
  mount_.write("a/.pool/stats.json", "{\"entries\":1}\n");
  views_ = 2;
  on_wait_ = [&] {
    mount_.write("a/.pool/stats", "entries 2\n");
    mount_.write("a/.pool/stats.json", "{\"entries\":2}\n");
  };
  Outcome result = run({"stats", "a", "--watch", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_TRUE(result.out.starts_with("time_s 1") || result.out.starts_with("time_s 2")) << result.out;
  EXPECT_NE(result.out.find("\nentries 1\n\ntime_s "), std::string::npos) << result.out;
  EXPECT_TRUE(result.out.ends_with("\nentries 2\n")) << result.out;

  mount_.write("a/.pool/stats.json", "{\"entries\":1}\n");
  views_ = 2;
  result = run({"stats", "a", "--watch", "1", "--json"});
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 2) << result.out;
  EXPECT_TRUE(result.out.starts_with("{\"time_s\":")) << result.out;
  EXPECT_NE(result.out.find(",\"pool\":\"a\",\"entries\":1}\n{\"time_s\":"), std::string::npos) << result.out;
  EXPECT_TRUE(result.out.ends_with(",\"pool\":\"a\",\"entries\":2}\n")) << result.out;
  EXPECT_TRUE(run({"stats", "--json"}).out.ends_with(",\"version\":\"0.1.0\"}\n"));
}

TEST_F(CliWatchTest, TheCountersEndWithTheMount) {
  views_ = 3;
  on_wait_ = [&] { std::filesystem::remove_all(mount_.root() / ".kvcachefs"); };
  const Outcome result = run({"stats", "--watch", "1"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.error, "");
}

// Where the log of a daemon in the background lies, below the fake mount's root as the runtime directory.
std::string log_name(const std::filesystem::path& root) {
  return std::filesystem::path(log_path(root, std::filesystem::canonical(root))).filename();
}

TEST_F(CliWatchTest, ReportsWhatATicketAsksFor) {
  mount_.add_pool("llama");
  mount_.write("llama/.pool/settings", "size configured 16G\n");
  mount_.write(".kvcachefs/upgrades", "done 2\nrefused 0\n");
  const std::string root = mount_.root();
  std::string log = "a line before the last 200\n";
  for (int i = 0; i < 196; ++i) log += "<6>started\n";
  log += "a\tb \x1b]0;title\a\n";
  log += "<4>pool llama: the catalog has lost something, the first: name (node 7, 'secret's name')\n<4>" +
         root + "/llama/secret file: Input/output error\n<6>kvcachefs is served at " + root + "\n";
  mount_.write(log_name(root), log);
  mount_.write("mnt-other.mount.log", "<6>of another mount\n");
  const Outcome result = run({"report", "--runtime-dir", root});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  for (const char* part : {"== versions\ntool: 0.1.0\ndaemon: kvcachefs 0.1.0\nkernel: ", "== system\n",
                           "\nFUSE", "== command line\ncannot be had: its process is not seen from here\n",
                           "== configuration\npool llama\nsize configured 16G\n",
                           "== statistics\nversion 0.1.0\n", "\npool llama\nsize_bytes 17179869184\n",
                           "== upgrades\ndone 2\n", "== mounts\n", "MemTotal:", "== disks\nnone\n",
                           "(node 7, '[name]')\n", "/llama/[name]\n", "\na\tb \\x1b]0;title\\x07\n"})
    EXPECT_NE(result.out.find(part), std::string::npos) << part << " is missing:\n" << result.out;
  EXPECT_EQ(result.out.find("secret"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("before the last 200"), std::string::npos);
  EXPECT_EQ(result.out.find("of another mount"), std::string::npos);
  EXPECT_EQ(result.out.find("kvcachefs.service"), std::string::npos) << "which may serve another mount";
  EXPECT_NE(result.out.find("<6>kvcachefs is served at " + root + "\n"), std::string::npos);
  EXPECT_NE(run({"report", "--names", "--runtime-dir", root}).out.find("'secret's name'"), std::string::npos);
}

TEST_F(CliWatchTest, ReportsWithoutADaemon) {
  const std::string root = mount_.root();
  mount_.write(log_name(root), "<3>" + root + "/llama/secret: gone\n");
  std::filesystem::remove_all(mount_.root() / ".kvcachefs");
  const Outcome result = run({"report", "--runtime-dir", root});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_NE(result.out.find("== configuration\ncannot be had: " + root + " is not a kvcachefs mount\n"),
            std::string::npos)
      << result.out;
  EXPECT_NE(result.out.find("<3>" + root + "/[name]\n"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("== log\nthe journal of kvcachefs.service\n"), std::string::npos);
  EXPECT_NE(result.out.find("MemTotal:"), std::string::npos);
  const Outcome unnamed = run_alone({"report", "--runtime-dir", root});
  EXPECT_NE(unnamed.out.find("== log\nof a daemon in the background\ncannot be had: --mount says of which\n"),
            std::string::npos)
      << unnamed.out;
}

TEST(MaskedNames, LeaveOutWhatUsersChose) {
  const std::vector<std::string> directories{"/mnt/kv/p", "/run/kv/mnt-kv/p"};
  EXPECT_EQ(masked_names("pool p: 7 entries", directories), "pool p: 7 entries");
  EXPECT_EQ(masked_names("a 'b' and 'c'd' e", directories), "a '[name]' e");
  EXPECT_EQ(masked_names("a 'b", directories), "a '[name]");
  EXPECT_EQ(masked_names("''", directories), "'[name]'");
  EXPECT_EQ(masked_names("x /run/kv/mnt-kv/p/a b: c", directories), "x /run/kv/mnt-kv/p/[name]");
  EXPECT_EQ(masked_names("/mnt/kv/pool/x", directories), "/mnt/kv/pool/x") << "another pool";
}

TEST_F(CliWatchTest, NamesMistakes) {
  mount_.add_pool("a");
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"metrics", "--textfile", "/tmp/kv.txt"}, "--textfile: '/tmp/kv.txt' does not end with NAME.prom"},
      {{"metrics", "--textfile", "/tmp/.prom"}, "--textfile"},
      {{"metrics", "--interval", "5"}, "--textfile"},
      {{"metrics", "--textfile", "/tmp/a.prom", "--interval", "0"}, "--interval: at least 0.1"},
      {{"metrics", "--textfile", "/tmp/a.prom", "--interval", "nan"}, "--interval"},
      {{"metrics", "--textfile", "/tmp/a.prom", "--listen", "127.0.0.1:1"}, "--listen"},
      {{"metrics", "--listen", "0.0.0.0:9400"}, "--any-address"},
      {{"metrics", "--listen", "9400"}, "--listen: '9400'"},
      {{"metrics", "--any-address"}, "--listen"},
      {{"stats", "a", "--watch", "0"}, "--watch: at least 0.1"},
      {{"stats", "a/b"}, "'a/b' is not a pool name"},
      {{"stats", "--watch", "1e9"}, "--watch"},
  };
  for (const auto& [arguments, reason] : cases) {
    const Outcome result = run(arguments);
    EXPECT_EQ(result.exit_code, 2) << reason;
    EXPECT_NE(result.error.find(reason), std::string::npos) << result.error << reason;
  }
}

}  // namespace kvcachefs::cli_watch_test
