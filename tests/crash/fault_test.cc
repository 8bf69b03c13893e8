// The serving process aborts at a place that the test names (base/fault_point.h): at the beginning, before
// the answer and at the end of each kind of request, and at each step of a takeover, of a copy to the disk
// and of a promotion. The client must see the results that it would have seen without the death. Everything
// stored must be there and right, in memory and, as `kvcachefs check` finds, on the disk.
#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/fuse.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/support/faults.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

namespace kvcachefs::test {
namespace {

using ::testing::StartsWith;

// The linux/fuse.h of Debian 12 lacks these.
constexpr uint32_t kTmpfile = 51, kCopyFileRange64 = 53;

// Linux 6.18 sends another request for a copy.
uint32_t copy_opcode() {
  struct utsname system {};
  int major = 0, minor = 0;
  (void)::uname(&system);
  (void)std::sscanf(system.release, "%d.%d", &major, &minor);
  return std::pair(major, minor) < std::pair(6, 18) ? uint32_t{FUSE_COPY_FILE_RANGE} : kCopyFileRange64;
}

struct Request {
  const char* name;
  uint32_t opcode;
  bool answers_alike = true;  // the request comes by about_to_answer()
  bool in_daemon_io_only = false;
};

const std::vector<Request>& requests() {
  static const std::vector<Request> all = {{"lookup", FUSE_LOOKUP},
                                           {"forget", FUSE_FORGET, false},
                                           {"getattr", FUSE_GETATTR},
                                           {"setattr", FUSE_SETATTR},
                                           {"readlink", FUSE_READLINK, false},
                                           {"symlink", FUSE_SYMLINK},
                                           {"mknod", FUSE_MKNOD},
                                           {"mkdir", FUSE_MKDIR},
                                           {"unlink", FUSE_UNLINK},
                                           {"rmdir", FUSE_RMDIR},
                                           {"link", FUSE_LINK},
                                           {"open", FUSE_OPEN},
                                           {"read", FUSE_READ, false, true},
                                           {"write", FUSE_WRITE, true, true},
                                           {"statfs", FUSE_STATFS, false},
                                           {"release", FUSE_RELEASE, false},
                                           {"fsync", FUSE_FSYNC, false},  // the thread that commits answers
                                           {"setxattr", FUSE_SETXATTR},
                                           {"getxattr", FUSE_GETXATTR, false},
                                           {"listxattr", FUSE_LISTXATTR, false},
                                           {"removexattr", FUSE_REMOVEXATTR},
                                           {"flush", FUSE_FLUSH},
                                           {"opendir", FUSE_OPENDIR, false},
                                           {"releasedir", FUSE_RELEASEDIR, false},
                                           {"fsyncdir", FUSE_FSYNCDIR, false},
                                           {"create", FUSE_CREATE},
                                           {"fallocate", FUSE_FALLOCATE},
                                           {"readdirplus", FUSE_READDIRPLUS, false},
                                           {"rename", FUSE_RENAME2},
                                           {"lseek", FUSE_LSEEK, false},
                                           {"copy_file_range", copy_opcode()},
                                           {"tmpfile", kTmpfile}};
  return all;
}

// A Life makes every kind of request in a fresh directory and notes the result of each call.
class Life {
 public:
  explicit Life(std::string root) : root_(std::move(root)) {}

  std::vector<std::string> live() {
    say("mkdir", ::mkdir(root_.c_str(), 0755));
    make();
    change();
    move();
    const struct statvfs space = space_of(root_);
    said_.push_back("block size " + std::to_string(space.f_bsize));
    said_.push_back("listed " + listing());
    remove();
    return said_;
  }

 private:
  std::string at(const char* name) const { return root_ + "/" + name; }
  void say(const std::string& call, long result) {
    said_.push_back(call + ": " + error_name(error_of(result)));
  }
  void show(const std::string& what, const std::string& text) { said_.push_back(what + " is " + text); }
  static struct statvfs space_of(const std::string& path) {
    struct statvfs space {};
    (void)::statvfs(path.c_str(), &space);
    return space;
  }
  std::string listing() const {
    std::string text;
    for (const std::string& name : list(root_)) text += name + " ";
    return text;
  }
  std::string shape(const char* name) const {
    struct stat status {};
    if (::lstat(at(name).c_str(), &status) != 0) return error_name(errno);
    return std::to_string(status.st_mode) + ", " + std::to_string(status.st_nlink) + " links, " +
           std::to_string(status.st_size) + " bytes";
  }

