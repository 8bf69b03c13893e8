#include "fs/session.h"

#include <cerrno>

#include "tests/support/served_test.h"

namespace kvcachefs::session_test {

using test::ServedTest;
using test::wire;
using test::wire_name;

// From include/uapi/linux/fuse.h of Linux 6.9 to 6.16; Debian 12's is older.
constexpr uint32_t kAllowIdmap = 1u << (40 - 32);
constexpr uint32_t kDirectIoAllowMmap = 1u << (36 - 32);
constexpr uint32_t kPassthrough = 1u << (37 - 32);
constexpr int kNotifyResend = 7, kNotifyIncreaseEpoch = 8;

class SessionTest : public ServedTest {};

TEST_F(SessionTest, NegotiatesWhatItServes) {
  EXPECT_EQ(init_answer_.error, 0);
  const auto init = init_answer_.as<fuse_init_out>();
  EXPECT_EQ(init.major, 7u);
  EXPECT_EQ(init.max_write, 1u << 20);
  EXPECT_EQ(init.max_background, 256u);
  for (const uint32_t wanted : {FUSE_CACHE_SYMLINKS, FUSE_DO_READDIRPLUS, FUSE_PARALLEL_DIROPS})
    EXPECT_EQ(init.flags & wanted, wanted) << wanted;
  for (const uint32_t unwanted :
       {FUSE_HANDLE_KILLPRIV, FUSE_HANDLE_KILLPRIV_V2, FUSE_ATOMIC_O_TRUNC, FUSE_AUTO_INVAL_DATA})
    EXPECT_EQ(init.flags & unwanted, 0u) << unwanted;
  EXPECT_EQ(init.flags2 & kAllowIdmap, kAllowIdmap) << "libfuse does not know of mapped ids";
  EXPECT_EQ(init.flags2 & kDirectIoAllowMmap, kDirectIoAllowMmap);
  EXPECT_EQ(init.flags2 & kPassthrough, 0u);
  EXPECT_FALSE(session_->passthrough());
  EXPECT_FALSE(session_->over_io_uring());
  EXPECT_TRUE(session_->wait_until_negotiated(std::chrono::seconds(0)));
  EXPECT_EQ(session_->refusal(), "");
}

TEST_F(SessionTest, ASuccessorHasTheKernelSendAndLookAgain) {
  session_->resume(false);
  session_->all_found();
  const auto notices = kernel_.notices();
  ASSERT_EQ(notices.size(), 2u);
  EXPECT_EQ(notices[0].code, kNotifyResend);
  EXPECT_EQ(notices[1].code, kNotifyIncreaseEpoch) << "what was known of what is not there any more";
}

TEST_F(SessionTest, AnOperationWithoutAHandlerIsRefused) {
  EXPECT_EQ(ask(FUSE_BMAP, root_, wire(fuse_bmap_in{})).error, ENOSYS);
  EXPECT_EQ(ask(FUSE_SETATTR, NodeId::kRoot, wire(fuse_setattr_in{})).error, EPERM) << "no inode of a pool";
  EXPECT_EQ(ask(FUSE_READLINK, NodeId::kMountControl).error, EPERM);
}

TEST_F(SessionTest, AThreadIsToldOfAStaleInodeOnce) {
  const uint64_t of_no_pool = NodeId::of_inode(9, 1).value;
  EXPECT_EQ(lookup(of_no_pool, "x").error, ESTALE);
  EXPECT_TRUE(test::eventually([&] { return lookup(of_no_pool, "x").error == ENOENT; }))
      << "a second one in a row is a miss to the client";
  EXPECT_EQ(survivors_->requests().told_stale_lately(), std::vector<int32_t>{::getpid()})
      << "a successor knows it";
  EXPECT_EQ(error_to_new_thread(FUSE_LOOKUP, of_no_pool, wire_name("x")), ESTALE);
}

TEST_F(SessionTest, ACallThatSucceedsBeginsAnew) {
  const uint64_t of_no_pool = NodeId::of_inode(9, 1).value;
  EXPECT_EQ(lookup(of_no_pool, "x").error, ESTALE);
  EXPECT_EQ(survivors_->requests().told_stale_lately().size(), 1u);
  EXPECT_EQ(release(create("entry")).error, 0);
  EXPECT_TRUE(survivors_->requests().told_stale_lately().empty()) << "a successor need not heed it";
  EXPECT_EQ(lookup(of_no_pool, "x").error, ESTALE);
}

TEST_F(SessionTest, ServesUntilItIsUnmounted) {
  EXPECT_FALSE(session_->ended());
  session_->unmount();
  kernel_.tell({.opcode = FUSE_FORGET, .nodeid = NodeId::kRoot, .body = wire(fuse_forget_in{})});
  serving_.join();
  EXPECT_TRUE(session_->ended());
  EXPECT_FALSE(session_->wait_until_negotiated(std::chrono::seconds(0))) << "it has, and is over";
}

TEST_F(SessionTest, NoRequestStaysInHand) {
  create("entry");
  EXPECT_EQ(lookup(root_, "missing").error, 0);
  // The thread that has answered is about to say so.
  EXPECT_TRUE(test::eventually([&] { return survivors_->requests().oldest_ns() == 0; }));
}

}  // namespace kvcachefs::session_test
