#include "tier/room.h"

#include <gtest/gtest.h>

#include <thread>

namespace kvcachefs::room_test {

using Whose = Room::Whose;
using Answer = Room::Answer;

constexpr auto kNow = std::chrono::milliseconds(0);
constexpr auto kLong = std::chrono::minutes(10);

TEST(Room, ADemandCountsAsLongAsItLives) {
  Room room;
  {
    const Room::Demand writer(room, Whose::kWriter, 5);
    const Room::Demand promotion(room, Whose::kPromotion, 7);
    EXPECT_EQ(room.wanted_bytes(Whose::kWriter), 5u);
    EXPECT_EQ(room.wanted_bytes(Whose::kPromotion), 7u);
    EXPECT_EQ(room.wanted_bytes(), 12u);
  }
  EXPECT_EQ(room.wanted_bytes(), 0u);
}

TEST(Room, WhatHappenedSinceTheTicketIsTheAnswer) {
  Room room;
  auto ticket = room.ticket();
  EXPECT_EQ(room.wait(Whose::kWriter, ticket, kNow), Answer::kTryAgain) << "nothing has";
  room.nothing_to_evict(Whose::kWriter);
  EXPECT_EQ(room.wait(Whose::kWriter, ticket, kNow), Answer::kNothingToEvict);
  room.room_made();
  EXPECT_EQ(room.wait(Whose::kWriter, ticket, kNow), Answer::kTryAgain) << "room counts for more";
  ticket = room.ticket();
  EXPECT_EQ(room.wait(Whose::kWriter, ticket, kNow), Answer::kTryAgain) << "all that was before the ticket";
}

TEST(Room, ARoundForAPromotionSaysNothingToAWriter) {
  Room room;
  const auto ticket = room.ticket();
  room.nothing_to_evict(Whose::kPromotion);
  EXPECT_EQ(room.wait(Whose::kPromotion, ticket, kNow), Answer::kNothingToEvict);
  EXPECT_EQ(room.wait(Whose::kWriter, ticket, kNow), Answer::kTryAgain);
}

TEST(Room, ARoundForAWriterSaysItToAPromotionToo) {
  Room room;
  const auto ticket = room.ticket();
  room.nothing_to_evict(Whose::kWriter);
  EXPECT_EQ(room.wait(Whose::kPromotion, ticket, kNow), Answer::kNothingToEvict);
}

TEST(Room, AWaiterIsWokenByEitherAnswer) {
  Room room;
  for (const bool made : {true, false}) {
    const auto ticket = room.ticket();
    Answer answer{};
    std::thread waiter([&] { answer = room.wait(Whose::kWriter, ticket, kLong); });
    made ? room.room_made() : room.nothing_to_evict(Whose::kWriter);
    waiter.join();
    EXPECT_EQ(answer, made ? Answer::kTryAgain : Answer::kNothingToEvict);
  }
}

// What came while rounds came every few milliseconds has woken the evictor for none of them: it looks once
// more before it waits for long.
TEST(Wakeup, WorkThatCameBeforeTheFirstLongWaitIsNotLeftForIt) {
  Wakeup wakeup;
  wakeup.wait(std::chrono::milliseconds(1));
  wakeup.wake_if_idle();
  wakeup.wait(kLong);
  wakeup.wake_if_idle();
  wakeup.wait(kLong);
}

TEST(Wakeup, AWakeBeforeTheWaitIsNotLost) {
  Wakeup wakeup;
  wakeup.wake();
  wakeup.wait(kLong);
  wakeup.wake_if_idle();
  wakeup.wait(kLong);
}

}  // namespace kvcachefs::room_test
