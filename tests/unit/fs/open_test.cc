// OPEN, FLUSH, RELEASE and FSYNC, as the kernel sends them, and what they say of an entry that is not here.
#include <fcntl.h>

#include <cerrno>

#include "fs/operations.h"
#include "tests/support/served_test.h"
#include "tests/support/user_process.h"

namespace kvcachefs::open_test {

using operations::error_of;
using test::FuseRequest;
using test::wire;

using Kind = PromoteOutcome::Kind;

TEST(OpenError, SaysWhereTheEntryIs) {
  EXPECT_EQ(error_of(Presence::kAway).code, EIO) << "it exists";
  EXPECT_EQ(error_of(Presence::kGone).code, ESTALE) << "the kernel looks again";
  EXPECT_EQ(error_of(Presence::kCold).code, ESTALE);
}

TEST(OpenError, SaysWhyThereWasNoPromotion) {
  EXPECT_EQ(error_of(PromoteOutcome{Kind::kEnding}).code, ENOTCONN);
  EXPECT_EQ(error_of(PromoteOutcome{Kind::kNoMemory}).code, ENOSPC);
  EXPECT_EQ(error_of(PromoteOutcome{Kind::kIntactOnDisk}).code, ENOSPC);
  for (const auto damage : {Finding::Kind::kWrongBytes, Finding::Kind::kTooFewExtents})
    EXPECT_EQ(error_of(PromoteOutcome{Kind::kFailed, {damage}}).code, ESTALE) << "it is discarded by now";
  EXPECT_EQ(error_of(PromoteOutcome{Kind::kFailed, {Finding::Kind::kUnreadable, ENXIO}}).code, EIO)
      << "it exists, whatever the disk says";
}

class OpenTest : public test::ServedTest {
 protected:
  static FuseRequest open_request(uint64_t nodeid, uint32_t flags) {
    return {
        .opcode = FUSE_OPEN, .nodeid = nodeid, .body = wire(fuse_open_in{.flags = flags, .open_flags = 0})};
  }
  uint64_t stored(std::string_view name, std::string_view content = "content") {
    const File file = create(name, content);
    EXPECT_EQ(release(file).error, 0);
    return file.nodeid;
  }
  static fuse_open_out opened(const test::FuseAnswer& answer) { return answer.as<fuse_open_out>(); }
};

TEST_F(OpenTest, AReaderNeedsNoFlushAndAWriterDoes) {
  constexpr uint32_t kNoFlush = 1 << 5;  // FOPEN_NOFLUSH
  const uint64_t nodeid = stored("entry");
  const auto reader = opened(open(nodeid));
  EXPECT_EQ(reader.open_flags & kNoFlush, kNoFlush);
  EXPECT_EQ(reader.fh & operations::kForWriting, 0u);
  const auto writer = opened(open(nodeid, O_RDWR));
  EXPECT_EQ(writer.open_flags & kNoFlush, 0u);
  EXPECT_EQ(writer.fh & operations::kForWriting, operations::kForWriting);
  EXPECT_EQ(reader.fh & operations::kFromDisk, 0u);
  EXPECT_NE(reader.fh >> operations::kHandleShift, writer.fh >> operations::kHandleShift);
  EXPECT_EQ(open_handles(), 2u);
}

TEST_F(OpenTest, EachOpenIsClosedOnce) {
  const uint64_t nodeid = stored("entry");
  const auto pool = pools_->find("p");
  const File one{nodeid, opened(open(nodeid)).fh}, other{nodeid, opened(open(nodeid)).fh};
  EXPECT_EQ(pool->insight().usage().open_entries, 1u);
  EXPECT_EQ(release(one, O_RDONLY).error, 0);
  EXPECT_EQ(release(one, O_RDONLY).error, 0) << "a process that died may have closed it";
  EXPECT_EQ(open_handles(), 1u);
  EXPECT_EQ(pool->insight().usage().open_entries, 1u);
  EXPECT_EQ(release(other, O_RDONLY).error, 0);
  EXPECT_EQ(open_handles(), 0u);
  EXPECT_EQ(pool->insight().usage().open_entries, 0u);
}

TEST_F(OpenTest, AnOpenThatIsSentAgainIsTheSameOne) {
  const FuseRequest request = open_request(stored("entry"), O_RDONLY);
  const auto first = opened(kernel_.ask(request));
  EXPECT_EQ(opened(kernel_.ask_again(request)).fh, first.fh);
  EXPECT_EQ(open_handles(), 1u);
  EXPECT_NE(opened(kernel_.ask(request)).fh, first.fh) << "another request";
}

TEST_F(OpenTest, WhatIsGoneIsStale) {
  const uint64_t gone = NodeId::of_inode(1, 1 << 30).value;
  EXPECT_EQ(open(gone).error, ESTALE);
  EXPECT_TRUE(test::eventually([&] { return open(gone).error == ENOENT; })) << "a reader's miss";
  EXPECT_EQ(open(gone, O_WRONLY).error, ESTALE) << "to a writer it would be a failure";
  EXPECT_EQ(open(NodeId::kRoot).error, EPERM);
  EXPECT_EQ(open_handles(), 0u);
}

TEST_F(OpenTest, ARemovedPoolsFilesAreClosedAll) {
  make(options("q"));
  const uint64_t root = nodeid_of(NodeId::kRoot, "q");
  const auto file = file_of(ask(FUSE_TMPFILE, root, create_body("")));
  ASSERT_TRUE(pools_->remove("q"));
  EXPECT_EQ(write(file, 0, "x").error, 0) << "it is served as long as it is open";
  EXPECT_EQ(release(file).error, 0);
  kernel_.tell({.opcode = FUSE_FORGET, .nodeid = file.nodeid, .body = wire(fuse_forget_in{.nlookup = 1})});
  kernel_.tell({.opcode = FUSE_FORGET, .nodeid = root, .body = wire(fuse_forget_in{.nlookup = 1})});
  EXPECT_EQ(release(file).error, 0);
  EXPECT_TRUE(test::eventually([&] {
    pools_->reap();
    return pools_->all().size() == 1;
  }));
  EXPECT_EQ(release(file).error, 0) << "of a pool that is gone";
  EXPECT_EQ(open_handles(), 0u);
}

TEST_F(OpenTest, AnOpenForWritingClearsTheSetIdBitsOfOthers) {
  const test::UserProcess user(5, 6);
  const auto made = file_of(ask(FUSE_CREATE, root_, create_body("entry", O_RDWR, 06777)));
  EXPECT_EQ(release(made).error, 0);
  const auto mode = [&] {
    return ask(FUSE_GETATTR, made.nodeid, wire(fuse_getattr_in{})).as<fuse_attr_out>().attr.mode & 07777;
  };
  FuseRequest request = open_request(made.nodeid, O_RDONLY);
  request.pid = user.pid();
  EXPECT_EQ(kernel_.ask(request).error, 0);
  EXPECT_EQ(mode(), 06777u);
  const auto written = open(made.nodeid, O_WRONLY);
  EXPECT_EQ(written.error, 0);
  EXPECT_EQ(mode(), 06777u) << "root keeps them";
  request.body = open_request(made.nodeid, O_WRONLY).body;
  const auto beside = kernel_.ask(request);
  EXPECT_EQ(mode(), 06777u) << "the other writer may hold the inode's lock";
  for (const auto& opened : {written, beside})
    EXPECT_EQ(release({made.nodeid, opened.as<fuse_open_out>().fh}).error, 0);
  EXPECT_EQ(kernel_.ask(request).error, 0);
  EXPECT_EQ(mode(), 0777u);
}

TEST_F(OpenTest, AFlushOrASyncIsDoneAtOnceWithoutADisk) {
  const File file = create("entry", "content");
  fuse_flush_in flush{};
  flush.fh = file.handle;
  EXPECT_EQ(ask(FUSE_FLUSH, file.nodeid, wire(flush)).error, 0);
  EXPECT_EQ(
      ask(FUSE_FSYNC, file.nodeid, wire(fuse_fsync_in{.fh = file.handle, .fsync_flags = 0, .padding = 0}))
          .error,
      0);
  EXPECT_EQ(ask(FUSE_FSYNCDIR, root_, wire(fuse_fsync_in{})).error, 0);
  EXPECT_EQ(ask(FUSE_FSYNC, NodeId::kMountControl, wire(fuse_fsync_in{})).error, 0)
      << "there is nothing to keep";
  EXPECT_EQ(ask(FUSE_FLUSH, NodeId::of_inode(9, 1).value, wire(flush)).error, ESTALE);
}

}  // namespace kvcachefs::open_test
