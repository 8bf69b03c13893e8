#include "fs/mapped_ids.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fuse.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <string>

namespace kvcachefs::mapped_ids_test {

// From include/uapi/linux/fuse.h of Linux 6.12; Debian 12's is older.
constexpr uint32_t kInitExtended = 1u << 30;
constexpr uint32_t kAllowIdmap = 1u << (40 - 32);

// What the kernel gets of an answer that is written as libfuse writes it.
fuse_init_out sent(uint32_t flags, size_t answer_bytes = sizeof(fuse_init_out), int pieces = 2) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  fuse_out_header header{};
  fuse_init_out answer{};
  answer.flags = flags;
  const std::array<iovec, 2> message = {iovec{&header, sizeof header}, iovec{&answer, answer_bytes}};
  EXPECT_GT(::writev(ends[1], message.data(), pieces), 0);
  ::close(ends[1]);
  fuse_init_out got{};
  EXPECT_EQ(::read(ends[0], &header, sizeof header), static_cast<ssize_t>(sizeof header));
  EXPECT_GE(::read(ends[0], &got, sizeof got), 0);
  ::close(ends[0]);
  return got;
}

TEST(MappedIds, AreAllowedInTheNextAnswerAlone) {
  EXPECT_EQ(sent(kInitExtended).flags2, 0u);
  allow_mapped_ids();
  EXPECT_EQ(sent(kInitExtended).flags2, kAllowIdmap);
  EXPECT_EQ(sent(kInitExtended).flags2, 0u);
}

TEST(MappedIds, AreOfNoUseToAKernelWithoutFurtherFlags) {
  allow_mapped_ids();
  const fuse_init_out answer = sent(0);
  EXPECT_EQ(answer.flags2, 0u);
  EXPECT_EQ(answer.flags, 0u);
}

TEST(MappedIds, AnAnswerThatIsTooShortIsLeftAlone) {
  constexpr size_t kFlagsEnd = offsetof(fuse_init_out, flags2) + sizeof(uint32_t);
  allow_mapped_ids();
  EXPECT_EQ(sent(kInitExtended, kFlagsEnd).flags2, kAllowIdmap) << "as an older libfuse would send it";
  allow_mapped_ids();
  EXPECT_EQ(sent(kInitExtended, kFlagsEnd - 1).flags2, 0u);
  allow_mapped_ids();
  (void)sent(kInitExtended, sizeof(fuse_init_out), 1);  // an error, which has a header alone
  EXPECT_EQ(sent(kInitExtended).flags2, 0u) << "that was the answer";
}

}  // namespace kvcachefs::mapped_ids_test
