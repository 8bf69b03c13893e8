// Names that a restore still brings back, and what of their changes a successor is told.
#include "tier/pool/names_to_come.h"

#include <gmock/gmock.h>

#include <cerrno>
#include <future>
#include <string>

#include "tests/support/pool_parts.h"
#include "tier/pool/changed_names.h"

namespace kvcachefs::names_to_come_test {

using test::code_of;
using ::testing::ElementsAre;
using Outcome = NamesToCome::Outcome;
constexpr auto kPatience = std::chrono::seconds(20);

class NamesToComeTest : public ::testing::Test {
 protected:
  // The directory 100, which has the number 2, with the files a 5, b 6 and c 7; c also as d.
  NamesToComeTest() {
    names_.add_directory(100, 2);
    names_.add(2, "a", 5);
    names_.add(2, "b", 6);
    names_.add(2, "c", 7);
    names_.add(2, "d", 7);
  }
  std::future<int> awaited(uint64_t id) {
    return std::async(std::launch::async, [this, id] { return code_of(names_.await(id)); });
  }

  NamesToCome names_;
};

TEST_F(NamesToComeTest, BeforeAndAfterNothingIsToCome) {
  EXPECT_FALSE(names_.any());
  EXPECT_EQ(names_.to_come(100, "a"), 0u);
  names_.begin();
  EXPECT_TRUE(names_.any());
  names_.end(Outcome::kAllAreBack);
  EXPECT_FALSE(names_.any());
  EXPECT_EQ(names_.to_come(100, "a"), 0u);
  EXPECT_EQ(code_of(names_.await(5)), 0);
}

TEST_F(NamesToComeTest, TheyAreToComeUntilTheirTurn) {
  names_.begin();
  names_.came_to(4);
  EXPECT_EQ(names_.to_come(100, "a"), 5u);
  EXPECT_EQ(names_.to_come(100, "d"), 7u);
  EXPECT_EQ(names_.to_come(100, "e"), 0u);
  EXPECT_EQ(names_.to_come(101, "a"), 0u) << "a directory that a client has made";
  names_.came_to(6);
  EXPECT_EQ(names_.to_come(100, "b"), 0u);
  EXPECT_EQ(names_.to_come(100, "c"), 7u);
}

TEST_F(NamesToComeTest, WhoWaitsIsServedOutOfTurn) {
  names_.begin();
  EXPECT_EQ(names_.next_wanted(), 0u);
  auto seven = awaited(7);
  EXPECT_EQ(names_.next_wanted(kPatience), 7u);
  EXPECT_EQ(names_.to_come(100, "c"), 7u) << "in hand";
  EXPECT_EQ(names_.next_wanted(), 0u);
  EXPECT_EQ(seven.get(), 0);
  EXPECT_EQ(names_.to_come(100, "c"), 0u);
  EXPECT_EQ(names_.to_come(100, "d"), 0u);
  EXPECT_EQ(names_.to_come(100, "a"), 5u);
}

TEST_F(NamesToComeTest, AfterAFailureWhatIsNotBackIsNoMiss) {
  names_.begin();
  names_.came_to(5);
  auto seven = awaited(7);
  EXPECT_EQ(names_.next_wanted(kPatience), 7u);
  names_.end(Outcome::kSomeAreNot);
  EXPECT_EQ(seven.get(), EIO);
  EXPECT_EQ(names_.to_come(100, "a"), 0u);
  EXPECT_EQ(names_.to_come(100, "b"), 6u);
  EXPECT_EQ(code_of(names_.await(6)), EIO);
  EXPECT_EQ(code_of(names_.await(5)), 0);
}

class ChangedNamesTest : public test::ArenaTest {
 protected:
  int note(uint64_t id) { return code_of(changed_.note(id)); }
  RestoringMark mark() { return *restoring_mark_of(arena_->tree_fd()); }

  ChangedNames changed_;
};

TEST_F(ChangedNamesTest, TheMarkHasThemUntilItPassesThem) {
  changed_.begin(arena_->tree_fd(), 100, {.up_to = 10, .changed = {12, 40}});
  EXPECT_EQ(note(10), 0);
  EXPECT_EQ(note(101), 0);
  EXPECT_FALSE(restoring_mark_of(arena_->tree_fd())) << "nothing to tell";
  EXPECT_EQ(note(30), 0);
  EXPECT_EQ(mark().up_to, 10u);
  EXPECT_THAT(mark().changed, ElementsAre(12, 30, 40));
  changed_.came_to(30);
  EXPECT_EQ(note(20), 0) << "which has come meanwhile";
  EXPECT_EQ(mark().up_to, 30u);
  EXPECT_THAT(mark().changed, ElementsAre(40));
  changed_.came_to(50);
  changed_.mark_reached();
  EXPECT_EQ(mark().up_to, 50u);
  EXPECT_TRUE(mark().changed.empty());
  EXPECT_TRUE(changed_.end());
  EXPECT_FALSE(restoring_mark_of(arena_->tree_fd()));
  EXPECT_EQ(note(60), 0);
  EXPECT_FALSE(restoring_mark_of(arena_->tree_fd()));
}

TEST_F(ChangedNamesTest, TheMarkHasRoomForSoMany) {
  constexpr uint64_t kMost = RestoringMark::kMostChanged;
  changed_.begin(arena_->tree_fd(), 2 * kMost, {.up_to = 1});
  for (uint64_t id = 10; id < 10 + kMost; ++id) ASSERT_EQ(note(id), 0) << id;
  EXPECT_EQ(mark().changed.size(), kMost);
  EXPECT_EQ(note(10 + kMost), EBUSY);
  EXPECT_EQ(note(10), 0) << "which it has";
  changed_.came_to(10);
  changed_.mark_reached();
  EXPECT_EQ(note(10 + kMost), 0);
  EXPECT_EQ(mark().changed.size(), kMost);
}

TEST_F(ChangedNamesTest, WithoutASuccessorNothingIsMarked) {
  changed_.begin(-1, 100, {.up_to = 1});
  EXPECT_EQ(note(5), 0);
  EXPECT_FALSE(restoring_mark_of(arena_->tree_fd()));
  EXPECT_TRUE(changed_.end());
}

}  // namespace kvcachefs::names_to_come_test
