#include "fs/control/line_buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <string>

namespace kvcachefs::line_buffer_test {

TEST(LineBuffer, GivesWholeLines) {
  LineBuffer buffer;
  EXPECT_EQ(buffer.add("a\nb\nc"), "a\nb\n");
  EXPECT_EQ(buffer.add("d"), "");
  EXPECT_EQ(buffer.add(""), "");
  EXPECT_EQ(buffer.add("\ne"), "cd\n");
  EXPECT_EQ(buffer.finish(), "e");
  EXPECT_EQ(buffer.finish(), "");
  EXPECT_EQ(buffer.add("\n"), "\n");
}

TEST(LineBuffer, DoesNotCareHowTheTextIsCut) {
  std::mt19937 random(3);
  std::string text;
  for (int line = 0; line < 200; ++line) text += std::string(random() % 50, 'x') + '\n';
  text += "unfinished";
  for (int round = 0; round < 100; ++round) {
    LineBuffer buffer;
    std::string whole;
    for (size_t at = 0; at < text.size();) {
      const size_t size = std::min<size_t>(1 + random() % 200, text.size() - at);
      whole += *buffer.add(std::string_view(text).substr(at, size));
      ASSERT_TRUE(whole.empty() || whole.back() == '\n');
      at += size;
    }
    EXPECT_EQ(whole + buffer.finish(), text);
  }
}

TEST(LineBuffer, RefusesWhatIsNoLine) {
  LineBuffer buffer;
  const std::string half(LineBuffer::kMostLineBytes / 2 + 1, 'x');
  ASSERT_TRUE(buffer.add(half));
  const Result<std::string> second = buffer.add(half);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, EINVAL);
  EXPECT_EQ(buffer.finish(), "");
  ASSERT_TRUE(buffer.add(half));
  EXPECT_EQ(buffer.add("\n" + half)->size(), half.size() + 1);
}

}  // namespace kvcachefs::line_buffer_test
