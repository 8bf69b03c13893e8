// READ, WRITE, FALLOCATE, LSEEK and COPY_FILE_RANGE, as the kernel sends them in daemon I/O.
#include <fcntl.h>
#include <linux/falloc.h>

#include <cerrno>

#include "tests/support/served_test.h"

namespace kvcachefs::data_test {

using test::wire;

class DataTest : public test::ServedTest {
 protected:
  int allocate(const File& file, uint32_t mode, uint64_t offset, uint64_t length) {
    return ask(FUSE_FALLOCATE, file.nodeid,
               wire(fuse_fallocate_in{
                   .fh = file.handle, .offset = offset, .length = length, .mode = mode, .padding = 0}))
        .error;
  }
  test::FuseAnswer seek(const File& file, uint64_t offset, uint32_t whence) {
    return ask(FUSE_LSEEK, file.nodeid,
               wire(fuse_lseek_in{.fh = file.handle, .offset = offset, .whence = whence, .padding = 0}));
  }
  test::FuseAnswer copy(const File& from, uint64_t from_offset, const File& to, uint64_t to_offset,
                        uint64_t length) {
    fuse_copy_file_range_in in{};
    in.fh_in = from.handle;
    in.off_in = from_offset;
    in.nodeid_out = to.nodeid;
    in.fh_out = to.handle;
    in.off_out = to_offset;
    in.len = length;
    return ask(FUSE_COPY_FILE_RANGE, from.nodeid, wire(in));
  }
  uint64_t size_of(const File& file) {
    return ask(FUSE_GETATTR, file.nodeid, wire(fuse_getattr_in{})).as<fuse_attr_out>().attr.size;
  }
};

TEST_F(DataTest, AReadEndsAtTheEnd) {
  const File file = create("entry", "content");
  EXPECT_EQ(read(file, 0, 7).bytes, "content");
  EXPECT_EQ(read(file, 3, 100).bytes, "tent");
  EXPECT_EQ(read(file, 7, 100).bytes, "");
  EXPECT_EQ(read(file, 7, 100).error, 0);
  EXPECT_EQ(read(file, 1 << 20, 1).bytes, "");
  EXPECT_EQ(read(file, 0, 0).bytes, "");
}

TEST_F(DataTest, ALargeReadHasTheSameBytes) {
  const std::string content = test::pattern(1, 150'000);
  const File file = create("entry");
  for (size_t at = 0; at < content.size(); at += 50'000)
    ASSERT_EQ(write(file, at, content.substr(at, 50'000)).as<fuse_write_out>().size, 50'000u);
  EXPECT_TRUE(read(file, 0, 150'000).bytes == content);
  EXPECT_TRUE(read(file, 1, 140'000).bytes == content.substr(1, 140'000)) << "past an odd offset";
  EXPECT_TRUE(read(file, 9'999, 150'000).bytes == content.substr(9'999)) << "to the end";
  ASSERT_EQ(allocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 4096), 0);
  std::string with_hole = content;
  with_hole.replace(4096, 4096, 4096, '\0');
  EXPECT_TRUE(read(file, 0, 150'000).bytes == with_hole);
}

TEST_F(DataTest, AHoleIsRead) {
  const File file = create("entry");
  EXPECT_EQ(write(file, 10, "x").as<fuse_write_out>().size, 1u);
  EXPECT_EQ(read(file, 0, 100).bytes, std::string(10, '\0') + "x");
}

TEST_F(DataTest, AnAllocationBeyondThePoolChangesNothing) {
  const File file = create("entry", "content");
  EXPECT_EQ(allocate(file, 0, 0, 4 * kMiB + 4096), ENOSPC);
  EXPECT_EQ(size_of(file), 7u);
  EXPECT_EQ(read(file, 0, 100).bytes, "content");
}

TEST_F(DataTest, AllocationsKeepOrSetTheSize) {
  const File file = create("entry", "content");
  EXPECT_EQ(allocate(file, FALLOC_FL_KEEP_SIZE, 0, 8192), 0);
  EXPECT_EQ(size_of(file), 7u);
  EXPECT_EQ(allocate(file, 0, 0, 8192), 0);
  EXPECT_EQ(size_of(file), 8192u);
  EXPECT_EQ(allocate(file, FALLOC_FL_COLLAPSE_RANGE, 0, 4096), EOPNOTSUPP);
  EXPECT_EQ(allocate(file, 0, 0, 0), EINVAL);
  EXPECT_EQ(ask(FUSE_FALLOCATE, NodeId::of_inode(9, 1).value, wire(fuse_fallocate_in{})).error, ESTALE);
}

TEST_F(DataTest, ASeekFindsHolesAndData) {
  const File file = create("entry");
  ASSERT_EQ(write(file, 8192, "x").error, 0);
  EXPECT_EQ(seek(file, 0, SEEK_DATA).as<fuse_lseek_out>().offset, 8192u);
  EXPECT_EQ(seek(file, 0, SEEK_HOLE).as<fuse_lseek_out>().offset, 0u);
  EXPECT_EQ(seek(file, 8192, SEEK_HOLE).as<fuse_lseek_out>().offset, 8193u);
  EXPECT_EQ(seek(file, 8193, SEEK_DATA).error, ENXIO);
  EXPECT_EQ(seek({nodeid_of(nodeid_of(root_, ".pool"), "stats"), 0}, 0, SEEK_DATA).error, EINVAL)
      << "after ENOSYS the kernel would ask no more, for any file";
}

TEST_F(DataTest, ACopyStaysWithinItsBounds) {
  const File from = create("from", "content");
  const File to = create("to");
  EXPECT_EQ(copy(from, 3, to, 1, 100).as<fuse_write_out>().size, 4u);
  EXPECT_EQ(read(to, 0, 100).bytes, std::string("\0tent", 5));
  EXPECT_EQ(copy(from, 7, to, 0, 100).as<fuse_write_out>().size, 0u);
  EXPECT_EQ(copy(from, 0, from, 3, 5).error, EINVAL) << "the ranges overlap";
  EXPECT_EQ(copy(from, 0, {NodeId::of_inode(9, 1).value, 0}, 0, 1).error, ESTALE);
  EXPECT_EQ(copy({NodeId::kMountControl, 0}, 0, to, 0, 1).error, EPERM);
  EXPECT_EQ(copy({from.nodeid, 1}, 0, to, 0, 1).error, EOPNOTSUPP) << "a file that is served from the disk";
}

}  // namespace kvcachefs::data_test
