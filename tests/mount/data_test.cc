// The bytes of a file: sizes, holes, allocation, mappings and the calls that move them.
#include <fcntl.h>
#include <linux/falloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>

#include "tests/support/transcript.h"

namespace kvcachefs::test {
namespace {

constexpr long kPage = 4096;

long size_of(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 ? static_cast<long>(status.st_size) : -1;
}

PARITY_TEST(Truncate) {
  const std::string name = directory + "/file";
  File file(name, O_RDWR | O_CREAT);
  const std::string content = pattern(1, 3 * kPage + 100);
  transcript.call("write", ::write(file.fd(), content.data(), content.size()));
  for (const long size : {2 * kPage + 1, 2 * kPage, 5L, 0L, 100L, 10 * kPage}) {
    transcript.call("ftruncate", ::ftruncate(file.fd(), size));
    transcript.note("size", size_of(file.fd()));
    transcript.content("content", name);
  }
  transcript.call("truncate by name", ::truncate(name.c_str(), 7));
  transcript.note("size", size_of(file.fd()));
  transcript.call("negative", ::truncate(name.c_str(), -1));
  transcript.call("a directory", ::truncate(directory.c_str(), 0));
  transcript.call("a missing one", ::truncate((name + "x").c_str(), 0));
  const File reader(name, O_RDONLY);
  transcript.call("through a reader", ::ftruncate(reader.fd(), 1));
}

PARITY_TEST(TailBehindTruncationReadsZero) {
  const std::string name = directory + "/file";
  File file(name, O_RDWR | O_CREAT);
  const std::string content(kPage, 'x');
  transcript.call("write", ::write(file.fd(), content.data(), content.size()));
  transcript.call("shrink", ::ftruncate(file.fd(), 10));
  transcript.call("grow", ::ftruncate(file.fd(), kPage));
  EXPECT_EQ(read_at(file.fd(), 0, kPage), std::string(10, 'x') + std::string(kPage - 10, '\0'));
  transcript.call("write behind a hole", ::pwrite(file.fd(), "end", 3, 3 * kPage));
  transcript.content("content", name);
}

PARITY_TEST(Allocate) {
  const std::string name = directory + "/file";
  File file(name, O_RDWR | O_CREAT);
  const std::string content = pattern(2, 8 * kPage);
  transcript.call("extends", ::fallocate(file.fd(), 0, 0, 2 * kPage));
  transcript.note("size", size_of(file.fd()));
  transcript.call("keeps the size", ::fallocate(file.fd(), FALLOC_FL_KEEP_SIZE, 0, 8 * kPage));
  transcript.note("size", size_of(file.fd()));
  transcript.call("write", ::pwrite(file.fd(), content.data(), content.size(), 0));
  transcript.call("punch", ::fallocate(file.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, kPage, kPage));
  transcript.content("one page less", name);
  transcript.call("punch parts of pages",
                  ::fallocate(file.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 3 * kPage + 7, 100));
  transcript.content("a hundred bytes less", name);
  transcript.call("punch behind the end",
                  ::fallocate(file.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 20 * kPage, kPage));
  transcript.call("punch without KEEP_SIZE", ::fallocate(file.fd(), FALLOC_FL_PUNCH_HOLE, 0, kPage));
  transcript.call("no length", ::fallocate(file.fd(), 0, 0, 0));
  transcript.call("negative offset", ::fallocate(file.fd(), 0, -1, 10));
  transcript.call("collapse", ::fallocate(file.fd(), FALLOC_FL_COLLAPSE_RANGE, 0, kPage));
  transcript.call("posix_fallocate", ::posix_fallocate(file.fd(), 0, 9 * kPage));
  transcript.note("size", size_of(file.fd()));
  transcript.content("content", name);
  const File reader(name, O_RDONLY);
  transcript.call("through a reader", ::fallocate(reader.fd(), 0, 0, kPage));
}

PARITY_TEST(SparseSeek) {
  const std::string name = directory + "/file";
  File file(name, O_RDWR | O_CREAT);
  for (const long page : {2L, 3L, 9L}) transcript.call("write", ::pwrite(file.fd(), "data", 4, page * kPage));
  transcript.call("ftruncate", ::ftruncate(file.fd(), 20 * kPage));
  // A file system may report holes coarsely (a huge page is all data), but SEEK_DATA must never skip data.
  for (const long from : {0L, 2 * kPage, 2 * kPage + 5, 4 * kPage, 9 * kPage}) {
    const long next = from < 4 * kPage ? std::max(from, 2 * kPage) : 9 * kPage;
    const long data = ::lseek(file.fd(), from, SEEK_DATA);
    EXPECT_GE(data, from);
    EXPECT_LE(data, next) << "data skipped from " << from;
    const long hole = ::lseek(file.fd(), next, SEEK_HOLE);
    EXPECT_GE(hole, next < 4 * kPage ? 4 * kPage : 10 * kPage) << "data called a hole from " << next;
    EXPECT_LE(hole, 20 * kPage);
  }
  transcript.call("SEEK_DATA behind the end", ::lseek(file.fd(), 20 * kPage, SEEK_DATA));
  transcript.call("SEEK_HOLE behind the end", ::lseek(file.fd(), 20 * kPage, SEEK_HOLE));
  transcript.call("SEEK_SET", ::lseek(file.fd(), 5, SEEK_SET));
  transcript.call("SEEK_CUR", ::lseek(file.fd(), 5, SEEK_CUR));
  transcript.call("SEEK_END", ::lseek(file.fd(), -5, SEEK_END));
  transcript.call("before the start", ::lseek(file.fd(), -1, SEEK_SET));
}

PARITY_TEST(SharedMappingAndWritesSeeEachOther) {
  const std::string name = directory + "/file";
  File file(name, O_RDWR | O_CREAT);
  transcript.call("ftruncate", ::ftruncate(file.fd(), 4 * kPage));
  const Mapping mapping(file.fd(), 4 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED);
  ASSERT_TRUE(mapping.valid());
  std::copy_n("through the map", 15, mapping.data() + kPage);
  transcript.note("read sees the store", read_at(file.fd(), kPage, 15));
  transcript.call("write", ::pwrite(file.fd(), "through write", 13, 2 * kPage));
  transcript.note("the map sees the write", std::string(mapping.data() + 2 * kPage, 13));
  const Mapping second(file.fd(), 4 * kPage, PROT_READ, MAP_SHARED);
  ASSERT_TRUE(second.valid());
  transcript.note("as does another map", std::string(second.data() + kPage, 15));
  transcript.call("msync", ::msync(mapping.data(), mapping.bytes(), MS_SYNC));
  file.close();
  std::copy_n("after close", 11, mapping.data());
  transcript.content("content", name);
  transcript.note("another process sees it",
                  in_child([&] { return read_file(name).starts_with("after close") ? 0 : 1; }));
}

PARITY_TEST(PrivateMapping) {
  const std::string name = directory + "/file";
  write_file(name, pattern(3, 2 * kPage));
  File file(name, O_RDONLY);
  const Mapping mapping(file.fd(), 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE);
  ASSERT_TRUE(mapping.valid());
  EXPECT_EQ(difference(3, std::string_view(mapping.data(), mapping.bytes())), "");
  std::copy_n("mine", 4, mapping.data());
  transcript.content("untouched", name);
  const Mapping refused(file.fd(), kPage, PROT_READ | PROT_WRITE, MAP_SHARED);
  transcript.note("shared writable map of a reader", refused.valid() ? "mapped" : "refused");
}

PARITY_TEST(MappingOfAnUnlinkedFile) {
  const std::string name = directory + "/file";
  write_file(name, pattern(4, 3 * kPage));
  File file(name, O_RDONLY);
  const Mapping mapping(file.fd(), 3 * kPage, PROT_READ, MAP_SHARED);
  ASSERT_TRUE(mapping.valid());
  file.close();
  transcript.call("unlink", ::unlink(name.c_str()));
  transcript.note("whole", difference(4, std::string_view(mapping.data(), mapping.bytes())));
}

PARITY_TEST(MappingBehindTheEndIsABusError) {
  const std::string name = directory + "/file";
  write_file(name, pattern(5, 2 * kPage));
  File file(name, O_RDWR);
  const Mapping mapping(file.fd(), 2 * kPage, PROT_READ, MAP_SHARED);
  ASSERT_TRUE(mapping.valid());
  transcript.call("ftruncate", ::ftruncate(file.fd(), 100));
  transcript.note("inside",
                  in_child([&] { return *static_cast<volatile char*>(mapping.data()) == 0 ? 1 : 0; }));
  transcript.note("outside", in_child([&] {
                    ::signal(SIGBUS, SIG_DFL);  // a sanitizer's handler would exit instead
                    return *static_cast<volatile char*>(mapping.data() + kPage) == 0 ? 1 : 0;
                  }));
}

PARITY_TEST(Synchronise) {
  const std::string name = directory + "/file";
  File file(name, O_RDWR | O_CREAT | O_SYNC);
  transcript.call("write", ::write(file.fd(), "x", 1));
  transcript.call("fsync", ::fsync(file.fd()));
  transcript.call("fdatasync", ::fdatasync(file.fd()));
  transcript.call("sync_file_range", ::sync_file_range(file.fd(), 0, 0, SYNC_FILE_RANGE_WRITE));
  transcript.call("syncfs", ::syncfs(file.fd()));
  const File folder(directory, O_RDONLY | O_DIRECTORY);
  transcript.call("fsync of a directory", ::fsync(folder.fd()));
  transcript.call("fadvise", ::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED));
  transcript.content("content", name);
}

// drain() repeats the call until it returns 0; returns the sum, or the negative result.
template <typename Call>
long drain(Call call) {
  long sum = 0;
  for (;;) {
    const ssize_t got = call();
    if (got < 0) return got;
    if (got == 0) return sum;
    sum += got;
  }
}

PARITY_TEST(CopyFileRange) {
  const std::string content = pattern(6, 40 * kPage + 3);
  write_file(directory + "/from", content);
  const File from(directory + "/from", O_RDONLY);
  const File to(directory + "/to", O_RDWR | O_CREAT);
  transcript.call("all",
                  drain([&] { return ::copy_file_range(from.fd(), nullptr, to.fd(), nullptr, 1 << 20, 0); }));
  transcript.content("content", directory + "/to");
  off_t in = 1000;
  off_t out = 5000;
  transcript.call("a piece", ::copy_file_range(from.fd(), &in, to.fd(), &out, 777, 0));
  transcript.note("offsets", static_cast<long>(in + out));
  transcript.content("content", directory + "/to");
  in = 0;
  out = 10;
  transcript.call("onto itself, overlapping", ::copy_file_range(to.fd(), &in, to.fd(), &out, 100, 0));
  transcript.call("flags", ::copy_file_range(from.fd(), nullptr, to.fd(), nullptr, 10, 1));
  transcript.call("to a reader", ::copy_file_range(to.fd(), nullptr, from.fd(), nullptr, 10, 0));
}

PARITY_TEST(SendfileAndSplice) {
  const std::string content = pattern(7, 10 * kPage + 1);
  write_file(directory + "/from", content);
  const File from(directory + "/from", O_RDONLY);
  const File to(directory + "/to", O_RDWR | O_CREAT);
  transcript.call("sendfile", drain([&] { return ::sendfile(to.fd(), from.fd(), nullptr, 1 << 20); }));
  transcript.content("sent", directory + "/to");
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const File pipe_out(ends[0]);
  const File pipe_in(ends[1]);
  loff_t offset = 123;
  transcript.call("splice into a pipe", ::splice(from.fd(), &offset, pipe_in.fd(), nullptr, 5000, 0));
  loff_t target = 50 * kPage;
  transcript.call("splice out of it", ::splice(pipe_out.fd(), nullptr, to.fd(), &target, 5000, 0));
  transcript.note("bytes",
                  read_at(to.fd(), 50 * kPage, 5000) == content.substr(123, 5000) ? "same" : "other");
}

PARITY_TEST(VectorsAndEnds) {
  const File file(directory + "/file", O_RDWR | O_CREAT);
  std::string a = "first ";
  std::string b = "second";
  const std::array<iovec, 2> pieces = {iovec{a.data(), a.size()}, iovec{b.data(), b.size()}};
  transcript.call("pwritev", ::pwritev(file.fd(), pieces.data(), 2, 3));
  transcript.call("pwritev2 append", ::pwritev2(file.fd(), pieces.data(), 2, 0, RWF_APPEND));
  transcript.content("content", directory + "/file");
  transcript.call("preadv", ::preadv(file.fd(), pieces.data(), 2, 3));
  transcript.note("pieces", a + b);
  transcript.note("read across the end", read_at(file.fd(), 20, 100));
  transcript.note("read at the end", read_at(file.fd(), 27, 100));
  transcript.note("read behind it", read_at(file.fd(), 2700, 100));
  transcript.call("empty write", ::write(file.fd(), "", 0));
  const Mapping unreadable(-1, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS);
  transcript.call("a bad buffer", ::pwrite(file.fd(), unreadable.data(), 10, 0));
}

PARITY_TEST(LargeFile) {
  const std::string name = directory + "/file";
  const std::string content = pattern(8, size_t{24} << 20);
  write_file(name, content);
  EXPECT_EQ(difference(8, read_file(name)), "");
  struct stat status {};
  transcript.call("stat", ::stat(name.c_str(), &status));
  transcript.note("size", static_cast<long>(status.st_size));
  // Reserved but unused space of an open file must not show in st_blocks. The test ends here if every pool
  // spills: a cold entry has no blocks, and a file larger than its disk is lost with the memory.
  if (every_pool_spills()) return;
  transcript.note("blocks", static_cast<long>(status.st_blocks));
  transcript.call("behind 4 GiB", ::truncate(name.c_str(), off_t{5} << 30));
  const File file(name, O_RDWR);
  transcript.call("write there", ::pwrite(file.fd(), "far", 3, (off_t{5} << 30) - 1));
  transcript.note("read there", read_at(file.fd(), (off_t{5} << 30) - 1, 10));
  transcript.note("size", size_of(file.fd()));
  EXPECT_LE(::lseek(file.fd(), off_t{1} << 30, SEEK_DATA), (off_t{5} << 30) - 1);
}

}  // namespace
}  // namespace kvcachefs::test
