// A read that ends the process is written down for the next one. Each death is a child's.
#include "base/risky_read.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>

#include "tests/support/disks.h"
#include "tests/support/files.h"

namespace kvcachefs::risky_read_test {

class RiskyReadTest : public ::testing::Test {
 protected:
  // die_in() ends a child by a signal within the reading of `what`; an empty `what`: outside of any.
  int die_in(const std::string& what, bool afresh = false) {
    return test::in_child([&] {
      (void)::signal(SIGBUS,
                     SIG_DFL);  // a sanitizer's handler would end the child otherwise than by the signal
      RiskyRead::note_deaths_in(deaths_, afresh);
      { const RiskyRead ended("one that went well"); }
      if (what.empty()) (void)::raise(SIGBUS);
      const RiskyRead outer("not this one");
      const RiskyRead reading(what);
      (void)::raise(SIGBUS);
      return 0;
    });
  }
  // In a child too, because the handlers are the process's.
  bool was_deadly(const std::string& what, const std::string& forgotten = "") {
    return test::in_child([&] {
             RiskyRead::note_deaths_in(deaths_, false);
             if (!forgotten.empty()) RiskyRead::forget(forgotten);
             return RiskyRead::was_deadly(what) ? 1 : 0;
           }) == 1;
  }

  test::DiskDirectory place_;
  const std::string deaths_ = place_ / "deaths";
};

TEST_F(RiskyReadTest, ADeathIsWrittenDownUnderTheInnermostName) {
  EXPECT_EQ(die_in("a catalog"), 128 + SIGBUS);
  EXPECT_EQ(test::read_file(deaths_), "a catalog\n");
  EXPECT_TRUE(was_deadly("a catalog"));
  EXPECT_FALSE(was_deadly("a cat"));
  EXPECT_FALSE(was_deadly("catalog"));
}

TEST_F(RiskyReadTest, ADeathOutsideIsNobodysFault) {
  EXPECT_EQ(die_in(""), 128 + SIGBUS);
  EXPECT_EQ(test::read_file(deaths_), "");
}

TEST_F(RiskyReadTest, OnlyTheOneThatIsAskedForIsForgotten) {
  for (const char* what : {"a", "b", "a", "c"}) EXPECT_EQ(die_in(what), 128 + SIGBUS);
  EXPECT_FALSE(was_deadly("a", "a"));
  EXPECT_EQ(test::read_file(deaths_), "b\nc\n");
  EXPECT_EQ(die_in("d", true), 128 + SIGBUS);
  EXPECT_EQ(test::read_file(deaths_), "d\n") << "a fresh list";
}

}  // namespace kvcachefs::risky_read_test
