#include "fs/control_reads.h"

#include <cerrno>

#include "tests/support/served_test.h"

namespace kvcachefs::control_reads_test {

using test::wire;

// An open of this file looks at all entries of all pools.
class ControlReadsTest : public test::ServedTest {
 protected:
  void SetUp() override {
    ServedTest::SetUp();
    if (session_) metrics_ = nodeid_of(NodeId::kMountControl, "metrics");
  }
  test::FuseRequest request(uid_t uid) const {
    return {.opcode = FUSE_OPEN, .nodeid = metrics_, .body = wire(fuse_open_in{}), .uid = uid};
  }
  void gather() { session_->control().gather(std::chrono::milliseconds(0)); }
  // All that was told before is read by now.
  void settle() { EXPECT_EQ(nodeid_of(root_, "missing"), 0u); }

  uint64_t metrics_ = 0;
};

TEST_F(ControlReadsTest, UsersTakeTurns) {
  const uint64_t first = kernel_.tell(request(5)), second = kernel_.tell(request(5));
  const uint64_t others = kernel_.tell(request(6)), least = kernel_.tell(request(0));
  settle();
  for (const uint64_t expected : {first, others, least, second}) {
    gather();
    EXPECT_EQ(kernel_.next_answered(), expected);
  }
  gather();  // there is nothing to do
}

TEST_F(ControlReadsTest, AUserWithTooManyIsRefused) {
  for (size_t number = 0; number < ControlReads::kMostWaiting; ++number) kernel_.tell(request(5));
  EXPECT_EQ(kernel_.ask(request(5)).error, EAGAIN);
  const uint64_t others = kernel_.tell(request(6));
  settle();
  gather();
  (void)kernel_.next_answered();
  gather();
  EXPECT_EQ(kernel_.next_answered(), others);
  kernel_.tell(request(5));
  settle();  // one was done, so one more waits
  EXPECT_EQ(kernel_.ask(request(5)).error, EAGAIN);
}

TEST_F(ControlReadsTest, ATextThatIsThereIsReadAtOnce) {
  const uint64_t unique = kernel_.tell(request(5));
  settle();
  gather();
  const test::FuseAnswer opened = kernel_.answer_to(unique);
  ASSERT_EQ(opened.error, 0);
  const File file{metrics_, opened.as<fuse_open_out>().fh};
  EXPECT_NE(read(file, 0, 4096).bytes.find("kvcachefs_info"), std::string::npos) << "nobody gathers now";
}

TEST_F(ControlReadsTest, RequestsThatStillWaitAtTheEndAreAnswered) {
  const uint64_t first = kernel_.tell(request(5)), second = kernel_.tell(request(6));
  settle();
  session_->control().end_reads();
  EXPECT_EQ(kernel_.answer_to(first).error, ENOTCONN);
  EXPECT_EQ(kernel_.answer_to(second).error, ENOTCONN);
  session_->control().gather(std::chrono::minutes(10));  // nor does it wait itself
}

}  // namespace kvcachefs::control_reads_test
