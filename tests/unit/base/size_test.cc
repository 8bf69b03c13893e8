#include "base/size.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <random>

namespace kvcachefs::size_test {

constexpr uint64_t kK = 1024;
constexpr uint64_t kG = kK * kK * kK;

TEST(ParseSize, TakesNumbersUnitsAndFractions) {
  EXPECT_EQ(parse_size("0"), 0u);
  EXPECT_EQ(parse_size("4096"), 4096u);
  EXPECT_EQ(parse_size("512K"), 512 * kK);
  EXPECT_EQ(parse_size("512k"), 512 * kK);
  EXPECT_EQ(parse_size("16G"), 16 * kG);
  EXPECT_EQ(parse_size("1.5T"), 1536 * kG);
  EXPECT_EQ(parse_size("1.25G"), kG + kG / 4);
  EXPECT_EQ(parse_size("0.1G"), 107374182u);
  EXPECT_EQ(parse_size("1.50G"), kG + kG / 2);
  EXPECT_EQ(parse_size("15.999E"), 18445591152204944769u);
  EXPECT_EQ(parse_size("18446744073709551615"), UINT64_MAX);
}

TEST(ParseSize, RejectsTheRest) {
  for (const char* text : {"",
                           "K",
                           ".5G",
                           "1.G",
                           "1.5",
                           "-1",
                           "-1G",
                           "+1",
                           " 1",
                           "1 ",
                           "1 G",
                           "1GB",
                           "1GiB",
                           "G1",
                           "1.2.3G",
                           "0x10",
                           "1e9",
                           "16E",
                           "18446744073709551616",
                           "99999999999999999999E",
                           "1\n",
                           "1X",
                           "nan",
                           ".",
                           ".K",
                           "1..5G",
                           "1.-5G"}) {
    Result<uint64_t> size = parse_size(text);
    ASSERT_FALSE(size) << text;
    EXPECT_EQ(size.error().code, EINVAL);
    EXPECT_NE(size.error().message.find(text), std::string::npos);
  }
}

TEST(FormatSize, IsShortForEyes) {
  EXPECT_EQ(format_size(0), "0");
  EXPECT_EQ(format_size(1023), "1023");
  EXPECT_EQ(format_size(1024), "1K");
  EXPECT_EQ(format_size(512 * kK), "512K");
  EXPECT_EQ(format_size(16 * kG), "16G");
  EXPECT_EQ(format_size(1536 * kG), "1.5T");
  EXPECT_EQ(format_size(16 * kG + 1), "16G");
  EXPECT_EQ(format_size(10000 * kK * kK), "9.8G");
  EXPECT_EQ(format_size(kG - 1), "1G");
  EXPECT_EQ(format_size(1023 * kK), "1023K");
  EXPECT_EQ(format_size(UINT64_MAX), "16E");
}

TEST(FormatSizeExact, ComesBackAsItWas) {
  EXPECT_EQ(format_size_exact(0), "0");
  EXPECT_EQ(format_size_exact(4097), "4097");
  EXPECT_EQ(format_size_exact(1536), "1.5K");
  EXPECT_EQ(format_size_exact(1536 * kG), "1.5T");
  EXPECT_EQ(format_size_exact(10000 * kK * kK), "10000M");
  std::mt19937_64 random(7);
  for (int i = 0; i < 10000; ++i) {
    const uint64_t bytes = random() >> (random() % 64) << (random() % 40);
    EXPECT_EQ(parse_size(format_size_exact(bytes)), bytes);
  }
}

TEST(ParseNumber, TakesWholeDecimalsOnly) {
  EXPECT_EQ(parse_number("0"), 0u);
  EXPECT_EQ(parse_number("42"), 42u);
  for (const char* text : {"", "-1", "+1", "1.0", "1K", " 1", "18446744073709551616"}) {
    EXPECT_FALSE(parse_number(text)) << text;
  }
}

}  // namespace kvcachefs::size_test
