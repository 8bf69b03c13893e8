#include "daemon/cli/mount_tree.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "tests/unit/daemon/fake_mount.h"

namespace kvcachefs::mount_tree_test {

TEST(StatsReading, TakesNamesAndValuesApart) {
  const auto stats = StatsReading::parse("a 1\nwithout\n\nb two words\nc \na 2\nlast 7");
  EXPECT_EQ(stats.number("a"), 2u) << "the last one stands";
  EXPECT_EQ(stats.text("b"), "two words");
  EXPECT_EQ(stats.text("c"), "");
  EXPECT_EQ(stats.number("last"), 7u) << "without an end of line";
  EXPECT_EQ(stats.text("without"), "");
  EXPECT_EQ(stats.number("missing"), 0u) << "an older daemon";
}

TEST(StatsReading, WhatIsNoNumberIsZero) {
  const auto stats =
      StatsReading::parse("most 18446744073709551615\nmore 18446744073709551616\nless -1\nword x\n");
  EXPECT_EQ(stats.number("most"), UINT64_MAX);
  for (const char* name : {"more", "less", "word"}) EXPECT_EQ(stats.number(name), 0u) << name;
}

class MountTreeTest : public ::testing::Test {
 protected:
  MountTreeTest() { mount_.add_pool("p"); }
  template <class T>
  static int code_of(const Result<T>& result) {
    return result ? 0 : result.error().code;
  }

  test::FakeMount mount_;
  const MountTree tree_{mount_.root()};
};

TEST_F(MountTreeTest, IsAKvcachefs) {
  EXPECT_TRUE(tree_.check());
  const auto other = MountTree("/proc").check();
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().message, "/proc is not a kvcachefs mount");
}

TEST_F(MountTreeTest, DirectoriesWithAPoolsNameArePools) {
  mount_.add_pool("a");
  mount_.write("file", "no directory");
  EXPECT_EQ(*tree_.pools(), (std::vector<std::string>{"a", "p"})) << "nor .kvcachefs";
  for (const char* name : {"", ".", "..", ".kvcachefs", "p/.pool", "../p", "file", "missing"})
    EXPECT_FALSE(tree_.has_pool(name)) << name;
  EXPECT_EQ(code_of(tree_.read_control("missing", "size")), ENOENT);
  EXPECT_EQ(code_of(tree_.write_control("..", "size", "1G")), ENOENT);
  EXPECT_EQ(code_of(tree_.read_control("p", "missing")), ENOENT);
}

TEST_F(MountTreeTest, ASettingIsShownWithoutWhatIsLearned) {
  EXPECT_EQ(*tree_.read_setting("p", "entry_size"), "auto");
  EXPECT_EQ(*tree_.read_setting("p", "size"), "16G");
  EXPECT_EQ(code_of(tree_.read_setting("p", "colour")), EINVAL);
  EXPECT_EQ(code_of(tree_.read_setting("p", "mode")), EINVAL) << "an attribute of the pool's directory";
  mount_.write("p/.pool/spill", "/disk/with space 1G\n");
  EXPECT_EQ(*tree_.read_setting("p", "spill"), "/disk/with space");
  EXPECT_EQ(*tree_.read_setting("p", "spill_size"), "1G");
}

TEST_F(MountTreeTest, APoolThatIsThereIsNotMadeAndOneThatIsNotIsNotRemoved) {
  EXPECT_EQ(code_of(tree_.create_pool("p", {})), EEXIST);
  EXPECT_EQ(code_of(tree_.delete_pool("q", true)), ENOENT);
  EXPECT_EQ(code_of(tree_.delete_pool("p", false)), ENOTEMPTY);
  EXPECT_TRUE(tree_.has_pool("p"));
}

TEST_F(MountTreeTest, APoolWhoseSettingsAreRefusedIsTakenAway) {
  EXPECT_EQ(code_of(tree_.create_pool("new", {{"size", "1G"}})), ENOENT)
      << "a directory of this test has no files";
  EXPECT_FALSE(tree_.has_pool("new"));
}

TEST_F(MountTreeTest, OneOrderHasTheWholeDisk) {
  ASSERT_TRUE(tree_.write_settings("p", {{"durability", "sync"},
                                         {"spill_size", "2G"},
                                         {"spill", "/disk/a"},
                                         {"spill_unit", "128K"},
                                         {"size", "8G"}}));
  EXPECT_EQ(mount_.read("p/.pool/spill"), "/disk/a 2G\nspill_unit=128K");
  EXPECT_EQ(mount_.read("p/.pool/size").substr(0, 2), "8G");
  EXPECT_EQ(mount_.read("p/.pool/durability").substr(0, 4), "sync");
  EXPECT_EQ(code_of(tree_.write_settings("p", {{"spill_size", "1K"}})), EINVAL) << "less than two units";
}

}  // namespace kvcachefs::mount_tree_test
