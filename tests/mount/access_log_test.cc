// The access log: who reads it sees what happens to entries, is kept waiting for it as long as he likes, and
// is in nobody's way.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "tests/support/faults.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::test {
namespace {

constexpr const char* kHeader = "time event pool name inode bytes tier latency_us uid thread";
constexpr const char* kAnother = "# another process serves now";

using Line = std::map<std::string, std::string>;  // its fields, by their names in the header

std::vector<std::string> split(const std::string& text, char at) {
  std::istringstream stream(text);
  std::vector<std::string> parts;
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

Line line_of(const std::string& text) {
  const auto names = split(kHeader, ' '), values = split(text, '\t');
  Line line;
  for (size_t i = 0; i < values.size() && values.size() == names.size(); ++i) line[names[i]] = values[i];
  return line;
}

size_t count_of(const std::string& what, const std::string& text) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

std::string log_of(const Mount& mount) {
  return mount.root() + "/.kvcachefs/access_log";
}

// An open of the log that never waits.
class Log {
 public:
  explicit Log(const Mount& mount) : file_(log_of(mount), O_RDONLY | O_NONBLOCK) {}

  const std::vector<std::string>& lines() {
    char bytes[1 << 16];
    for (ssize_t got = 0; (got = ::read(file_.fd(), bytes, sizeof bytes)) > 0;)
      for (text_.append(bytes, static_cast<size_t>(got)); text_.contains('\n');) {
        lines_.push_back(text_.substr(0, text_.find('\n')));
        text_.erase(0, lines_.back().size() + 1);
      }
    return lines_;
  }
  // The next line of the event, after what earlier calls have found; empty at a deadline.
  Line next(const std::string& event) {
    Line found;
    EXPECT_TRUE(eventually([&] {
      for (lines(); seen_ < lines_.size(); ++seen_)
        if (found = line_of(lines_[seen_]); found["event"] == event) return ++seen_, true;
      return false;
    })) << "no "
        << event << " among " << lines_.size() << " lines";
    return found;
  }
  int fd() const { return file_.fd(); }

 private:
  File file_;
  std::string text_;
  std::vector<std::string> lines_;
  size_t seen_ = 0;
};

// cat(1) of the log, as the administrator runs it.
class Cat {
 public:
  explicit Cat(const Mount& mount) : out_("/tmp/kv-cat-" + std::to_string(::getpid())) {
    const File out(out_, O_CREAT | O_TRUNC | O_WRONLY);
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::dup2(out.fd(), 1);
    ::execlp("cat", "cat", log_of(mount).c_str(), nullptr);
    ::_exit(127);
  }
  ~Cat() {
    ::unlink(out_.c_str());
    if (status_) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Cat(const Cat&) = delete;
  Cat& operator=(const Cat&) = delete;
  pid_t pid() const { return pid_; }
  bool shows(const std::string& text) {
    return eventually([&] { return read_file(out_).contains(text); });
  }
  std::string text() const { return read_file(out_); }
  // True while it has all that there is and waits for more in read(2).
  bool waits() const {
    return eventually(
        [&] { return read_file("/proc/" + std::to_string(pid_) + "/syscall").starts_with("0 "); });
  }
  // The status of waitpid(2); none while it runs on.
  std::optional<int> ended(std::chrono::milliseconds deadline = std::chrono::seconds(30)) {
    int status = 0;
    if (!status_ && eventually([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; }, deadline))
      status_ = status;
    return status_;
  }

 private:
  std::string out_;
  pid_t pid_ = -1;
  std::optional<int> status_;
};

class AccessLogTest : public SharedMount<AccessLogTest> {
 protected:
  static int64_t number(Line& line, const std::string& field) {
    EXPECT_TRUE(!line[field].empty() && line[field].find_first_not_of("0123456789") == std::string::npos)
        << field << " is '" << line[field] << "'";
    return std::atoll(line[field].c_str());
  }
  static void took_a_while(Line& line) { EXPECT_LT(number(line, "latency_us"), 60'000'000); }
};

TEST_F(AccessLogTest, EachEventHasALine) {
  Log log(mount());
  const std::string content(100'000, 'x');
  std::optional<File> file(std::in_place, path("a.tmp"), O_CREAT | O_WRONLY);
  struct stat status {};
  ASSERT_EQ(::fstat(file->fd(), &status), 0);
  Line line = log.next("create");
  EXPECT_EQ(log.lines().front(), kHeader);
  EXPECT_EQ(line["pool"], "p");
  EXPECT_EQ(line["name"], "a.tmp");
  EXPECT_EQ(number(line, "inode"), static_cast<int64_t>(status.st_ino & ((uint64_t{1} << 48) - 1)));
  EXPECT_EQ(number(line, "uid"), 0);
  EXPECT_EQ(number(line, "thread"), ::gettid());
  took_a_while(line);
  ASSERT_EQ(::write(file->fd(), content.data(), content.size()), static_cast<ssize_t>(content.size()));
  file.reset();
  line = log.next("store");
  EXPECT_EQ(line["name"], "a.tmp");
  EXPECT_EQ(number(line, "bytes"), 102'400) << "whole pages";
  EXPECT_EQ(line["tier"], "dirty");
  EXPECT_EQ(line["uid"], "-");
  took_a_while(line);
  ASSERT_EQ(::rename(path("a.tmp").c_str(), path("a").c_str()), 0);
  line = log.next("rename");
  EXPECT_EQ(line["name"], "a");
  took_a_while(line);
  EXPECT_EQ(read_file(path("a")), content);
  line = log.next("open");
  EXPECT_EQ(line["name"], "a");
  EXPECT_EQ(number(line, "uid"), 0);
  EXPECT_EQ(number(line, "thread"), ::gettid());
  EXPECT_EQ(number(line, "bytes"), 102'400);
  took_a_while(line);
  make_directory(path("directory"));
  write_file(path("directory/a\nb\\c"), "content");
  ASSERT_EQ(::unlink(path("directory/a\nb\\c").c_str()), 0);
  line = log.next("remove");
  EXPECT_EQ(line["name"], "directory/a\\nb\\\\c");
  took_a_while(line);
  ASSERT_TRUE(all_closed(mount()));
  ASSERT_EQ(write_once(mount().control("evict"), "100%"), 0);
  line = log.next("discard");
  EXPECT_EQ(line["name"], "a") << "of a pool without a disk tier nothing else has it";
  took_a_while(line);
  const std::string time = line["time"];
  ASSERT_EQ(time.size(), std::string("2026-01-01T00:00:00.000000Z").size()) << time;
  EXPECT_EQ(time[10], 'T');
  EXPECT_EQ(time.back(), 'Z');
}

constexpr int kOpens = 70'000;  // more than the log keeps

int64_t resident_bytes(pid_t process) {
  return std::stoll(split(read_file("/proc/" + std::to_string(process) + "/statm"), ' ').at(1)) * 4096;
}

TEST_F(AccessLogTest, WhoReadsTooSlowlyIsToldWhatHeLost) {
  if (servers_are_killed()) GTEST_SKIP() << "the log begins anew with each process";
  write_file(path("a"), "content");
  const int64_t before = resident_bytes(mount().server_pid());
  Log log(mount());
  for (int i = 0; i < kOpens; ++i) ASSERT_GE(File(path("a"), O_RDONLY).fd(), 0);
  EXPECT_LT(resident_bytes(mount().server_pid()) - before, 32 << 20);
  int opens = 0;
  int64_t lost = 0;
  EXPECT_TRUE(eventually([&] {
    opens = 0;
    for (const std::string& line : log.lines()) {
      opens += line.contains("\topen\tp\ta\t") ? 1 : 0;
      if (line.contains(" events are lost")) lost = std::atoll(line.c_str() + 2);
    }
    return lost + opens >= kOpens;
  })) << lost
      << " lost, " << opens << " read";
  EXPECT_GT(lost, 0);
  EXPECT_GT(opens, 1 << 15);
}

TEST_F(AccessLogTest, OnlySoManyReadItAtOnce) {
  // The kernel tells of a close a little later: those of the test before may count still.
  std::vector<UniqueFd> logs;
  ASSERT_TRUE(eventually([&] {
    if (const int next = ::open(log_of(mount()).c_str(), O_RDONLY); next >= 0) logs.emplace_back(next);
    return logs.size() == 8;
  }));
  EXPECT_EQ(error_name(error_of(::open(log_of(mount()).c_str(), O_RDONLY))), "EMFILE");
  EXPECT_TRUE(eventually([] { return mount().log().contains("access_log: 8 are open already"); }));
  logs.pop_back();
  EXPECT_TRUE(eventually([&] {
    const int again = ::open(log_of(mount()).c_str(), O_RDONLY);
    return again >= 0 && ::close(again) == 0;
  }));
}

TEST_F(AccessLogTest, APoolMayGoMeanwhile) {
  Log log(mount());
  const std::string pool = mount().root() + "/other";
  make_directory(pool);
  write_file(pool + "/a", "content");
  EXPECT_EQ(log.next("store")["pool"], "other");
  write_file(pool + "/b", "content");
  ASSERT_EQ(::unlink((pool + "/a").c_str()), 0);
  ASSERT_EQ(::unlink((pool + "/b").c_str()), 0);
  ASSERT_EQ(::rmdir(pool.c_str()), 0);
  EXPECT_EQ(log.next("remove")["name"], "a");
  EXPECT_EQ(log.next("remove")["name"], "b");
}

TEST_F(AccessLogTest, ItIsTheAdministratorsAndIsNotWritten) {
  struct stat status {};
  ASSERT_EQ(::stat(log_of(mount()).c_str(), &status), 0);
  EXPECT_EQ(status.st_mode, S_IFREG | 0400u);
  EXPECT_EQ(
      error_name(as_user(65534, 65534, [] { return error_of(::open(log_of(mount()).c_str(), O_RDONLY)); })),
      "EACCES");
  EXPECT_EQ(error_name(write_once(log_of(mount()), "text")), "EACCES");
}

TEST_F(AccessLogTest, WithoutEventsAReadThatMayNotWaitFails) {
  Log log(mount());
  EXPECT_EQ(log.lines(), std::vector<std::string>{kHeader});
  char byte = 0;
  EXPECT_EQ(error_name(error_of(::read(log.fd(), &byte, 1))), "EAGAIN");
  EXPECT_EQ(error_name(error_of(::lseek(log.fd(), 0, SEEK_END))), "ESPIPE");
}

// The thread that a request comes to has to answer it.
TEST_F(AccessLogTest, OverIoUringAReadGivesWhatIsThere) {
  if (mode() != Mode::kIoUring) GTEST_SKIP() << "of io_uring alone";
  const File log(log_of(mount()), O_RDONLY);
  std::string text(4096, '\0');
  const auto read = [&] {
    const ssize_t got = ::read(log.fd(), text.data(), text.size());
    return got < 0 ? "error" : text.substr(0, static_cast<size_t>(got));
  };
  EXPECT_EQ(read(), std::string(kHeader) + "\n");
  EXPECT_EQ(read(), "");
  write_file(path("a"), "content");
  EXPECT_TRUE(read().contains("\tcreate\tp\ta\t"));
}

// In each a mount of its own, which ends.
class WaitingForTheLogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    KVCACHEFS_NEED_DAEMON();
    if (mode() == Mode::kIoUring) GTEST_SKIP() << "no read waits over io_uring";
    mount_.emplace(MountOptions{.options = {"hang_after=1"}});
    cat_.emplace(*mount_);
    ASSERT_TRUE(cat_->shows(kHeader));
  }
  void TearDown() override {
    if (mount_ && HasFailure()) report_daemon_log(*mount_);
  }
  void store_and_see(const std::string& name) {
    EXPECT_EQ(error_name(store(mount_->path() + "/" + name, "content")), "ok");
    EXPECT_TRUE(cat_->shows("\tp\t" + name + "\t")) << cat_->text();
  }

  std::optional<Mount> mount_;
  std::optional<Cat> cat_;
};

TEST_F(WaitingForTheLogTest, WhatHappensIsShownAtOnce) {
  for (const char* name : {"a", "b", "c"}) {
    ASSERT_TRUE(cat_->waits());
    store_and_see(name);
  }
}

TEST_F(WaitingForTheLogTest, ASignalEndsIt) {
  ASSERT_TRUE(cat_->waits());
  ASSERT_EQ(::kill(cat_->pid(), SIGINT), 0);
  const auto status = cat_->ended();
  ASSERT_TRUE(status);
  EXPECT_TRUE(WIFSIGNALED(*status) && WTERMSIG(*status) == SIGINT) << *status;
}

TEST_F(WaitingForTheLogTest, WhoStopsAndGoesOnMissesNothing) {
  ASSERT_TRUE(cat_->waits());
  ASSERT_EQ(::kill(cat_->pid(), SIGSTOP), 0);
  ASSERT_TRUE(eventually(
      [&] { return read_file("/proc/" + std::to_string(cat_->pid()) + "/stat").contains(") T "); }));
  ASSERT_EQ(error_name(store(mount_->path() + "/a", "content")), "ok");
  ASSERT_EQ(::kill(cat_->pid(), SIGCONT), 0);
  EXPECT_TRUE(cat_->shows("\tp\ta\t"));
}

TEST_F(WaitingForTheLogTest, AReadThatWaitsIsNoHang) {
  ASSERT_TRUE(cat_->waits());
  const pid_t serving = mount_->serving_pid();
  EXPECT_FALSE(eventually([&] { return mount_->serving_pid() != serving; }, std::chrono::seconds(4)));
  store_and_see("a");
}

TEST_F(WaitingForTheLogTest, ItGoesOnWithTheNextProcess) {
  size_t others = 0;
  for (const char* name : {"a", "b"}) {
    ASSERT_TRUE(cat_->waits());
    const pid_t before = mount_->serving_pid();
    ASSERT_EQ(::kill(before, SIGKILL), 0);
    ASSERT_TRUE(eventually([&] { return mount_->serving_pid() > 0 && mount_->serving_pid() != before; }));
    ++others;
    ASSERT_TRUE(eventually([&] { return count_of(kAnother, cat_->text()) == others; })) << cat_->text();
    store_and_see(name);
  }
  EXPECT_FALSE(cat_->ended(std::chrono::milliseconds(0)));
}

TEST_F(WaitingForTheLogTest, TheEndOfTheMountIsItsEnd) {
  ASSERT_TRUE(cat_->waits());
  mount_->stop();
  const auto status = cat_->ended();
  ASSERT_TRUE(status);
  EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0) << *status;
}

class AccessLogOfADiskTest : public FaultedTierTest {};

// The kernel warns of a process that sleeps uninterruptibly for two minutes.
TEST_F(AccessLogOfADiskTest, NoReadWaitsForLong) {
  start();
  arm("failing log read waits 200\n");
  Cat cat(mount());
  EXPECT_TRUE(cat.shows("# nothing has happened for a while\n"));
  EXPECT_EQ(error_name(store(path("a"), "content")), "ok");
  EXPECT_TRUE(cat.shows("\tp\ta\t")) << "and it goes on";
}

TEST_F(AccessLogOfADiskTest, WhatMovesHasALine) {
  start();
  Log log(mount());
  write_file(path("a"), std::string(kMiB, 'x'));
  Line spilled = log.next("spill");
  make_all_cold();
  Line evicted = log.next("evict");
  EXPECT_EQ(read_file(path("a")).size(), kMiB);
  Line promoted = log.next("promote");
  Line opened = log.next("open");
  for (Line* line : {&spilled, &evicted, &promoted, &opened}) {
    EXPECT_EQ((*line)["name"], "a");
    EXPECT_EQ((*line)["bytes"], std::to_string(kMiB)) << (*line)["event"];
    EXPECT_GT(std::atoll((*line)["latency_us"].c_str()), 0) << (*line)["event"];
  }
  EXPECT_EQ(opened["tier"], "cold") << "it was when it was asked for";
  EXPECT_GE(std::atoll(opened["latency_us"].c_str()), std::atoll(promoted["latency_us"].c_str()));
  EXPECT_EQ(opened["thread"], std::to_string(::gettid()));
  EXPECT_EQ(promoted["thread"], "-");
}

}  // namespace
}  // namespace kvcachefs::test
