#include "fs/pages_in_use.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

namespace kvcachefs::pages_in_use_test {

constexpr uint64_t kFile = 7;

TEST(PagesInUse, ReadersAreRefusedOnlyWhileAFileIsCut) {
  PagesInUse pages;
  EXPECT_FALSE(pages.read(kFile).refused());
  {
    const auto cutting = pages.cut(kFile);
    EXPECT_TRUE(pages.read(kFile).refused());
    EXPECT_FALSE(pages.read(kFile + 1).refused());
  }
  EXPECT_FALSE(pages.read(kFile).refused());
}

TEST(PagesInUse, ACutWaitsForTheReadsUnderWay) {
  PagesInUse pages;
  std::atomic<bool> cut = false;
  // new, because a Reading does not move.
  std::unique_ptr<PagesInUse::Reading> first(new PagesInUse::Reading(pages.read(kFile)));
  std::unique_ptr<PagesInUse::Reading> second(new PagesInUse::Reading(pages.read(kFile)));
  std::thread cutter([&] {
    const auto cutting = pages.cut(kFile);
    cut = true;
  });
  while (!cut && !pages.read(kFile).refused()) std::this_thread::yield();  // the cutter has come
  EXPECT_FALSE(first->refused());
  first.reset();
  EXPECT_FALSE(cut) << "one more reads";
  second.reset();
  cutter.join();
  EXPECT_TRUE(cut);
}

}  // namespace kvcachefs::pages_in_use_test
