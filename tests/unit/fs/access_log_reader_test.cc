#include "fs/control/access_log_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "tests/support/pools_test.h"

namespace kvcachefs::access_log_reader_test {

constexpr uint64_t kNewYear2026Ns = uint64_t{1'767'225'600} * 1'000'000'000;

TEST(RenderAccess, HasAllThatIsKnown) {
  EXPECT_EQ(render_access({.event = AccessRecord::Event::kOpen,
                           .tier = Entry::Tier::kClean,
                           .uid = 1000,
                           .thread = 77,
                           .ino = 12,
                           .bytes = 4096,
                           .took_ns = 1'234'567,
                           .at_ns = kNewYear2026Ns + 1'002'003},
                          "llama", "a\tb\\c\n"),
            "2026-01-01T00:00:00.001002Z\topen\tllama\ta\\tb\\\\c\\n\t12\t4096\tclean\t1234\t1000\t77\n");
  EXPECT_EQ(render_access({.event = AccessRecord::Event::kEvict, .ino = 12, .at_ns = kNewYear2026Ns}, "", ""),
            "2026-01-01T00:00:00.000000Z\tevict\t-\t-\t12\t0\tdirty\t-\t-\t-\n");
}

class AccessLogReaderTest : public test::PoolsTest {
 protected:
  void SetUp() override {
    PoolsTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    auto opened = AccessLogReader::open(*pools_);
    ASSERT_TRUE(opened);
    reader_ = std::move(*opened);
  }
  void TearDown() override {
    reader_.reset();
    PoolsTest::TearDown();
  }
  // A record of a pool that is gone, with a name of its own.
  void add(std::string name) { pools_->access_log().add({.pool = 99, .name = std::move(name)}); }
  std::string read(size_t size = 4096) { return reader_->read(0, size); }

  std::unique_ptr<ControlReader> reader_;
};

TEST_F(AccessLogReaderTest, ReadsAreOfWholeLines) {
  EXPECT_EQ(read(), access_log_header());
  EXPECT_EQ(read(), "");
  add("a");
  add("b");
  const std::string both = read();
  EXPECT_EQ(std::count(both.begin(), both.end(), '\n'), 2);
  EXPECT_TRUE(both.contains("\topen\t-\ta\t") && both.contains("\topen\t-\tb\t")) << both;
  add("a");
  add("b");
  EXPECT_EQ(read(both.size() - 1).size(), both.size() / 2);
  EXPECT_EQ(read(10).size(), 10u) << "a line that is longer comes in pieces";
  EXPECT_EQ(read(0), "");
  EXPECT_TRUE(read().ends_with("-\n"));
  EXPECT_EQ(read(), "");
}

TEST_F(AccessLogReaderTest, OneThatFollowsAnotherSaysSo) {
  reader_->follows_another();
  EXPECT_TRUE(read().starts_with("# another process"));
  for (size_t i = 0; i < AccessLog::kMostRecords + 3; ++i) add("a");
  EXPECT_TRUE(read(100'000).starts_with("# 3 events are lost"));
}

}  // namespace kvcachefs::access_log_reader_test
