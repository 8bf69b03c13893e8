#include "base/key_value.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvcachefs {
namespace {

TEST(KeyValue, TakesOnePartAfterTheOther) {
  const auto parts = [](std::string_view list) {
    std::vector<std::string> result;
    while (!list.empty()) result.emplace_back(take_part(list, ','));
    return result;
  };
  using Parts = std::vector<std::string>;
  EXPECT_EQ(parts(""), Parts{});
  EXPECT_EQ(parts("a"), Parts{"a"});
  EXPECT_EQ(parts("a=b,c"), (Parts{"a=b", "c"}));
  EXPECT_EQ(parts(",a,,b"), (Parts{"", "a", "", "b"}));
  EXPECT_EQ(parts("a,"), Parts{"a"});
}

TEST(KeyValue, SplitsAtTheFirstEqualsSign) {
  EXPECT_EQ(split_key_value("a=b=c").key, "a");
  EXPECT_EQ(split_key_value("a=b=c").value, "b=c");
  EXPECT_EQ(split_key_value("a=").value, "");
  EXPECT_EQ(split_key_value("a").key, "a");
  EXPECT_EQ(split_key_value("a").value, std::nullopt);
}

}  // namespace
}  // namespace kvcachefs
