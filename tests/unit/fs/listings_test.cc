#include "fs/listings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kvcachefs::listings_test {

using Names = std::set<std::string>;

std::string name_of(int number) {
  return "entry-" + std::to_string(number);
}

// A directory that is listed in parts of `limit_bytes`.
class Directory {
 public:
  Names names;

  ListedNames from(uint64_t place, size_t limit_bytes) const {
    NameCollector collector(place, limit_bytes);
    for (const std::string& name : names) collector.add(name);
    return collector.take();
  }
};

// Each name with its place.
using Placed = std::vector<std::pair<uint64_t, std::string>>;
Placed from_place(const ListedNames& listed, uint64_t place) {
  Placed placed;
  for (auto at = listed.first_at(place); at != listed.names.end(); ++at)
    placed.emplace_back(at->place, listed.text_of(*at));
  return placed;
}

TEST(NameCollectorTest, PartsTogetherAreTheWhole) {
  Directory directory;
  for (int i = 0; i < 5000; ++i) directory.names.insert(name_of(i));
  const Placed whole = from_place(directory.from(0, SIZE_MAX), 0);
  EXPECT_EQ(whole.size(), 5000u);
  EXPECT_TRUE(std::ranges::is_sorted(whole));
  for (const size_t limit_bytes : {100u, 5000u, 100'000u}) {
    Placed seen;
    for (uint64_t at = 0; at != ListedNames::kNoEnd;) {
      const ListedNames part = directory.from(at, limit_bytes);
      EXPECT_LE(part.bytes(), limit_bytes + 40) << "and the name that did not fit";
      ASSERT_GT(part.to, at);
      std::ranges::copy(from_place(part, at), std::back_inserter(seen));
      at = part.to;
    }
    EXPECT_EQ(seen, whole) << limit_bytes;
  }
}

TEST(NameCollectorTest, FromAnyPlaceTheRestFollows) {
  Directory directory;
  for (int i = 0; i < 300; ++i) directory.names.insert(name_of(i));
  Placed whole = from_place(directory.from(0, SIZE_MAX), 0);
  while (!whole.empty()) {
    const uint64_t next = whole.front().first + 1;
    whole.erase(whole.begin());
    ASSERT_EQ(from_place(directory.from(next, SIZE_MAX), next), whole);
  }
}

TEST(NameCollectorTest, ANameThatStaysKeepsItsPlace) {
  Directory directory;
  std::mt19937 random(3);
  for (int i = 0; i < 1000; ++i) directory.names.insert(name_of(i));
  Names seen;
  for (uint64_t at = 0; at != ListedNames::kNoEnd;) {
    const ListedNames part = directory.from(at, 3000);
    for (const auto& [place, name] : from_place(part, at))
      EXPECT_TRUE(seen.insert(name).second) << name << " twice";
    at = part.to;
    for (int i = 0; i < 50; ++i) {
      const int number = static_cast<int>(random() % 1000);
      if (number % 2 == 1) directory.names.erase(name_of(number));
      directory.names.insert(name_of(1000 + static_cast<int>(random() % 10'000)));
    }
  }
  for (int i = 0; i < 1000; i += 2) EXPECT_TRUE(seen.contains(name_of(i))) << i;
}

TEST(NameCollectorTest, ANameThatIsReadTwiceIsListedOnce) {
  NameCollector collector(0, SIZE_MAX);
  for (const char* const name : {"a", "b", "a", "c", "b"}) collector.add(name);
  EXPECT_EQ(collector.take().names.size(), 3u);
}

Listings::Names kept_names(size_t bytes, uint64_t from = 0, uint64_t to = ListedNames::kNoEnd) {
  return std::make_shared<const ListedNames>(ListedNames{
      .from = from, .to = to, .parent_ino = 0, .changed = {}, .names = {}, .text = std::string(bytes, 'x')});
}

TEST(ListingsTest, HandlesDiffer) {
  Listings listings;
  const uint64_t first = listings.open();
  EXPECT_NE(first, 0u);
  EXPECT_NE(listings.open(), first);
  EXPECT_GT(Listings().open(), first) << "a successor's";
}

TEST(ListingsTest, FindsWhatCoversThePlace) {
  Listings listings;
  listings.keep(5, kept_names(10, 100, 200));
  EXPECT_EQ(listings.find(5, 99), nullptr);
  EXPECT_NE(listings.find(5, 100), nullptr);
  EXPECT_EQ(listings.find(5, 200), nullptr);
  EXPECT_EQ(listings.find(6, 100), nullptr);
  listings.drop(5);
  EXPECT_EQ(listings.find(5, 100), nullptr);
  EXPECT_EQ(listings.kept_bytes(), 0u);
  listings.keep(0, kept_names(10));
  EXPECT_EQ(listings.find(0, 0), nullptr) << "the handle of all directories";
}

TEST(ListingsTest, TheLeastRecentlyUsedLeave) {
  Listings listings(100'000);
  for (uint64_t handle = 1; handle <= 3; ++handle) listings.keep(handle, kept_names(30'000));
  EXPECT_NE(listings.find(1, 0), nullptr);
  listings.keep(4, kept_names(30'000));
  EXPECT_EQ(listings.find(2, 0), nullptr);
  EXPECT_NE(listings.find(1, 0), nullptr);
  for (uint64_t handle = 10; handle < 10'000; ++handle) listings.keep(handle, kept_names(0));
  EXPECT_LE(listings.kept_bytes(), 100'000u) << "many small ones are bounded too";
  listings.keep(9, kept_names(200'000));
  EXPECT_EQ(listings.kept_bytes(), 0u) << "one that is too large";
}

}  // namespace kvcachefs::listings_test