  void make() {
    say("look for nothing", ::access(at("nothing").c_str(), F_OK));
    say("mknod", ::mknod(at("node").c_str(), S_IFREG | 0644, 0));
    say("mknod again", ::mknod(at("node").c_str(), S_IFREG | 0644, 0));
    say("pipe", ::mkfifo(at("pipe").c_str(), 0600));
    say("symlink", ::symlink("file", at("link").c_str()));
    char target[16] = {};
    say("readlink", ::readlink(at("link").c_str(), target, sizeof target) > 0 ? 0 : -1);
    show("link", target);
    const File file(::open(at("file").c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0640));
    say("create", file.fd());
    say("write", ::write(file.fd(), "0123456789", 10) == 10 ? 0 : -1);
    say("fsync", ::fsync(file.fd()));
    say("fallocate", ::fallocate(file.fd(), 0, 0, 100'000));
    say("punch", ::fallocate(file.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 65536));
    show("hole", std::to_string(::lseek(file.fd(), 0, SEEK_HOLE)));
    const File copy(::open(at("copy").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    loff_t from = 2, to = 1;
    say("copy", ::copy_file_range(file.fd(), &from, copy.fd(), &to, 5, 0) == 5 ? 0 : -1);
    show("copy", read_at(copy.fd(), 1, 100));
    const File nameless(::open(root_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0644));
    say("tmpfile", nameless.fd());
    say("write", ::write(nameless.fd(), "nameless", 8) == 8 ? 0 : -1);
    say("name", ::linkat(AT_FDCWD, ("/proc/self/fd/" + std::to_string(nameless.fd())).c_str(), AT_FDCWD,
                         at("named").c_str(), AT_SYMLINK_FOLLOW));
    show("nameless", read_at(nameless.fd(), 0, 100));
    struct stat status {};
    say("fstat", ::fstat(nameless.fd(), &status));
    show("its size", std::to_string(status.st_size));
    const File directory(::open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    say("fsync of the directory", ::fsync(directory.fd()));
  }

  void change() {
    say("truncate", ::truncate(at("file").c_str(), 70'000));
    say("chmod", ::chmod(at("file").c_str(), 0600));
    say("setxattr", ::setxattr(at("file").c_str(), "user.a", "b", 1, XATTR_CREATE));
    say("setxattr again", ::setxattr(at("file").c_str(), "user.a", "c", 1, XATTR_CREATE));
    show("xattr", xattr(at("file"), "user.a"));
    say("second", ::setxattr(at("file").c_str(), "user.b", "c", 1, 0));
    char names[64] = {};
    show("names", std::to_string(::listxattr(at("file").c_str(), names, sizeof names)));
    say("removexattr", ::removexattr(at("file").c_str(), "user.b"));
    say("removexattr again", ::removexattr(at("file").c_str(), "user.b"));
    show("file", shape("file") + ": " + read_file(at("file")).substr(0, 12));
    show("named", shape("named") + ": " + read_file(at("named")));
  }

  void move() {
    say("link", ::link(at("file").c_str(), at("other").c_str()));
    say("link again", ::link(at("file").c_str(), at("other").c_str()));
    say("rename", ::rename(at("named").c_str(), at("renamed").c_str()));
    say("rename again", ::rename(at("named").c_str(), at("renamed").c_str()));
    say("exchange",
        ::renameat2(AT_FDCWD, at("renamed").c_str(), AT_FDCWD, at("other").c_str(), RENAME_EXCHANGE));
    show("other", read_file(at("other")));
    show("renamed", shape("renamed"));
  }

  void remove() {
    say("mkdir", ::mkdir(at("inner").c_str(), 0700));
    say("rmdir of what is full", ::rmdir(root_.c_str()));
    for (const char* name : {"node", "pipe", "link", "file", "copy", "other", "renamed"})
      say("unlink", ::unlink(at(name).c_str()));
    say("unlink again", ::unlink(at("file").c_str()));
    say("rmdir", ::rmdir(at("inner").c_str()));
    say("rmdir again", ::rmdir(at("inner").c_str()));
    say("rmdir", ::rmdir(root_.c_str()));
  }

  const std::string root_;
  std::vector<std::string> said_;
};

class FaultTest : public FaultedTierTest {
 protected:
  std::vector<std::string> live() { return Life(path("life-" + std::to_string(lives_++))).live(); }
  void live_as(const std::vector<std::string>& usual) {
    const std::vector<std::string> said = live();
    const auto [odd, expected] = std::ranges::mismatch(said, usual);
    if (odd != said.end() || expected != usual.end())
      ADD_FAILURE() << (odd == said.end() ? "nothing" : *odd) << ", not "
                    << (expected == usual.end() ? "nothing" : *expected);
  }
  // The supervisor gives up after ten servers in a row that died within moments of their start.
  void live_for_a_moment(const std::vector<std::string>& usual) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(60);
    while (std::chrono::steady_clock::now() < end && !HasFailure()) live_as(usual);
  }

 private:
  int lives_ = 0;
};

TEST_F(FaultTest, InEveryRequest) {
  start({.size = "64M"});
  add("e", 4);
  const std::vector<std::string> usual = live();
  live_as(usual);
  for (const Request& request : requests()) {
    if (request.in_daemon_io_only && mode() != Mode::kDaemonIo) continue;
    for (const char* stage : {"request begun", "request done", "request answered"}) {
      if (!request.answers_alike && std::string_view(stage) == "request done") continue;
      SCOPED_TRACE(std::string(request.name) + ": " + stage);
      const std::string place = std::string(stage) + " " + std::to_string(request.opcode);
      die_at(place, [&] { live_as(usual); });
      live_for_a_moment(usual);
      if (HasFailure()) return;
    }
  }
  EXPECT_TRUE(becomes("open_entries", 0));
  EXPECT_EQ(list(mount().path()).size(), 4u);
  check_all();
}

TEST_F(FaultTest, InATakeover) {
  start();
  add("e", 12);
  make_all_cold();
  File open(path("e-0"), O_RDONLY);
  File gone(path("gone"), O_RDWR | O_CREAT);
  ASSERT_EQ(::write(gone.fd(), "gone", 4), 4);
  ASSERT_EQ(::unlink(path("gone").c_str()), 0);
  int round = 0;
  for (const char* places :
       {"taken over", "adopted nameless", "adopted the tree", "claimed what the disk has", "pools adopted",
        "resumed", "pause disk flushed\nmade up for the catalog",
        "disk flushed\nclaimed what the disk has\nresumed"}) {
    SCOPED_TRACE(places);
    die_at(places, [&] {
      add("more-" + std::to_string(++round), 2);
      if (std::string_view(places).starts_with("pause")) {  // the catalog has not got the directory yet
        ASSERT_EQ(::mkdir(path("directory").c_str(), 0755), 0);
        ASSERT_TRUE(eventually([&] { return exists(fault_file() + ".paused"); }));
      }
      if (!std::string_view(places).starts_with("disk")) kill_server();
      expect_whole();
    });
    (void)::rmdir(path("directory").c_str());
    EXPECT_EQ(read_at(gone.fd(), 0, 10), "gone");
    EXPECT_EQ(difference(0, read_at(open.fd(), 0, kMiB)), "");
    if (HasFailure()) return;
  }
  open.close();
  gone.close();
  check_all();
}

TEST_F(FaultTest, OnTheWayToTheDiskAndBack) {
  start();
  int round = 0;
  for (const char* place :
       {"copied to the disk", "marked clean", "disk flushed", "catalog committed", "marked cold",
        "pages dropped", "promotion begun", "copied from the disk", "marked promoted"}) {
    SCOPED_TRACE(place);
    die_at(place, [&] {
      add("e-" + std::to_string(++round), 8);
      EXPECT_TRUE(becomes("dirty_entries", 0));
      order(mount(), "100%");
      expect_whole();
    });
    expect_whole();
    if (HasFailure()) return;
  }
  check_all();
}

TEST_F(FaultTest, WhereEntriesAreDiscarded) {
  start_pool("p:size=16M");
  std::vector<std::string> names;
  die_at("name discarded", [&] { names = fill_pool("e", 40); });
  const int whole = check_whole(names);
  EXPECT_GE(whole, 8);
  EXPECT_LE(whole, 16);
  EXPECT_EQ(static_cast<int>(survivors(names).size()), whole);
  EXPECT_EQ(list(mount().path()).size(), static_cast<size_t>(whole));
}

// A copy of the serving process's descriptors, even for a moment, would keep the lease of an entry that is
// evicted then.
TEST_F(FaultTest, WhoAsksTheNextProgramHasNoDescriptorOfThisOne) {
  start();
  const std::string paused = fault_file() + ".paused";
  arm("pause asked whether it could succeed");
  std::thread upgrade([&] {
    const Outcome outcome = run({"kvcachefs", "--mount", mount().root(), "upgrade"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  });
  EXPECT_TRUE(eventually([&] { return exists(paused); }));
  const std::string supervisor = std::to_string(mount().pid());
  std::istringstream children(read_file("/proc/" + supervisor + "/task/" + supervisor + "/children"));
  int asked = 0;
  for (pid_t child = 0; children >> child;) {
    if (child == mount().serving_pid()) continue;
    ++asked;
    const std::string descriptors = "/proc/" + std::to_string(child) + "/fd";
    EXPECT_EQ(list(descriptors), (std::vector<std::string>{"0", "1", "2", "3"}));
    // It reads what it would go on with, by an open of its own.
    EXPECT_THAT(std::filesystem::read_symlink(descriptors + "/3").string(), StartsWith("/memfd:kvcachefs"));
  }
  EXPECT_EQ(asked, 1);
  ::unlink(paused.c_str());
  upgrade.join();
}

// The process dies between an entry's last close and the call that gives its backing id back. Meanwhile the
// entry was opened again with another id: if the successor took the first id, each open would be refused.
TEST_F(FaultTest, AnEntryThatIsOpenedAnewBeforeItsBackingIsGivenBack) {
  start();
  add("e", 2);
  const std::string paused = fault_file() + ".paused";
  // The first file's place is free for the second open of the other file.
  File first(path("e-0"), O_RDONLY);
  File last(path("e-1"), O_RDONLY);
  first.close();
  EXPECT_TRUE(becomes("open_entries", 1));
  arm("pause last open ended");
  last.close();
  EXPECT_TRUE(eventually([&] { return exists(paused); }));
  const File again(path("e-1"), O_RDONLY);
  replace_server();
  ::unlink(paused.c_str());
  EXPECT_EQ(difference(1, read_at(again.fd(), 0, kMiB)), "");
  expect_whole();
  EXPECT_EQ(stat("open_entries"), 1);
}

// Each of an open's two tries finds the name, and the file is replaced before it is opened.
TEST_F(FaultTest, AnOpenWhoseFileIsReplacedTwice) {
  start();
  const std::string paused = fault_file() + ".paused";
  const std::string pause = "pause request begun " + std::to_string(FUSE_OPEN);
  for (const int flags : {O_RDONLY, O_WRONLY | O_CREAT}) {
    for (const int seed : {0, 1, 2})
      ASSERT_EQ(store(path("e-" + std::to_string(seed)), pattern(seed, kMiB)), 0);
    arm(pause + "\n" + pause);
    std::thread client([&] {
      const int fd = ::open(path("e-0").c_str(), flags | O_CLOEXEC, 0644);
      EXPECT_GE(fd, 0) << error_name(errno);
      ::close(fd);
    });
    for (const char* const name : {"e-1", "e-2"}) {
      EXPECT_TRUE(eventually([&] { return exists(paused); }));
      EXPECT_EQ(error_name(error_of(::rename(path(name).c_str(), path("e-0").c_str()))), "ok");
      ::unlink(paused.c_str());
    }
    client.join();
    EXPECT_EQ(difference(2, read_file(path("e-0"))), "");
    EXPECT_TRUE(becomes("open_entries", 0));
    EXPECT_EQ(stat("entries"), 1);
  }
}

}  // namespace
}  // namespace kvcachefs::test
