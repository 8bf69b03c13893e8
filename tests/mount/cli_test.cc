// The kvcachefs tool on a real mount.
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstdio>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/pool_pressure.h"
#include "tests/support/program.h"

namespace kvcachefs::test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr size_t kEntryBytes = 256 * 1024;

class CliMountTest : public ::testing::Test {
 protected:
  void SetUp() override { KVCACHEFS_NEED_DAEMON(); }

  Outcome cli(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"kvcachefs", "--mount", mount().root()});
    return run(arguments);
  }
  Mount& mount() {
    if (!mount_) mount_ = std::make_unique<Mount>();
    return *mount_;
  }
  std::string entry(int i) { return mount().path() + "/entry-" + std::to_string(i); }
  void store_entries(int count) {
    for (int i = 0; i < count; ++i)
      ASSERT_EQ(store(entry(i), pattern(static_cast<uint64_t>(i), kEntryBytes)), 0);
  }
  int entries_left(int count) {
    std::vector<std::string> names;
    for (int i = 0; i < count; ++i) names.push_back(entry(i));
    return static_cast<int>(in_memory(names).size());
  }
  void TearDown() override {
    if (!mount_) return;
    if (HasFailure()) report_daemon_log(*mount_);
    mount_->stop();
  }

 private:
  std::unique_ptr<Mount> mount_;
};

