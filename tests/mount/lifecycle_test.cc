// Starting: configuration errors, the state after a crash, and the memory of the daemon.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/pool_pressure.h"
#include "tests/support/program.h"

namespace kvcachefs::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class LifecycleTest : public ::testing::Test {
 protected:
  void SetUp() override { KVCACHEFS_NEED_DAEMON(); }
};

// A Runner runs a daemon that is not meant to serve.
class Runner {
 public:
  Runner() {
    std::string name = "/tmp/kv-test-" + std::to_string(::getpid()) + "-XXXXXX";
    directory_ = ::mkdtemp(name.data());
    make_directory(mount_point());
  }
  ~Runner() {
    remove_content(directory_);
    ::rmdir(directory_.c_str());
  }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  std::string mount_point() const { return directory_ + "/mnt"; }
  std::string file(const std::string& name) const { return directory_ + "/" + name; }

  Outcome run(std::vector<std::string> words) const {
    words.insert(words.begin(), {"kvcachefsd", "-o", "runtime_dir=" + file("run")});
    const Outcome outcome = test::run(words);
    EXPECT_EQ(mounts_below(directory_).size(), 0u) << "something was mounted: " << outcome.error;
    return outcome;
  }

 private:
  std::string directory_;
};

TEST_F(LifecycleTest, WrongArguments) {
  const Runner runner;
  const std::vector<std::vector<std::string>> wrong = {
      {"--pool", "p:size=many"},
      {"--pool", "p:sizze=16M"},
      {"--pool", "p:size=999999T"},
      {"--pool", "p:size=60%", "--pool", "q:size=60%"},
      {"--pool", "p:size=16M", "--pool", "p:size=16M"},
      {"--pool", ".p:size=16M"},
      {"--pool", "with space:size=16M"},
      {"--pool", "p:size=16M,policy=best"},
      {"--pool", "p:size=16M,watermarks=90:80"},
      {"--pool", "p:size=16M,watermarks=0:80"},
      {"--pool", "p:size=16M,watermarks=50:101"},
      {"--pool", "p:size=16M,mode=9z"},
      {"-o", "no_such_option"},
      {"-o", "threads=many"},
      {"--no-such-flag"},
      {"--config", "/nonexistent.toml"},
  };
  for (std::vector<std::string> words : wrong) {
    const std::string what = ::testing::PrintToString(words);
    words.push_back(runner.mount_point());
    const Outcome outcome = runner.run(words);
    EXPECT_EQ(outcome.exit_code, 2) << what << "\n" << outcome.error;
    EXPECT_EQ(outcome.out, "") << what;
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << what << "\n"
                                                                               << outcome.error;
  }
  EXPECT_EQ(runner.run({}).exit_code, 2) << "no mount point";
}

TEST_F(LifecycleTest, WrongConfigurationNamesFileAndLine) {
  const Runner runner;
  const std::string config = runner.file("kvcachefs.toml");
  const std::vector<std::pair<std::string, int>> wrong = {
      {"threads = 2\nsizes = 5\n", 2},        {"[pools.p]\nsize = \"16M\"\n\npolicy = \"best\"\n", 4},
      {"[pools.p]\nsize = \"lots\"\n", 2},    {"# fine\n[pools.p]\nsizze = \"16M\"\n", 3},
      {"[pools.p]\nsize = \"999999T\"\n", 1}, {"[pools.p\n", 1},
  };
  for (const auto& [text, line] : wrong) {
    write_file(config, text);
    const Outcome outcome = runner.run({"--config", config, runner.mount_point()});
    EXPECT_EQ(outcome.exit_code, 2) << text << outcome.error;
    EXPECT_NE(outcome.error.find(config + ":" + std::to_string(line) + ": "), std::string::npos)
        << text << outcome.error;
    EXPECT_EQ(runner.run({"--check-config", "--config", config, runner.mount_point()}).exit_code, 2) << text;
  }
}

