// The flags, names and orders of open(2) and unlink(2) calls that clients use.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "tests/support/transcript.h"

namespace kvcachefs::test {
namespace {

PARITY_TEST(CreateFlags) {
  const std::string name = directory + "/file";
  transcript.call("missing", ::open(name.c_str(), O_RDONLY));
  File first(name, O_RDWR | O_CREAT | O_EXCL, 0640);
  transcript.note("EXCL on an existing one", error_of(::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0640)));
  transcript.call("write", ::write(first.fd(), "0123456789", 10));
  transcript.status("written", name);
  const File truncated(name, O_WRONLY | O_TRUNC);
  transcript.status("O_TRUNC", name);
  transcript.note("read of a write-only one", read_at(truncated.fd(), 0, 1));
  const File reader(name, O_RDONLY);
  transcript.call("write to a read-only one", ::write(reader.fd(), "x", 1));
  transcript.call("O_DIRECTORY on a file", ::open(name.c_str(), O_RDONLY | O_DIRECTORY));
  transcript.call("a directory for writing", ::open(directory.c_str(), O_WRONLY));
  transcript.call("a file as a directory", ::open((name + "/x").c_str(), O_RDONLY));
  transcript.call("create below a file", ::open((name + "/x").c_str(), O_RDWR | O_CREAT, 0644));
  transcript.call("slash behind a file", ::open((name + "/").c_str(), O_RDONLY));
}

PARITY_TEST(AppendFromTwoDescriptors) {
  const std::string name = directory + "/file";
  const File one(name, O_WRONLY | O_CREAT | O_APPEND);
  const File two(name, O_WRONLY | O_APPEND);
  for (int i = 0; i < 3; ++i) {
    transcript.call("one", ::write(one.fd(), "one,", 4));
    transcript.call("two", ::write(two.fd(), "second,", 7));
  }
  // POSIX: pwrite writes at its offset. Linux appends nevertheless.
  transcript.call("pwrite", ::pwrite(one.fd(), "end", 3, 0));
  transcript.content("content", name);
}

PARITY_TEST(AppendGivenAndTakenAway) {
  const std::string name = directory + "/file";
  const File file(name, O_RDWR | O_CREAT);
  transcript.call("write", ::write(file.fd(), "12345", 5));
  transcript.call("F_SETFL gives O_APPEND", ::fcntl(file.fd(), F_SETFL, O_APPEND));
  transcript.call("pwrite", ::pwrite(file.fd(), "end", 3, 0));
  transcript.content("content", name);
  transcript.call("F_SETFL takes it away", ::fcntl(file.fd(), F_SETFL, 0));
  transcript.call("pwrite", ::pwrite(file.fd(), "ONE", 3, 0));
  transcript.content("content", name);
}

// The one exception to parity: the kernel keeps the O_APPEND of a passthrough open, even if F_SETFL clears it
// later.
TEST_F(ParityTest, AppendOfTheOpenTakenAway) {
  write_file(path("file"), "12345");
  const File file(path("file"), O_WRONLY | O_APPEND);
  ASSERT_EQ(error_of(::fcntl(file.fd(), F_SETFL, 0)), 0);
  ASSERT_EQ(::pwrite(file.fd(), "two", 3, 0), 3);
  const bool passes_through = mode() == Mode::kPassthrough || mode() == Mode::kIoUring;
  EXPECT_EQ(read_file(path("file")), passes_through ? "12345two" : "two45");
}

PARITY_TEST(UnlinkedWhileOpen) {
  const std::string name = directory + "/file";
  const File file(name, O_RDWR | O_CREAT);
  const File other(name, O_RDONLY);
  transcript.call("write", ::write(file.fd(), "before", 6));
  transcript.call("unlink", ::unlink(name.c_str()));
  transcript.call("again", ::unlink(name.c_str()));
  transcript.call("write after", ::pwrite(file.fd(), "and after", 9, 6));
  transcript.note("read after", read_at(other.fd(), 0, 100));
  struct stat status {};
  transcript.call("fstat", ::fstat(file.fd(), &status));
  transcript.note("links", static_cast<long>(status.st_nlink));
  transcript.note("size", static_cast<long>(status.st_size));
  EXPECT_EQ(status.st_nlink, 0u);
  transcript.call("ftruncate", ::ftruncate(file.fd(), 3));
  transcript.note("read after ftruncate", read_at(other.fd(), 0, 100));
  transcript.call("fchmod", ::fchmod(file.fd(), 0600));
  transcript.call("fsync", ::fsync(file.fd()));
  const File fresh(name, O_RDWR | O_CREAT | O_EXCL);
  transcript.note("a new one of this name is empty", read_at(fresh.fd(), 0, 100));
  transcript.note("the old one is itself", read_at(other.fd(), 0, 100));
  transcript.listing("listing", directory);
}

PARITY_TEST(ReplacedWhileOpen) {
  write_file(directory + "/old", "old content");
  const File old(directory + "/old", O_RDONLY);
  write_file(directory + "/new", "new content");
  transcript.call("rename", ::rename((directory + "/new").c_str(), (directory + "/old").c_str()));
  transcript.note("old descriptor", read_at(old.fd(), 0, 100));
  struct stat status {};
  transcript.call("fstat", ::fstat(old.fd(), &status));
  transcript.note("links", static_cast<long>(status.st_nlink));
  transcript.content("name", directory + "/old");
}

PARITY_TEST(TemporaryFileGetsAName) {
  const File file(directory, O_RDWR | O_TMPFILE, 0640);
  transcript.call("write", ::write(file.fd(), "no name yet", 11));
  struct stat status {};
  transcript.call("fstat", ::fstat(file.fd(), &status));
  transcript.note("links", static_cast<long>(status.st_nlink));
  transcript.note("mode", static_cast<long>(status.st_mode));
  transcript.listing("nothing to see", directory);
  const std::string link = "/proc/self/fd/" + std::to_string(file.fd());
  const std::string name = directory + "/named";
  transcript.call("linkat", ::linkat(AT_FDCWD, link.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW));
  transcript.call("onto an existing one",
                  ::linkat(AT_FDCWD, link.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW));
  transcript.status("named", name);
  transcript.content("content", name);
  transcript.call("write goes on", ::write(file.fd(), "!", 1));
  transcript.content("content", name);
  transcript.listing("listing", directory);
}

PARITY_TEST(TemporaryFileThatMayNotGetAName) {
  const File file(directory, O_RDWR | O_TMPFILE | O_EXCL, 0640);
  transcript.call("write", ::write(file.fd(), "never", 5));
  const std::string link = "/proc/self/fd/" + std::to_string(file.fd());
  transcript.call("linkat", ::linkat(AT_FDCWD, link.c_str(), AT_FDCWD, (directory + "/named").c_str(),
                                     AT_SYMLINK_FOLLOW));
  transcript.note("read", read_at(file.fd(), 0, 100));
  transcript.listing("listing", directory);
}

PARITY_TEST(DirectIoAtAnyAlignment) {
  const std::string name = directory + "/file";
  const std::string content = pattern(1, 200'000);
  const File writer(name, O_RDWR | O_CREAT | O_DIRECT);
  for (size_t at = 0; at < content.size();) {
    const size_t piece = std::min<size_t>(content.size() - at, 4099);
    transcript.call("write", ::pwrite(writer.fd(), content.data() + at, piece, at));
    at += piece;
  }
  transcript.content("content", name);
  const File reader(name, O_RDONLY | O_DIRECT);
  for (const auto& [offset, bytes] : {std::pair(0, 4096), {1, 1}, {511, 513}, {4095, 8193}, {199'999, 10}}) {
    EXPECT_EQ(read_at(reader.fd(), offset, bytes), content.substr(offset, bytes)) << offset;
  }
  transcript.call("O_DIRECT taken away", ::fcntl(reader.fd(), F_SETFL, 0));
  transcript.note("read", static_cast<long>(read_at(reader.fd(), 7, 9).size()));
  transcript.call("O_DIRECT set", ::fcntl(reader.fd(), F_SETFL, O_DIRECT));
  transcript.note("read", static_cast<long>(read_at(reader.fd(), 7, 9).size()));
}

PARITY_TEST(LongNames) {
  const std::string longest(255, 'n');
  write_file(directory + "/" + longest, "x");
  transcript.status("255", directory + "/" + longest);
  transcript.listing("listing", directory);
  const std::string over = directory + "/" + longest + "n";
  transcript.call("open of 256", ::open(over.c_str(), O_RDWR | O_CREAT, 0644));
  transcript.call("mkdir of 256", ::mkdir(over.c_str(), 0755));
  transcript.call("unlink of 256", ::unlink(over.c_str()));
  struct stat status {};
  transcript.call("stat of 256", ::stat(over.c_str(), &status));
  transcript.call("rename to 256", ::rename((directory + "/" + longest).c_str(), over.c_str()));
  transcript.call("symlink of 256", ::symlink("x", over.c_str()));
  transcript.call("unlink of 255", ::unlink((directory + "/" + longest).c_str()));
}

PARITY_TEST(OddNames) {
  for (const std::string name :
       {"with space", "tab\tand\nnewline", "\xc3\xa4\xff\xfe", "-", "...", "a\\b", "'\""}) {
    write_file(directory + "/" + name, name);
    transcript.content("content", directory + "/" + name);
  }
  transcript.listing("listing", directory);
}

PARITY_TEST(PathDescriptorAndReopen) {
  write_file(directory + "/file", "content");
  const File handle(directory + "/file", O_PATH);
  struct stat status {};
  transcript.call("fstat of O_PATH", ::fstat(handle.fd(), &status));
  transcript.note("read of O_PATH", read_at(handle.fd(), 0, 1));
  const File again("/proc/self/fd/" + std::to_string(handle.fd()), O_RDWR);
  transcript.note("reopened", read_at(again.fd(), 0, 100));
  transcript.call("unlink", ::unlink((directory + "/file").c_str()));
  transcript.note("reopened of an unlinked one",
                  error_of(::open(("/proc/self/fd/" + std::to_string(handle.fd())).c_str(), O_RDONLY)));
}

}  // namespace
}  // namespace kvcachefs::test