TEST_F(CliMountTest, CreatesShowsAndDeletesAPool) {
  Outcome outcome = cli({"create", "llama", "--size", "32M", "--policy", "lfu", "--watermarks", "80:90",
                         "--entry-size", "1M", "--pinned-max", "10%"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(read_file(mount().control("size", "llama")), "32M\n");
  EXPECT_EQ(read_file(mount().control("policy", "llama")), "lfu\n");
  EXPECT_EQ(read_file(mount().control("watermarks", "llama")), "80:90\n");
  EXPECT_EQ(read_file(mount().control("entry_size", "llama")), "1M\n");
  EXPECT_EQ(read_file(mount().control("pinned_max", "llama")), "10%\n");
  struct stat status {};
  ASSERT_EQ(::stat(mount().path("llama").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 01777u);

  outcome = cli({"status"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_THAT(outcome.out, StartsWith("kvcachefs 0.1.0 at " + mount().root()));
  EXPECT_THAT(outcome.out, HasSubstr("\nllama  lfu      32M"));
  EXPECT_THAT(outcome.out, HasSubstr("\np      lru      64M"));
  outcome = cli({"status", "llama"});
  EXPECT_THAT(outcome.out, HasSubstr("\nwatermarks    80:90\n"));
  EXPECT_THAT(outcome.out, HasSubstr("\nentry size    1M\n"));

  EXPECT_EQ(cli({"create", "llama", "--size", "32M"}).error, "kvcachefs: pool 'llama' exists\n");
  ASSERT_EQ(store(mount().path("llama") + "/entry", "bytes"), 0);
  outcome = cli({"delete", "llama"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.error, "kvcachefs: pool 'llama' has content (--force removes it too)\n");
  outcome = cli({"delete", "llama", "--force"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_FALSE(exists(mount().path("llama")));
  EXPECT_EQ(cli({"delete", "llama"}).exit_code, 1);
}

TEST_F(CliMountTest, LeavesNoPoolBehindThatCannotBeMade) {
  const Outcome outcome = cli({"create", "huge", "--size", "1000T"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.error, HasSubstr("pool huge: size=1000T is refused; the daemon's log says why"));
  EXPECT_FALSE(exists(mount().path("huge")));
}

TEST_F(CliMountTest, SetsWhileServing) {
  const Outcome outcome =
      cli({"set", "p", "size=48M", "policy=fifo", "watermarks=50:60", "entry_size=2M", "pinned_max=5%"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_EQ(read_file(mount().control("size")), "48M\n");
  EXPECT_EQ(read_file(mount().control("policy")), "fifo\n");
  EXPECT_EQ(read_file(mount().control("watermarks")), "50:60\n");
  EXPECT_EQ(read_file(mount().control("entry_size")), "2M\n");
  EXPECT_EQ(read_file(mount().control("pinned_max")), "5%\n");
  EXPECT_EQ(cli({"set", "p", "policy=lru", "watermarks=9:1"}).exit_code, 2);
  EXPECT_EQ(read_file(mount().control("policy")), "fifo\n");
  EXPECT_EQ(cli({"set", "p", "size=1000T"}).exit_code, 1);
  EXPECT_EQ(read_file(mount().control("size")), "48M\n");
  EXPECT_EQ(cli({"set", "nobody", "size=1G"}).error, "kvcachefs: there is no pool 'nobody'\n");
}

TEST_F(CliMountTest, SetsTheSizeFirst) {
  const Outcome outcome = cli({"set", "p", "entry_size=80M", "watermarks=50:60", "size=96M"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_EQ(read_file(mount().control("entry_size")), "80M\n");
  EXPECT_EQ(read_file(mount().control("size")), "96M\n");
}

TEST_F(CliMountTest, Evicts) {
  mount().stop_squeezing();
  store_entries(20);
  ASSERT_TRUE(settled(mount()));
  Outcome outcome = cli({"evict", "p", "--entries", "5"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_THAT(outcome.out, StartsWith("evicted 5 entries "));
  EXPECT_EQ(entries_left(20), 15);
  outcome = cli({"evict", "p", "--bytes", std::to_string(2 * kEntryBytes)});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_LE(entries_left(20), 13);
  EXPECT_GE(entries_left(20), 1);
  outcome = cli({"evict", "p", "--percent", "100"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_EQ(entries_left(20), 0);
  EXPECT_EQ(cli({"evict", "nobody", "--percent", "100"}).exit_code, 1);
}

TEST_F(CliMountTest, ShowsWhatIsKnownOfEntries) {
  mount().stop_squeezing();  // the test looks twice at the same entry
  store_entries(2);
  ASSERT_EQ(difference(1, read_file(entry(1))), "");
  ASSERT_TRUE(settled(mount()));
  const Outcome outcome = cli({"stat", entry(0), entry(1), mount().path(), "/proc/self/status", entry(9)});
  EXPECT_EQ(outcome.exit_code, 1);
  std::istringstream lines(outcome.out);
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream cells(line);
    rows.emplace_back(std::istream_iterator<std::string>(cells), std::istream_iterator<std::string>());
  }
  const std::vector<std::string> title = {"TIER", "NODE", "HITS", "VERSION", "PINNED", "CHECKSUM", "PATH"};
  ASSERT_EQ(rows.size(), 3u) << outcome.out;
  EXPECT_EQ(rows[0], title);
  for (size_t column = 0; column + 1 < title.size(); ++column) {
    std::string name = title[column];
    for (char& letter : name) letter = static_cast<char>(std::tolower(letter));
    std::string expected = "-";
    if (rows[2][column] != "-") expected = xattr(entry(1), "user.kvcachefs." + name);
    EXPECT_EQ(rows[2][column], expected) << name;
  }
  EXPECT_EQ(rows[2][2], "1") << "hits";
  EXPECT_EQ(rows[2].back(), entry(1));
  for (const char* said : {"no entry of a kvcachefs", "No such file"})
    EXPECT_NE(outcome.error.find(said), std::string::npos) << said << " is missing: " << outcome.error;
}

TEST_F(CliMountTest, PinsAndUnpins) {
  store_entries(4);
  Outcome outcome = cli({"pin", entry(0), entry(1)});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_EQ(xattr(entry(0), "user.kvcachefs.pinned"), "1");
  const std::vector<std::string> all = {entry(0), entry(1), entry(2), entry(3)};
  EXPECT_TRUE(eventually([&] { return in_memory({entry(0), entry(1)}).size() == 2; }));
  EXPECT_EQ(cli({"evict", "p", "--percent", "100"}).exit_code, 0);
  EXPECT_EQ(in_memory(all), (std::vector<int>{0, 1}));
  EXPECT_EQ(cli({"unpin", entry(0)}).exit_code, 0);
  EXPECT_EQ(xattr(entry(0), "user.kvcachefs.pinned"), "0");
  EXPECT_EQ(cli({"evict", "p", "--percent", "100"}).exit_code, 0);
  EXPECT_EQ(in_memory(all), std::vector<int>{1});
  EXPECT_EQ(difference(1, read_file(entry(1))), "");

  ASSERT_EQ(cli({"set", "p", "pinned_max=0"}).exit_code, 0);
  store_entries(1);
  outcome = cli({"pin", entry(0), entry(4)});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.error,
              HasSubstr(entry(0) + ": No space left on device (the pool's pinned_max is reached)"));
  EXPECT_THAT(outcome.error, HasSubstr(entry(4) + ": No such file"));
}

TEST_F(CliMountTest, PrintsJson) {
  const Outcome all = cli({"status", "--json"});
  EXPECT_EQ(all.exit_code, 0) << all.error;
  EXPECT_THAT(all.out, StartsWith("{"));
  EXPECT_THAT(all.out, HasSubstr("\"pools\""));
  const Outcome one = cli({"status", "p", "--json"});
  EXPECT_THAT(one.out, HasSubstr("\"size_bytes\""));
  EXPECT_THAT(one.out, Not(HasSubstr("\"pools\"")));
}

TEST_F(CliMountTest, ShowsTop) {
  store_entries(3);
  const Outcome outcome = cli({"top", "--once"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_THAT(outcome.out, HasSubstr("HITS/s"));
  EXPECT_THAT(outcome.out, HasSubstr("\np      64M"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("\033")));
}

// Other kvcachefs may be mounted on this machine, and come and go between two commands.
TEST_F(CliMountTest, FindsTheMountByItself) {
  const std::string root = mount().root();
  const Outcome outcome = run({"kvcachefs", "status"});
  if (outcome.exit_code == 0) {
    EXPECT_THAT(outcome.out, StartsWith("kvcachefs 0.1.0 at " + root));
  } else {
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.error, HasSubstr(root));
    EXPECT_THAT(outcome.error, HasSubstr("say which with --mount"));
  }
  EXPECT_THAT(run({"kvcachefs", "version"}).out,
              AnyOf("kvcachefs 0.1.0\n", "kvcachefs 0.1.0\n" + root + ": kvcachefs 0.1.0\n"));
}

// Any user has one with fusermount3(1), which calls it what the user likes.
TEST_F(CliMountTest, AnotherUsersMountIsNone) {
  const std::string root = mount().root();
  const std::string users = mount().runtime_dir() + "/of a user";
  make_directory(users);
  const File device("/dev/fuse", O_RDWR);
  const std::string data = "fd=" + std::to_string(device.fd()) + ",rootmode=40000,user_id=1000,group_id=1000";
  ASSERT_EQ(
      error_of(::mount("user_id=0", users.c_str(), "fuse.kvcachefs", MS_NOSUID | MS_NODEV, data.c_str())), 0);
  for (const char* command : {"status", "metrics"}) {
    const Outcome outcome = run({"kvcachefs", command});
    EXPECT_THAT(outcome.out + outcome.error, Not(HasSubstr(users))) << command;
  }
  EXPECT_EQ(::umount2(users.c_str(), MNT_DETACH), 0);
}

// `kvcachefs metrics --listen` on a port that the kernel chose.
class Listener {
 public:
  explicit Listener(const std::string& root) {
    const std::string command = "echo $$; exec '" + program_path("kvcachefs") + "' --mount '" + root +
                                "' metrics --listen 127.0.0.1:0";
    out_ = ::popen(command.c_str(), "r");
    EXPECT_EQ(std::fscanf(out_, "%d http://127.0.0.1:%hu/metrics", &pid_, &port_), 2);
  }
  ~Listener() {
    ::kill(pid_, SIGTERM);
    EXPECT_TRUE(WIFSIGNALED(::pclose(out_)));
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  std::string children() const {
    const std::string process = std::to_string(pid_);
    return read_file("/proc/" + process + "/task/" + process + "/children");
  }
  std::string get(const std::string& path = "/metrics") const {
    const File socket(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port_);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(error_of(::connect(socket.fd(), reinterpret_cast<sockaddr*>(&address), sizeof address)), 0);
    const std::string request = "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n";
    EXPECT_EQ(::send(socket.fd(), request.data(), request.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(request.size()));
    std::string answer;
    char piece[4096];
    for (ssize_t n; (n = ::recv(socket.fd(), piece, sizeof piece, 0)) > 0;)
      answer.append(piece, static_cast<size_t>(n));
    return answer;
  }

 private:
  FILE* out_ = nullptr;
  int pid_ = 0;
  uint16_t port_ = 0;
};

TEST_F(CliMountTest, ServesTheMetricsWhileTheDaemonComesAndGoes) {
  store_entries(3);
  const Listener listener(mount().root());
  const std::string file = mount().root() + "/.kvcachefs/metrics";
  EXPECT_TRUE(eventually([&] {  // a second may pass between the two
    const std::string answer = listener.get();
    const size_t body = answer.find("\r\n\r\n");
    return answer.starts_with("HTTP/1.1 200 ") && answer.substr(body + 4) == read_file(file);
  })) << listener.get();
  EXPECT_THAT(listener.get("/stats"), StartsWith("HTTP/1.1 404 "));
  mount().kill();
  const std::string gone = listener.get();
  EXPECT_THAT(gone, StartsWith("HTTP/1.1 503 "));
  EXPECT_TRUE(gone.ends_with("\r\n\r\nthe daemon of " + mount().root() + " is gone\n")) << gone;
  Mount next({.mount_point = mount().root(), .runtime_dir = mount().runtime_dir()});
  const std::string back = listener.get();
  EXPECT_THAT(back, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(back, HasSubstr("kvcachefs_entries{pool=\"p\"} 0\n"));
  next.stop();
}

TEST_F(CliMountTest, WritesTheMetricsForACollector) {
  const std::string file = mount().runtime_dir() + "/kv.prom";
  const Outcome outcome = cli({"metrics", "--textfile", file});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_THAT(read_file(file), HasSubstr("\nkvcachefs_size_bytes{pool=\"p\"} 67108864\n"));
  mount().kill();
  EXPECT_EQ(cli({"metrics", "--textfile", file}).exit_code, 3);
  EXPECT_FALSE(exists(file));
}

// Requests that a stopped daemon has not taken wait in the kernel.
TEST_F(CliMountTest, NoMetricsWhileTheDaemonHangs) {
  mount().stop_killing();
  const Listener listener(mount().root());
  const std::string file = mount().runtime_dir() + "/kv.prom";
  Program collector(
      {"kvcachefs", "--mount", mount().root(), "metrics", "--textfile", file, "--interval", "1"});
  ASSERT_TRUE(eventually([&] { return exists(file); }));
  ASSERT_THAT(listener.get(), StartsWith("HTTP/1.1 200 "));
  const pid_t processes[] = {mount().pid(), mount().server_pid()};
  for (const pid_t process : processes) ASSERT_EQ(stop_process(process), 0);
  std::string waiting;
  for (int i = 0; i < 3; ++i) {
    const std::string answer = listener.get();
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 503 "));
    EXPECT_TRUE(answer.ends_with("the daemon of " + mount().root() + " does not answer\n")) << answer;
    if (i == 0) waiting = listener.children();
    EXPECT_EQ(listener.children(), waiting);
  }
  EXPECT_EQ(std::ranges::count(waiting, ' '), 1) << waiting;
  EXPECT_TRUE(eventually([&] { return !exists(file); }));
  for (const pid_t process : processes) ASSERT_EQ(::kill(process, SIGCONT), 0);
  EXPECT_TRUE(eventually([&] { return listener.get().starts_with("HTTP/1.1 200 "); }));
  EXPECT_TRUE(eventually([&] { return exists(file); }));
  EXPECT_EQ(listener.children(), "");
}

// No signal ends a call whose request the daemon has taken.
TEST_F(CliMountTest, ATextfileGoesWhileARequestHangs) {
  const std::string faults = "/tmp/kv-fault-" + std::to_string(::getpid());
  ::setenv("KVCACHEFS_FAULT_FILE", faults.c_str(), 1);
  const std::string file = mount().runtime_dir() + "/kv.prom";
  ::unsetenv("KVCACHEFS_FAULT_FILE");
  mount().stop_killing();
  write_file(file, "old\n");
  ASSERT_EQ(store(faults, "pause request begun 15\n"), 0);  // FUSE_READ
  const Outcome outcome = cli({"metrics", "--textfile", file});
  EXPECT_TRUE(exists(faults + ".paused"));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.error, "kvcachefs: the daemon of " + mount().root() + " does not answer\n");
  EXPECT_FALSE(exists(file));
  (void)::unlink((faults + ".paused").c_str());
  EXPECT_EQ(cli({"metrics", "--textfile", file}).exit_code, 0);
  ::unlink(faults.c_str());
}

TEST_F(CliMountTest, TheCountersEndWithTheirReader) {
  const std::string tool = "'" + program_path("kvcachefs") + "' --mount '" + mount().root() + "' ";
  // The reader goes after the first line; the tool then waits for a day.
  const Outcome outcome =
      run({"/bin/bash", "-c", tool + "stats p --watch 86400 --json | head -n 1; echo ${PIPESTATUS[0]}"});
  EXPECT_THAT(outcome.out, StartsWith("{\"time_s\":"));
  EXPECT_TRUE(outcome.out.ends_with("}\n141\n")) << outcome.out;
  const Outcome ignored =
      run({"/bin/bash", "-c", "trap '' PIPE; (" + tool + "stats p --watch 86400; echo $? >&2) | head -n 1"});
  EXPECT_EQ(ignored.error, "kvcachefs: the output could not be written\n1\n");
}

TEST_F(CliMountTest, SaysWhenTheDaemonIsGone) {
  mount().kill();
  const Outcome outcome = cli({"status"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(outcome.error, "kvcachefs: the daemon of " + mount().root() + " is gone\n");
  EXPECT_EQ(cli({"set", "p", "size=1G"}).exit_code, 3);
  EXPECT_EQ(cli({"pin", entry(0)}).exit_code, 3);
}

}  // namespace
}  // namespace kvcachefs::test