TEST_F(LifecycleTest, ConfigurationIsCheckedAndPrinted) {
  const Runner runner;
  const std::string config = runner.file("kvcachefs.toml");
  write_file(config, "threads = 3\n[pools.llama]\nsize = \"16M\"\npolicy = \"fifo\"\n");
  EXPECT_EQ(runner.run({"--check-config", "--config", config, runner.mount_point()}).exit_code, 0);
  const Outcome printed = runner.run({"--print-config", "--config", config, runner.mount_point()});
  EXPECT_EQ(printed.exit_code, 0) << printed.out;
  EXPECT_EQ(printed.error, "");
  for (const char* part : {"llama", "16M", "fifo", "threads = 3"}) {
    EXPECT_NE(printed.out.find(part), std::string::npos) << part << "\n" << printed.out;
  }
  // The printed text is a configuration.
  write_file(config, printed.out);
  EXPECT_EQ(runner.run({"--check-config", "--config", config, runner.mount_point()}).exit_code, 0)
      << printed.out;
  const Outcome version = runner.run({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_NE(version.out.find(KVCACHEFS_VERSION), std::string::npos);
}

TEST_F(LifecycleTest, MissingMountPointIsAFailure) {
  const Runner runner;
  const Outcome outcome = runner.run({"--pool", "p:size=16M", runner.file("nowhere")});
  EXPECT_NE(outcome.exit_code, 0) << outcome.error;
  EXPECT_NE(outcome.exit_code, 128 + SIGKILL) << "it still ran";
}

TEST_F(LifecycleTest, ConfigurationServes) {
  const Runner runner;
  const std::string config = runner.file("kvcachefs.toml");
  write_file(config, "[pools.one]\nsize = \"16M\"\npolicy = \"lfu\"\n[pools.two]\nsize = \"32M\"\n");
  Mount mount({.pools = {"two:size=24M"}, .arguments = {"--config", config}});
  EXPECT_EQ(list(mount.root()), (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(read_file(mount.control("policy", "one")), "lfu\n");
  EXPECT_EQ(read_file(mount.control("size", "two")), "24M\n") << "the command line wins";
  mount.stop();
}

TEST_F(LifecycleTest, AStaleMountOfOursIsCleanedUp) {
  Mount crashed;
  fill(crashed.path(), "e", 3);
  (void)list(crashed.root());  // after which the kernel asks again for the root's attributes
  crashed.kill();
  ASSERT_FALSE(mounts_below(crashed.root()).empty()) << "nothing stale to clean";
  EXPECT_FALSE(exists(crashed.path() + "/e-0"));
  Mount next({.mount_point = crashed.root(), .runtime_dir = crashed.runtime_dir()});
  EXPECT_EQ(mounts_below(next.root()).size(), 1u) << "the old one is still below";
  EXPECT_EQ(store(next.path() + "/file", "content"), 0);
  EXPECT_EQ(read_file(next.path() + "/file"), "content");
  fill(next.path(), "pressure", 100);
  EXPECT_LE(tmpfs_used_bytes(next), 64 * kMiB);
  next.stop();
  EXPECT_TRUE(mounts_below(crashed.runtime_dir()).empty());
}

class MountPoint {
 public:
  explicit MountPoint(std::string path) : path_(std::move(path)) { make_directory(path_); }
  ~MountPoint() {
    while (::umount2(path_.c_str(), MNT_DETACH) == 0) continue;
  }
  MountPoint(const MountPoint&) = delete;
  MountPoint& operator=(const MountPoint&) = delete;
  const std::string& path() const { return path_; }
  size_t mounts() const { return mounts_below(path_).size(); }

 private:
  const std::string path_;
};

TEST_F(LifecycleTest, WhatOthersMountedOverItStays) {
  const Runner runner;
  const MountPoint bind(runner.file("bind"));
  Mount mount;
  ASSERT_EQ(::mount(mount.path().c_str(), bind.path().c_str(), nullptr, MS_BIND, nullptr), 0);
  ASSERT_EQ(::mount("none", bind.path().c_str(), "tmpfs", 0, "size=1M"), 0);
  write_file(bind.path() + "/precious", "bytes");
  ::kill(mount.pid(), SIGTERM);
  EXPECT_EQ(mount.wait_for_exit(std::chrono::seconds(60)), 0) << mount.log();
  EXPECT_EQ(read_file(bind.path() + "/precious"), "bytes");
  EXPECT_NE(mount.log().find("something else is mounted over it"), std::string::npos);
}

TEST_F(LifecycleTest, BindMountsGoThoughTheBaseHasGone) {
  const Runner runner;
  const MountPoint bind(runner.file("bind"));
  Mount mount;
  mount.stop_squeezing();  // the squeezer has files of the base mount open
  ASSERT_EQ(::mount(mount.path().c_str(), bind.path().c_str(), nullptr, MS_BIND, nullptr), 0);
  ASSERT_EQ(::umount2(mount.root().c_str(), 0), 0);
  ASSERT_EQ(store(bind.path() + "/file", "content"), 0) << "it serves on";
  mount.stop();
  EXPECT_EQ(bind.mounts(), 0u);
}

// Each open file takes one descriptor, and the last create runs out of descriptors between its steps.
TEST_F(LifecycleTest, ACreateThatFailsLeavesNoName) {
  Mount mount;
  rlimit before{};
  ASSERT_EQ(::prlimit(mount.server_pid(), RLIMIT_NOFILE, nullptr, &before), 0);
  const rlimit few{.rlim_cur = 64, .rlim_max = before.rlim_max};
  ASSERT_EQ(::prlimit(mount.server_pid(), RLIMIT_NOFILE, &few, nullptr), 0);
  std::vector<File> files;
  std::string name;
  for (int i = 0; i < 200; ++i) {
    name = mount.path() + "/e-" + std::to_string(i);
    const int fd = ::open(name.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0) break;
    files.emplace_back(fd);
  }
  const size_t made = files.size();
  if (mode() == Mode::kDaemonIo) {
    EXPECT_LT(made, 64u);
  }
  ASSERT_EQ(::prlimit(mount.server_pid(), RLIMIT_NOFILE, &before, nullptr), 0);
  EXPECT_EQ(list(mount.path()).size(), made);
  if (made < 200) {
    EXPECT_EQ(store(name, "content"), 0);
    EXPECT_EQ(::unlink(name.c_str()), 0);
  }
  files.clear();
  mount.stop();
}

TEST_F(LifecycleTest, TwoMountsSideBySide) {
  Mount one;
  Mount two({.pools = {"other:size=32M"}});
  ASSERT_EQ(store(one.path() + "/file", "one"), 0);
  ASSERT_EQ(store(two.path("other") + "/file", "two"), 0);
  one.stop();
  EXPECT_EQ(read_file(two.path("other") + "/file"), "two");
  two.stop();
}

// It is not a Mount, because it has to outlive the process that the test starts.
class BackgroundDaemon {
 public:
  BackgroundDaemon(const Runner& runner, std::string root, std::vector<std::string> words)
      : root_(std::move(root)) {
    make_directory(root_);
    if (mode() == Mode::kDaemonIo) words.insert(words.begin(), {"-o", "no_passthrough"});
    if (mode() == Mode::kIoUring) words.insert(words.begin(), {"-o", "io_uring"});
    words.insert(words.begin(), {"kvcachefsd", "--daemonize", "-o", "runtime_dir=" + runner.file("run"), "-o",
                                 "state_dir=none"});
    words.push_back(root_);
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
    // Because the command returned, the daemon serves without further waiting.
    EXPECT_GT(pid(), 1);
  }
  ~BackgroundDaemon() {
    const pid_t present = pid();
    EXPECT_GT(present, 1);
    if (present <= 1) return;
    EXPECT_EQ(::kill(present, SIGTERM), 0);
    EXPECT_TRUE(eventually([&] { return mounts_below(root_).empty() && ::kill(present, 0) != 0; }))
        << "it does not end";
  }
  BackgroundDaemon(const BackgroundDaemon&) = delete;
  BackgroundDaemon& operator=(const BackgroundDaemon&) = delete;
  std::string report() const { return run({"kvcachefs", "--mount", root_, "report", "--names"}).out; }

 private:
  // Another after an upgrade.
  pid_t pid() const { return std::stoi(parse_stats(read_file(root_ + "/.kvcachefs/stats")).at("pid")); }

  std::string root_;
};

TEST_F(LifecycleTest, Daemonize) {
  const Runner runner;
  const std::string root = runner.file("one");
  const BackgroundDaemon daemon(runner, root, {"--pool", "p:size=16M"});
  EXPECT_EQ(read_file(root + "/p/.pool/size"), "16M\n");
}

// Its working directory is another one than that in which its command line was given.
TEST_F(LifecycleTest, ADaemonInTheBackgroundIsUpgradedWithRelativePaths) {
  if (mode() == Mode::kIoUring) GTEST_SKIP() << "no upgrade over io_uring";
  const Runner runner;
  const std::string root = runner.file("one");
  std::ofstream(runner.file("kv.toml")) << "[pools.p]\nsize = \"16M\"\n";
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(runner.file(""));
  const BackgroundDaemon daemon(runner, root, {"--config", "kv.toml", "-o", "runtime_dir=relative"});
  std::filesystem::current_path(before);
  ASSERT_EQ(store(root + "/p/entry", "content"), 0);
  const Outcome upgraded = run({"kvcachefs", "--mount", root, "upgrade"});
  EXPECT_EQ(upgraded.exit_code, 0) << upgraded.error;
  EXPECT_EQ(read_file(root + "/p/entry"), "content");
  EXPECT_THAT(daemon.report(),
              HasSubstr("== configuration file\ncannot be had: kv.toml: the daemon has left"));
}

TEST_F(LifecycleTest, AnUpgradeGoesOnWhereThePoolsAre) {
  if (mode() == Mode::kIoUring) GTEST_SKIP() << "no upgrade over io_uring";
  const Runner runner;
  const std::string root = runner.file("mount"), link = runner.file("link");
  for (const char* name : {"one", "two"}) ASSERT_EQ(error_of(::mkdir(runner.file(name).c_str(), 0700)), 0);
  std::filesystem::create_directory_symlink("one", link);
  const BackgroundDaemon daemon(runner, root, {"--pool", "p:size=16M", "-o", "runtime_dir=" + link});
  ASSERT_EQ(store(root + "/p/entry", "content"), 0);
  std::filesystem::remove(link);
  std::filesystem::create_directory_symlink("two", link);
  const Outcome upgraded = run({"kvcachefs", "--mount", root, "upgrade"});
  EXPECT_EQ(upgraded.exit_code, 0) << upgraded.error;
  EXPECT_EQ(read_file(root + "/p/entry"), "content");
}

TEST_F(LifecycleTest, DaemonsInTheBackgroundHaveALogEach) {
  const Runner runner;
  const std::string root = runner.file("one"), other = runner.file("two"), config = runner.file("kv.toml");
  std::ofstream(config) << "# a remark\n[pools.p]\nsize = \"16M\"\n";
  const BackgroundDaemon first(runner, root, {"--config", config});
  const BackgroundDaemon second(runner, other, {"--pool", "p:size=16M"});
  EXPECT_NE(write_once(root + "/p/.pool/policy", "of-one"), 0);
  EXPECT_NE(write_once(other + "/p/.pool/policy", "of-two"), 0);
  const std::string report = first.report(), another = second.report();
  for (const std::string& part : std::vector<std::string>{
           "kvcachefsd --daemonize ", " --config " + config + " ",
           "# " + config + "\n# a remark\n[pools.p]\n", "== log\n" + runner.file("run/"), "'of-one'"})
    EXPECT_THAT(report, HasSubstr(part));
  EXPECT_THAT(report, Not(HasSubstr("of-two")));
  EXPECT_THAT(another, HasSubstr("'of-two'"));
  EXPECT_THAT(another, HasSubstr("== configuration file\nnone\n"));
  EXPECT_THAT(another, Not(HasSubstr("of-one")));
}

TEST_F(LifecycleTest, LogLinesHavePriorities) {
  Mount mount;
  // The daemon serves a moment before its log says so.
  ASSERT_TRUE(eventually([&] { return mount.log().find(" serves ") != std::string::npos; })) << mount.log();
  std::istringstream log(mount.log());
  int lines = 0;
  for (std::string line; std::getline(log, line); ++lines) {
    EXPECT_TRUE(std::regex_match(line, std::regex("<[3-7]>.+"))) << line;
  }
  EXPECT_GT(lines, 0);
  EXPECT_NE(mount.log().find(mode() == Mode::kDaemonIo ? "daemon" : "passthrough"), std::string::npos);
  mount.stop();
}

[[maybe_unused]] long resident_kib(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stol(line.substr(6));
  }
  return 0;
}

// A build with sanitizers is left out, because a sanitizer takes memory.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_F(LifecycleTest, MemoryOfTheDaemonPerEntry) {
  constexpr long kEntries = 20'000;
  Mount mount({.pools = {"p:size=256M"}});
  for (int i = 0; i < 1000; ++i) File(mount.path() + "/warm-" + std::to_string(i), O_WRONLY | O_CREAT);
  const long before = resident_kib(mount.server_pid());
  for (long i = 0; i < kEntries; ++i) {
    const File file(mount.path() + "/0123456789abcdef0123456789abcdef-" + std::to_string(i),
                    O_WRONLY | O_CREAT);
    ASSERT_EQ(::write(file.fd(), "x", 1), 1);
  }
  ASSERT_EQ(mount.stat_value("entries"), kEntries + 1000);
  const long per_entry = (resident_kib(mount.server_pid()) - before) * 1024 / kEntries;
  RecordProperty("bytes_per_entry", std::to_string(per_entry));
  // The goal at a million entries is 256 bytes; here a table may just have doubled. With a disk tier an entry
  // takes as much again. Pages of the catalog's map count for the daemon, too, while the machine has memory
  // to spare.
  EXPECT_LE(per_entry, every_pool_spills() ? 1024 : 512);
  mount.stop();
}
#endif

}  // namespace
}  // namespace kvcachefs::test
