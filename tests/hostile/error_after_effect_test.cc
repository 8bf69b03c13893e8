// A call that is answered with an error has no effect, or the kernel knows of the effect (EINTR): the names
// and sizes in the kernel's cache are true, whatever failed and when.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tests/support/disk_tier.h"
#include "tests/support/files.h"

namespace kvcachefs::test {
namespace {

class ErrorAfterEffectTest : public DiskTierTest {
 protected:
  ErrorAfterEffectTest() { ::setenv("KVCACHEFS_FAULT_FILE", fault_file().c_str(), 1); }
  ~ErrorAfterEffectTest() override { ::unsetenv("KVCACHEFS_FAULT_FILE"); }

  std::string fault_file() const { return disk() / "fault"; }
  void arm(const std::string& line) {
    write_file(fault_file() + ".new", line + "\n");
    ASSERT_EQ(::rename((fault_file() + ".new").c_str(), fault_file().c_str()), 0);
  }
  // disarm() removes the fault; true if no thread came to it.
  bool disarm() { return ::unlink(fault_file().c_str()) == 0; }

  // expect_one_truth() compares the names that the kernel has for true with those that the daemon lists. The
  // kernel is told of what became of a failed call a moment after the answer.
  void expect_one_truth(const std::vector<std::string>& names) {
    std::set<std::string> believed, listed;
    for (const std::string& name : list(mount().path())) listed.insert(name);
    (void)eventually([&] {
      believed.clear();
      for (const std::string& name : names)
        if (exists(path(name))) believed.insert(name);
      return believed == listed;
    });
    EXPECT_EQ(believed, listed);
    std::set<ino_t> files;
    for (const std::string& name : listed) {
      struct ::stat status {};
      EXPECT_EQ(::lstat(path(name).c_str(), &status), 0) << name;
      if (!S_ISREG(status.st_mode)) continue;
      files.insert(status.st_ino);
      EXPECT_EQ(static_cast<off_t>(read_file(path(name)).size()), status.st_size) << name;
    }
    EXPECT_TRUE(becomes("entries", static_cast<int64_t>(files.size())))
        << "an entry without a file, or the other way round";
  }
};

// The same temporary name, PATH.tmp, serves several stores: it is written and renamed each time.
TEST_F(ErrorAfterEffectTest, AStoreThatFailsIsNoOthersContent) {
  start({.more = "durability=sync"});
  ASSERT_EQ(error_name(store(path("warm"), "warm")), "ok");
  const std::string a = pattern(1, 200'000), b = pattern(2, 200'000);
  arm("failing disk write 5");
  for (const char* name : {"n1", "n2", "n3"}) {
    const File file(path("shared.tmp"), O_CREAT | O_WRONLY | O_TRUNC);
    const std::string& content = name[1] == '1' ? a : b;
    ASSERT_EQ(::write(file.fd(), content.data(), content.size()), static_cast<ssize_t>(content.size()));
    EXPECT_NE(error_name(error_of(::rename(path("shared.tmp").c_str(), path(name).c_str()))), "ok");
  }
  disarm();
  for (const char* name : {"n1", "n2", "n3"}) {
    if (!exists(path(name))) continue;
    EXPECT_TRUE(read_file(path(name)) == (name[1] == '1' ? a : b)) << name << " holds another's";
  }
  expect_one_truth({"warm", "n1", "n2", "n3", "shared.tmp"});
}

TEST_F(ErrorAfterEffectTest, RenamesAndExchangesThatAreNotDurable) {
  start({.more = "durability=sync"});
  for (const char* name : {"a", "b"}) ASSERT_EQ(error_name(store(path(name), name)), "ok");
  make_directory(path("d"));
  EXPECT_FALSE(exists(path("c")));
  EXPECT_FALSE(exists(path("e")));
  const auto fails = [&](const char* from, const char* to, unsigned flags) {
    arm("failing catalog commit 28");
    const int error = error_of(::renameat2(AT_FDCWD, path(from).c_str(), AT_FDCWD, path(to).c_str(), flags));
    EXPECT_EQ(error_name(error), "EINTR") << from;
    disarm();
  };
  fails("a", "c", 0);
  EXPECT_TRUE(eventually([&] { return exists(path("c")); })) << "the kernel remembers that it is not there";
  expect_one_truth({"a", "b", "c", "d", "e"});
  fails("c", "b", RENAME_EXCHANGE);
  EXPECT_EQ(read_file(path("b")), "a");
  EXPECT_EQ(read_file(path("c")), "b");
  fails("c", "b", 0);
  EXPECT_EQ(read_file(path("b")), "b");
  EXPECT_FALSE(exists(path("c")));
  fails("d", "e", 0);
  EXPECT_TRUE(eventually([&] { return exists(path("e")); }));
  ASSERT_EQ(error_name(error_of(::mkdir(path("d").c_str(), 0755))), "ok");
  ASSERT_EQ(error_name(store(path("d/f"), "new")), "ok");
  EXPECT_FALSE(exists(path("e/f"))) << "stored through a name that is another directory's";
  ASSERT_EQ(error_name(error_of(::unlink(path("d/f").c_str()))), "ok");
  expect_one_truth({"a", "b", "c", "d", "e"});
}

TEST_F(ErrorAfterEffectTest, ARenameAfterAFailedFlushHasNoEffect) {
  start({.more = "durability=sync"});
  ASSERT_EQ(error_name(store(path("a"), "a")), "ok");
  arm("fail disk flush 5");
  {
    const File file(path("b"), O_CREAT | O_WRONLY);
    ASSERT_EQ(::write(file.fd(), "b", 1), 1);
    EXPECT_EQ(error_name(error_of(::fsync(file.fd()))), "EIO");
  }
  EXPECT_EQ(error_name(error_of(::rename(path("b").c_str(), path("c").c_str()))), "EIO");
  EXPECT_FALSE(exists(path("c")));
  EXPECT_EQ(read_file(path("b")), "b");
}

struct Call {
  const char* name;
  std::function<void(const std::string&)> prepare;
  std::function<int(const std::string&)> act;
  std::function<bool(const std::string&)> is_done;
};

int made(int fd) {
  const int error = fd < 0 ? errno : 0;
  if (fd >= 0) ::close(fd);
  return error;
}

std::vector<Call> calls() {
  const auto nothing = [](const std::string&) {};
  const auto file = [](const std::string& f) { ASSERT_EQ(store(f, "content"), 0); };
  const auto there = [](const std::string& f) { return exists(f); };
  const auto size_is = [](off_t bytes) {
    return [bytes](const std::string& f) {
      struct ::stat status {};
      return ::stat(f.c_str(), &status) == 0 && status.st_size == bytes;
    };
  };
  const auto other = [](const std::string& f) { return exists(f + "2"); };
  return {
      {"create", nothing,
       [](const std::string& f) { return made(::open(f.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0644)); },
       there},
      {"mknod", nothing, [](const std::string& f) { return error_of(::mknod(f.c_str(), S_IFREG | 0644, 0)); },
       there},
      {"mkdir", nothing, [](const std::string& f) { return error_of(::mkdir(f.c_str(), 0755)); }, there},
      {"symlink", nothing, [](const std::string& f) { return error_of(::symlink("x", f.c_str())); },
       [](const std::string& f) {
         struct ::stat status {};
         return ::lstat(f.c_str(), &status) == 0;
       }},
      {"link", file, [](const std::string& f) { return error_of(::link(f.c_str(), (f + "2").c_str())); },
       other},
      {"rename", file, [](const std::string& f) { return error_of(::rename(f.c_str(), (f + "2").c_str())); },
       other},
      {"rename over",
       [](const std::string& f) {
         ASSERT_EQ(store(f, "content"), 0);
         ASSERT_EQ(store(f + "2", "older"), 0);
       },
       [](const std::string& f) { return error_of(::rename(f.c_str(), (f + "2").c_str())); },
       [](const std::string& f) { return read_file(f + "2") == "content"; }},
      {"unlink", file, [](const std::string& f) { return error_of(::unlink(f.c_str())); },
       [](const std::string& f) { return !exists(f); }},
      {"truncate", file, [](const std::string& f) { return error_of(::truncate(f.c_str(), 3)); }, size_is(3)},
      {"open and truncate", file,
       [](const std::string& f) { return made(::open(f.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644)); },
       size_is(0)},
      {"chmod", file, [](const std::string& f) { return error_of(::chmod(f.c_str(), 0400)); },
       [](const std::string& f) {
         struct ::stat status {};
         return ::stat(f.c_str(), &status) == 0 && (status.st_mode & 0777) == 0400;
       }},
      {"utimens", file,
       [](const std::string& f) {
         const timespec times[2] = {{1000, 0}, {2000, 0}};
         return error_of(::utimensat(AT_FDCWD, f.c_str(), times, 0));
       },
       [](const std::string& f) {
         struct ::stat status {};
         return ::stat(f.c_str(), &status) == 0 && status.st_mtim.tv_sec == 2000;
       }},
      {"setxattr", file, [](const std::string& f) { return set_xattr(f, "user.a", "b"); },
       [](const std::string& f) { return ::getxattr(f.c_str(), "user.a", nullptr, 0) == 1; }},
      {"fallocate", file,
       [](const std::string& f) {
         const int fd = ::open(f.c_str(), O_WRONLY);
         if (fd < 0) return errno;
         const int error = error_of(::fallocate(fd, 0, 0, 9000));
         ::close(fd);
         return error;
       },
       size_is(9000)},
  };
}

// Each call is made with each of its needs refused in turn: a descriptor, a backing, a place in the table of
// open files.
TEST_F(ErrorAfterEffectTest, EveryCallWithEachOfItsNeedsNotMet) {
  start_pool("p:size=32M");
  const std::string f = path("f");
  const std::vector<std::string> names = {"f", "f2"};
  for (const Call& call : calls()) {
    for (const char* place : {"open inode", "back", "write down an open"}) {
      for (int passes = 0; passes < 12; ++passes) {
        SCOPED_TRACE(std::string(call.name) + ", " + place + " after " + std::to_string(passes));
        call.prepare(f);
        arm(std::string("fail ") + place + " " + std::to_string(EMFILE) + " " + std::to_string(passes));
        const int error = call.act(f);
        const bool missed = disarm();
        ::unlink((fault_file() + ".fewer").c_str());
        if (error == 0) {
          EXPECT_TRUE(call.is_done(f));
        } else if (error != EINTR) {
          EXPECT_FALSE(call.is_done(f)) << "done, and answered " << error_name(error);
        }
        expect_one_truth(names);
        for (const std::string& name : names)
          if (::unlink(path(name).c_str()) != 0) (void)::rmdir(path(name).c_str());
        expect_one_truth(names);
        if (HasFailure()) return;
        if (missed) break;
      }
    }
  }
}

}  // namespace
}  // namespace kvcachefs::test
