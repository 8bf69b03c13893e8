// Attributes: modes, owners, permission checks, times, extended attributes, statfs.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <set>
#include <sstream>
#include <string>

#include "tests/support/transcript.h"

namespace kvcachefs::test {
namespace {

constexpr uid_t kUser = 1234;
constexpr gid_t kGroup = 2345;

struct stat status_of(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) ADD_FAILURE() << path << ": " << error_name(error_of(-1));
  return status;
}

bool before(const timespec& a, const timespec& b) {
  return a.tv_sec != b.tv_sec ? a.tv_sec < b.tv_sec : a.tv_nsec < b.tv_nsec;
}

PARITY_TEST(ModesAndMask) {
  const mode_t old_mask = ::umask(027);
  write_file(directory + "/file", "x", 0666);
  make_directory(directory + "/d", 0777);
  transcript.call("mkfifo", ::mkfifo((directory + "/pipe").c_str(), 0666));
  const File temporary(directory, O_RDWR | O_TMPFILE, 0666);
  struct stat status {};
  transcript.call("fstat", ::fstat(temporary.fd(), &status));
  ::umask(old_mask);
  transcript.note("O_TMPFILE", static_cast<long>(status.st_mode));
  for (const std::string name : {"/file", "/d", "/pipe"}) transcript.status(name, directory + name);
  for (const mode_t mode : {0600, 0, 01777, 0444}) {
    transcript.call("chmod", ::chmod((directory + "/file").c_str(), mode));
    transcript.status("file", directory + "/file");
    transcript.call("chmod", ::chmod((directory + "/d").c_str(), mode));
    transcript.status("d", directory + "/d");
  }
}

PARITY_TEST(OwnersOfTheCaller) {
  ASSERT_EQ(::chmod(directory.c_str(), 0777), 0);
  transcript.note("child", as_user(kUser, kGroup, [&] {
                    write_file(directory + "/file", "x");
                    make_directory(directory + "/d");
                    return error_of(::symlink("x", (directory + "/link").c_str())) +
                           error_of(::mkfifo((directory + "/pipe").c_str(), 0644));
                  }));
  for (const std::string name : {"/file", "/d", "/link", "/pipe"}) transcript.status(name, directory + name);
  EXPECT_EQ(status_of(directory + "/file").st_uid, kUser);
  EXPECT_EQ(status_of(directory + "/file").st_gid, kGroup);
  transcript.call("chown", ::chown((directory + "/file").c_str(), 77, 88));
  transcript.status("file", directory + "/file");
  transcript.call("chown of the group", ::chown((directory + "/file").c_str(), -1, 99));
  transcript.status("file", directory + "/file");
}

PARITY_TEST(ForeignFiles) {
  write_file(directory + "/file", "secret", 0600);
  make_directory(directory + "/d", 0700);
  write_file(directory + "/d/inner", "hidden", 0644);
  const std::string file = directory + "/file";
  const auto note = [&](std::string_view what, const std::function<int()>& body) {
    transcript.note(what, error_name(as_user(kUser, kGroup, body)));
  };
  note("open", [&] { return error_of(::open(file.c_str(), O_RDONLY)); });
  note("access", [&] { return error_of(::access(file.c_str(), R_OK)); });
  note("search", [&] { return error_of(::open((directory + "/d/inner").c_str(), O_RDONLY)); });
  note("chmod", [&] { return error_of(::chmod(file.c_str(), 0777)); });
  note("chown", [&] { return error_of(::chown(file.c_str(), kUser, kGroup)); });
  note("create", [&] { return error_of(::open((directory + "/x").c_str(), O_RDWR | O_CREAT, 0644)); });
  note("unlink", [&] { return error_of(::unlink(file.c_str())); });
  note("rename", [&] { return error_of(::rename(file.c_str(), (file + "2").c_str())); });
  note("truncate", [&] { return error_of(::truncate(file.c_str(), 0)); });
  note("utimensat", [&] { return error_of(::utimensat(AT_FDCWD, file.c_str(), nullptr, 0)); });
  note("setxattr", [&] { return set_xattr(file, "user.x", "y"); });
  ASSERT_EQ(::chmod(file.c_str(), 0644), 0);
  note("open of a readable one", [&] { return error_of(::open(file.c_str(), O_RDONLY)); });
  note("writing it", [&] { return error_of(::open(file.c_str(), O_WRONLY)); });
  ASSERT_EQ(::chmod(file.c_str(), 0060), 0);
  ASSERT_EQ(::chown(file.c_str(), 0, kGroup), 0);
  note("by the group", [&] { return error_of(::open(file.c_str(), O_RDWR)); });
}

PARITY_TEST(StickyDirectory) {
  ASSERT_EQ(::chmod(directory.c_str(), 01777), 0);
  write_file(directory + "/root", "x", 0666);
  const auto note = [&](std::string_view what, uid_t uid, const std::function<int()>& body) {
    transcript.note(what, error_name(as_user(uid, kGroup, body)));
  };
  note("make", kUser, [&] {
    write_file(directory + "/mine", "x");
    return 0;
  });
  note("unlink of root's", kUser, [&] { return error_of(::unlink((directory + "/root").c_str())); });
  note("rename over root's", kUser,
       [&] { return error_of(::rename((directory + "/mine").c_str(), (directory + "/root").c_str())); });
  note("unlink by another", kUser + 1, [&] { return error_of(::unlink((directory + "/mine").c_str())); });
  note("unlink of one's own", kUser, [&] { return error_of(::unlink((directory + "/mine").c_str())); });
  transcript.listing("listing", directory);
}

PARITY_TEST(SetGroupIdDirectory) {
  ASSERT_EQ(::chown(directory.c_str(), 0, 777), 0);
  ASSERT_EQ(::chmod(directory.c_str(), 02777), 0);
  transcript.note("child", as_user(kUser, kGroup, [&] {
                    write_file(directory + "/file", "x", 0664);
                    make_directory(directory + "/d", 0775);
                    make_directory(directory + "/d/deeper", 0775);
                    return error_of(::symlink("x", (directory + "/link").c_str()));
                  }));
  for (const std::string name : {"/file", "/d", "/d/deeper", "/link"}) {
    transcript.status(name, directory + name);
  }
  EXPECT_EQ(status_of(directory + "/file").st_gid, 777u);
  EXPECT_EQ(status_of(directory + "/d/deeper").st_mode & S_ISGID, S_ISGID + 0u);
}

PARITY_TEST(SetIdBitsGoWithAChangeOfOwner) {
  const std::string file = directory + "/file";
  write_file(file, "x", 0755);
  ASSERT_EQ(::chown(file.c_str(), kUser, kGroup), 0);
  transcript.call("chmod", ::chmod(file.c_str(), 06755));
  transcript.status("set", file);
  transcript.note("chown by the owner",
                  as_user(kUser, kGroup, [&] { return error_of(::chown(file.c_str(), kUser, kGroup)); }));
  transcript.status("after", file);
}

PARITY_TEST(SetIdBitsGoWhenOthersChangeTheContent) {
  const std::string file = directory + "/file";
  write_file(file, "content", 0777);
  const auto after = [&](std::string_view what, mode_t mode, const std::function<int()>& change) {
    ASSERT_EQ(::chmod(file.c_str(), mode), 0);
    transcript.note(what, as_user(kUser, kGroup, change));
    transcript.status("after it", file);
  };
  const auto write = [&] { return error_of(::pwrite(File(file, O_WRONLY).fd(), "x", 1, 0)); };
  const auto read = [&] { return error_of(::close(::open(file.c_str(), O_RDONLY))); };
  const auto truncate = [&] { return error_of(::truncate(file.c_str(), 3)); };
  after("write", 06777, write);
  EXPECT_EQ(status_of(file).st_mode & 07777, 0777u);
  after("truncate", 06777, truncate);
  EXPECT_EQ(status_of(file).st_mode & 07777, 0777u);
  after("ftruncate", 06777, [&] { return error_of(::ftruncate(File(file, O_WRONLY).fd(), 2)); });
  after("O_TRUNC", 06777, [&] { return error_of(::close(::open(file.c_str(), O_WRONLY | O_TRUNC))); });
  after("fallocate", 06777, [&] { return error_of(::fallocate(File(file, O_WRONLY).fd(), 0, 0, 100)); });
  after("read", 06777, read);
  EXPECT_EQ(status_of(file).st_mode & 07777, 06777u);
  // A file that its group may not execute keeps set-group-ID only if a member of the group writes or
  // truncates it.
  after("write where the group may not execute", 02767, write);
  EXPECT_EQ(status_of(file).st_mode & 07777, 0767u);
  after("truncate there", 02767, truncate);
  ASSERT_EQ(::chown(file.c_str(), 0, kGroup), 0);
  after("write there as a member", 02767, write);
  EXPECT_EQ(status_of(file).st_mode & 07777, 02767u);
  after("truncate there as a member", 02767, truncate);
  ASSERT_EQ(::chown(file.c_str(), 0, 0), 0);
  ASSERT_EQ(::chmod(file.c_str(), 06777), 0);
  write_file(file, "by root, who may");
  transcript.status("written by root", file);
  EXPECT_EQ(status_of(file).st_mode & 07777, 06777u);
}

PARITY_TEST(Times) {
  const std::string file = directory + "/file";
  write_file(file, "x");
  const timespec given[2] = {{1'000'000'000, 123'456'789}, {1'500'000'000, 987'654'321}};
  const auto note_times = [&](std::string_view what) {
    const struct stat status = status_of(file);
    for (const timespec& time : {status.st_atim, status.st_mtim}) {
      transcript.note(what, std::to_string(time.tv_sec) + "." + std::to_string(time.tv_nsec));
    }
  };
  transcript.call("both", ::utimensat(AT_FDCWD, file.c_str(), given, 0));
  note_times("both");
  const timespec access_only[2] = {{42, 43}, {0, UTIME_OMIT}};
  transcript.call("access", ::utimensat(AT_FDCWD, file.c_str(), access_only, 0));
  note_times("access");
  const timespec change_only[2] = {{0, UTIME_OMIT}, {44, 45}};
  transcript.call("change", ::utimensat(AT_FDCWD, file.c_str(), change_only, 0));
  note_times("change");
  const timespec neither[2] = {{0, UTIME_OMIT}, {0, UTIME_OMIT}};
  transcript.call("neither", ::utimensat(AT_FDCWD, file.c_str(), neither, 0));
  note_times("neither");
  const timespec wrong[2] = {{0, 2'000'000'000}, {0, 0}};
  transcript.call("wrong", ::utimensat(AT_FDCWD, file.c_str(), wrong, 0));
  const timespec now[2] = {{0, UTIME_NOW}, {0, UTIME_NOW}};
  transcript.call("now", ::utimensat(AT_FDCWD, file.c_str(), now, 0));
  const struct stat status = status_of(file);
  EXPECT_LE(std::abs(status.st_mtim.tv_sec - ::time(nullptr)), 60);
  const File open_file(file, O_RDWR);
  transcript.call("futimens", ::futimens(open_file.fd(), given));
  note_times("futimens");
  ASSERT_EQ(::symlink("file", (directory + "/link").c_str()), 0);
  transcript.call("of a link",
                  ::utimensat(AT_FDCWD, (directory + "/link").c_str(), given, AT_SYMLINK_NOFOLLOW));
  transcript.note("link", static_cast<long>(status_of(directory + "/link").st_mtim.tv_nsec));
}

// Which times a call moves; before each call they are set to long ago.
PARITY_TEST(TimesMoveWithChanges) {
  const std::string file = directory + "/file";
  write_file(file, "content");
  const File open_file(file, O_RDWR);
  const auto moved = [&](std::string_view what, const std::string& path,
                         const std::function<long()>& change) {
    const timespec old[2] = {{1000, 0}, {1000, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), old, AT_SYMLINK_NOFOLLOW), 0);
    const struct stat first = status_of(path);
    // Because the kernel's clock ticks every few milliseconds, the test waits for the next tick.
    ASSERT_TRUE(eventually([&] {
      timespec now{};
      ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
      return before(first.st_ctim, now);
    }));
    transcript.call(what, change());
    const struct stat second = status_of(path);
    transcript.note("mtime moved", before(first.st_mtim, second.st_mtim));
    transcript.note("ctime moved", before(first.st_ctim, second.st_ctim));
  };
  moved("write", file, [&] { return ::pwrite(open_file.fd(), "x", 1, 0); });
  moved("ftruncate", file, [&] { return ::ftruncate(open_file.fd(), 3); });
  moved("ftruncate to the same size", file, [&] { return ::ftruncate(open_file.fd(), 3); });
  moved("truncate to the same size", file, [&] { return ::truncate(file.c_str(), 3); });
  moved("chmod", file, [&] { return ::chmod(file.c_str(), 0600); });
  moved("chown", file, [&] { return ::chown(file.c_str(), 1, 1); });
  moved("link", file, [&] { return ::link(file.c_str(), (file + "2").c_str()); });
  moved("unlink of a link", file, [&] { return ::unlink((file + "2").c_str()); });
  moved("setxattr", file, [&] { return ::setxattr(file.c_str(), "user.x", "y", 1, 0); });
  moved("rename", directory, [&] { return ::rename(file.c_str(), (file + "3").c_str()); });
  moved("create", directory,
        [&] { return ::close(::open(file.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644)); });
  moved("unlink", directory, [&] { return ::unlink(file.c_str()); });
  moved("mkdir", directory, [&] { return ::mkdir((directory + "/d").c_str(), 0755); });
  moved("rmdir", directory, [&] { return ::rmdir((directory + "/d").c_str()); });
}

PARITY_TEST(ExtendedAttributes) {
  const std::string file = directory + "/file";
  write_file(file, "x");
  transcript.call("missing", ::getxattr(file.c_str(), "user.none", nullptr, 0));
  transcript.call("set", ::setxattr(file.c_str(), "user.one", "value", 5, XATTR_CREATE));
  transcript.call("CREATE again", ::setxattr(file.c_str(), "user.one", "other", 5, XATTR_CREATE));
  transcript.call("REPLACE", ::setxattr(file.c_str(), "user.one", "other!", 6, XATTR_REPLACE));
  transcript.call("REPLACE of none", ::setxattr(file.c_str(), "user.two", "x", 1, XATTR_REPLACE));
  transcript.note("value", xattr(file, "user.one"));
  transcript.call("size", ::getxattr(file.c_str(), "user.one", nullptr, 0));
  char small[3];
  transcript.call("small buffer", ::getxattr(file.c_str(), "user.one", small, sizeof(small)));
  transcript.call("empty value", ::setxattr(file.c_str(), "user.empty", "", 0, 0));
  transcript.call("get empty", ::getxattr(file.c_str(), "user.empty", nullptr, 0));
  const std::string largest = pattern(1, size_t{64} << 10);
  transcript.note("64 KiB", set_xattr(file, "user.large", largest));
  EXPECT_EQ(xattr(file, "user.large"), largest);
  transcript.note("beyond", error_name(set_xattr(file, "user.larger", largest + "x")));
  transcript.note("name of 255", set_xattr(file, "user." + std::string(250, 'n'), "x"));
  transcript.note("name of 256", error_name(set_xattr(file, "user." + std::string(251, 'n'), "x")));
  transcript.call("remove", ::removexattr(file.c_str(), "user.one"));
  transcript.call("again", ::removexattr(file.c_str(), "user.one"));
  transcript.note("on a directory", set_xattr(directory, "user.d", "x"));
  transcript.note("of a directory", xattr(directory, "user.d"));
  const File open_file(file, O_RDWR);
  transcript.call("fsetxattr", ::fsetxattr(open_file.fd(), "user.f", "abc", 3, 0));
  transcript.call("unlink", ::unlink(file.c_str()));
  transcript.call("of an unlinked one", ::fgetxattr(open_file.fd(), "user.f", small, sizeof(small)));
}

std::set<std::string> xattr_names(const std::string& path) {
  std::string buffer(size_t{1} << 16, '\0');
  const ssize_t size = ::listxattr(path.c_str(), buffer.data(), buffer.size());
  if (size < 0) return {error_name(error_of(size))};
  std::istringstream names(buffer.substr(0, size));
  std::set<std::string> found;
  for (std::string name; std::getline(names, name, '\0');) found.insert(name);
  return found;
}

PARITY_TEST(ListOfExtendedAttributes) {
  const std::string file = directory + "/file";
  write_file(file, "x");
  for (int i = 0; i < 50; ++i) ASSERT_EQ(set_xattr(file, "user.name-" + std::to_string(i), "v"), 0);
  for (const std::string& name : xattr_names(file)) {
    // The daemon may list its user.kvcachefs.* attributes in addition, and no others.
    if (!name.starts_with("user.kvcachefs.")) transcript.note("listed", name);
  }
  char small[8];
  transcript.call("small buffer", ::listxattr(file.c_str(), small, sizeof(small)));
  ASSERT_EQ(set_xattr(directory, "user.d", "v"), 0);
  for (const std::string& name : xattr_names(directory)) transcript.note("of a directory", name);
}

PARITY_TEST(StatfsFollowsWrites) {
  struct statvfs start {};
  transcript.call("statvfs", ::statvfs(directory.c_str(), &start));
  transcript.note("name limit", static_cast<long>(start.f_namemax));
  transcript.note("fragment", static_cast<long>(start.f_frsize));
  const std::string content = pattern(1, size_t{8} << 20);
  write_file(directory + "/file", content);
  const auto grown = [&] {
    struct statvfs now {};
    ::statvfs(directory.c_str(), &now);
    return static_cast<long>(start.f_bfree) - static_cast<long>(now.f_bfree);
  };
  EXPECT_TRUE(eventually([&] { return grown() >= 2048 && grown() < 2048 + 600; })) << grown();
  transcript.call("unlink", ::unlink((directory + "/file").c_str()));
  EXPECT_TRUE(eventually([&] { return std::abs(grown()) < 600; })) << grown();
}

PARITY_TEST(InodeNumbersStay) {
  write_file(directory + "/file", "x");
  const ino_t number = status_of(directory + "/file").st_ino;
  ASSERT_EQ(::rename((directory + "/file").c_str(), (directory + "/moved").c_str()), 0);
  EXPECT_EQ(status_of(directory + "/moved").st_ino, number);
  write_file(directory + "/file", "y");
  EXPECT_NE(status_of(directory + "/file").st_ino, number);
  EXPECT_EQ(status_of(directory + "/file").st_dev, status_of(directory).st_dev);
  transcript.status("file", directory + "/file");
}

// C and Python take it as the size of their buffers.
TEST_F(ParityTest, EachStatTellsTheBufferSize) {
  const std::string name = path("file");
  const auto expect_size = [&] {
    EXPECT_EQ(status_of(name).st_blksize, 128 << 10);
    struct statx extended {};
    ASSERT_EQ(::statx(AT_FDCWD, name.c_str(), AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &extended), 0);
    EXPECT_EQ(extended.stx_blksize, 128u << 10);
  };
  {
    const File file(name, O_RDWR | O_CREAT);
    struct stat status {};
    ASSERT_EQ(::fstat(file.fd(), &status), 0);
    EXPECT_EQ(status.st_blksize, 128 << 10);
    ASSERT_EQ(::ftruncate(file.fd(), 5 << 20), 0);
    expect_size();
  }
  ASSERT_EQ(::chmod(name.c_str(), 0600), 0);
  expect_size();
  EXPECT_EQ(list(mount().path()), std::vector<std::string>{"file"}) << "with attributes";
  expect_size();
  if (mount().serving_pid() > 0) {
    ASSERT_EQ(::kill(mount().serving_pid(), SIGKILL), 0);
  }
  expect_size();
}

}  // namespace
}  // namespace kvcachefs::test
