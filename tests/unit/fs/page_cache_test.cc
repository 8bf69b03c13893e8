#include "fs/page_cache.h"

#include <gtest/gtest.h>

namespace kvcachefs::page_cache_test {

constexpr uint64_t kFile = 7;

TEST(PageCache, AStoreBypassesItUntilItsLastClose) {
  PageCache cache;
  EXPECT_FALSE(cache.opened(kFile)) << "a file that was there before";
  cache.stored(kFile);
  EXPECT_TRUE(cache.bypasses(kFile));
  EXPECT_TRUE(cache.opened(kFile));
  EXPECT_TRUE(cache.opened(kFile));
  EXPECT_FALSE(cache.opened(kFile + 1));
  cache.closed(kFile);
  EXPECT_TRUE(cache.bypasses(kFile)) << "one is open";
  cache.closed(kFile);
  EXPECT_FALSE(cache.bypasses(kFile));
  EXPECT_FALSE(cache.opened(kFile));
}

TEST(PageCache, AStoreWhoseOpenFailedIsForgotten) {
  PageCache cache;
  cache.stored(kFile);
  cache.closed(kFile);
  EXPECT_FALSE(cache.opened(kFile));
}

TEST(PageCache, AnOpenThatOnlyAsksIsNotCounted) {
  PageCache cache;
  cache.stored(kFile);
  EXPECT_TRUE(cache.opened(kFile));
  EXPECT_TRUE(cache.bypasses(kFile));
  cache.closed(kFile);
  EXPECT_FALSE(cache.bypasses(kFile));
}

TEST(PageCache, WhereTheKernelKeepsItRightAllBypassIt) {
  PageCache cache;
  cache.decide(true);
  EXPECT_TRUE(cache.opened(kFile));
  cache.closed(kFile);
  EXPECT_TRUE(cache.bypasses(kFile));
}

}  // namespace kvcachefs::page_cache_test
