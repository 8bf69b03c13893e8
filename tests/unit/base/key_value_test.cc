#include "base/key_value.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvcachefs::key_value_test {

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

TEST(KeyValue, ANumberIsTheWholeText) {
  EXPECT_EQ(number_in<int>("-12"), -12);
  EXPECT_EQ(number_in<uint64_t>("ff", 16), 255u);
  for (const char* text : {"", "x", "1x", " 1", "1 ", "+1", "256"})
    EXPECT_FALSE(number_in<uint8_t>(text)) << text;
}

TEST(KeyValue, AFieldOfStatIsReadBehindTheName) {
  const std::string fields =
      " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 63 "
      "37 38\n";
  EXPECT_EQ(stat_field("42 (cat)" + fields, 39), "63");
  EXPECT_EQ(stat_field("42 (a) b) 1 (c)" + fields, 39), "63");
  EXPECT_EQ(stat_field("42 (a) b) 1 (c)" + fields, 3), "S");
  EXPECT_EQ(stat_field("42 (cat) S 1 2\n", 5), "2");
  EXPECT_EQ(stat_field("42 (cat) S 1 2\n", 39), "");
  EXPECT_EQ(stat_field("", 3), "");
}

TEST(KeyValue, AValueIsFoundByTheKeyOfItsLine) {
  constexpr std::string_view kText = "Name:\tTgid: 1\nTgid:\t42\nGroups:\t4 5 \nTgid:\t43";
  EXPECT_EQ(line_value(kText, "Tgid"), "\t42");
  EXPECT_EQ(line_value(kText, "Groups"), "\t4 5 ");
  EXPECT_EQ(line_value(kText, "roups"), "");
  EXPECT_EQ(line_value("Tgid", "Tgid"), "");
}

}  // namespace kvcachefs::key_value_test
