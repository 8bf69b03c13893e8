#include "tier/pool/empty_directories.h"

#include "gtest/gtest.h"

namespace kvcachefs::empty_directories_test {

EmptyDirectories::Directory directory(uint64_t ino, bool at_top = false) {
  return {.handle = {.ino = ino, .generation = 1}, .at_top = at_top};
}

uint64_t number_of(const std::optional<EmptyDirectories::Directory>& directory) {
  return directory ? directory->handle.ino : 0;
}

TEST(EmptyDirectories, TheOldestFirstAndThoseAtTheTopLast) {
  EmptyDirectories list;
  list.emptied(directory(1, true));
  list.emptied(directory(2));
  list.emptied(directory(3));
  list.emptied(directory(2));
  EXPECT_EQ(list.counts().ripe, 3u);
  EXPECT_EQ(number_of(list.next_ripe(true)), 2u);
  EXPECT_EQ(number_of(list.next_ripe(true)), 3u);
  EXPECT_EQ(number_of(list.next_ripe(false)), 0u);
  EXPECT_EQ(number_of(list.next_ripe(true)), 1u);
  EXPECT_EQ(number_of(list.next_ripe(true)), 0u);
}

TEST(EmptyDirectories, WhatWasMadeRestsAndIsNotRipeBefore) {
  EmptyDirectories list;
  list.rests(directory(1), 100);
  list.emptied(directory(1));
  EXPECT_EQ(number_of(list.next_ripe(true)), 0u);
  EXPECT_EQ(number_of(list.next_rested(99)), 0u);
  EXPECT_EQ(number_of(list.next_rested(100)), 1u);
  EXPECT_EQ(number_of(list.next_rested(100)), 0u);
}

TEST(EmptyDirectories, WhatIsEmptiedWhileItIsLookedAtIsNotedAgain) {
  EmptyDirectories list;
  list.emptied(directory(1));
  EXPECT_EQ(number_of(list.next_ripe(true)), 1u);
  list.emptied(directory(1));
  EXPECT_EQ(number_of(list.next_ripe(true)), 1u);
  // A directory that was asked about is noted again too, and a further ask() then finds it taken.
  EXPECT_TRUE(list.ask(directory(1), false, 7));
  EXPECT_FALSE(list.ask(directory(1), true, 8));
  list.take_asked(1);
  list.emptied(directory(1));
  EXPECT_FALSE(list.ask(directory(1), false, 9));
}

TEST(EmptyDirectories, TheKernelsAnswerIsKeptForWhatWasAsked) {
  EmptyDirectories list;
  ASSERT_TRUE(list.ask(directory(1), true, 7));
  list.told(2, true);
  ASSERT_EQ(list.asked().size(), 1u);
  EXPECT_FALSE(list.asked()[0].told);
  list.told(1, true);
  EXPECT_TRUE(list.asked()[0].told);
  EXPECT_TRUE(list.asked()[0].known);
  EXPECT_TRUE(list.asked()[0].by_name);
  EXPECT_EQ(list.asked()[0].asked_ms, 7u);
}

}  // namespace kvcachefs::empty_directories_test
