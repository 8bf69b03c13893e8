#include "tier/index/metadata.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>

namespace kvcachefs::metadata_test {

TEST(Metadata, TokensHaveAsManyXattrsAsTheyNeed) {
  EXPECT_EQ(tokens_xattr(0), "user.kv.tokens");
  EXPECT_EQ(tokens_xattr(12), "user.kv.tokens.12");
  for (const char* part : {"user.kv.tokens", "user.kv.tokens.1", "user.kv.tokens.65535"})
    EXPECT_TRUE(is_tokens_xattr(part)) << part;
  for (const char* other :
       {"user.kv.token", "user.kv.tokens.", "user.kv.tokens.0", "user.kv.tokens.01", "user.kv.tokens.65536",
        "user.kv.tokens.x", "user.kv.tokens.-1", "user.kv.tokensx1"})
    EXPECT_FALSE(is_tokens_xattr(other)) << other;
  EXPECT_FALSE(check_metadata("user.kv.tokens.1", "abc"));
  EXPECT_TRUE(check_metadata("user.kv.tokens.1", "abcd"));
  EXPECT_TRUE(check_metadata("user.kv.tokens.01", "abc")) << "others are stored as they come";
}

TEST(Metadata, ValuesHaveATextForm) {
  EXPECT_EQ(metadata_value("tokens", "1,2").value_or(""), std::string("\1\0\0\0\2\0\0\0", 8));
  EXPECT_EQ(metadata_value("offset_hint", "1,-2.5e0").value_or("").size(), 8u);
  EXPECT_EQ(metadata_value("layer", "3").value_or(""), "3");
  EXPECT_EQ(metadata_value("group", "my group").value_or(""), "my group");
  for (const auto& [key, text] : {std::pair("tokens", ""),
                                  {"tokens", "1,,2"},
                                  {"tokens", "1, 2"},
                                  {"offset_hint", "inf"},
                                  {"offset_hint", ","},
                                  {"pre_rope", "2"},
                                  {"layer", "03"},
                                  {"token", "1"},
                                  {"tokens.1", "1"},
                                  {"priority", "1"}}) {
    const auto value = metadata_value(key, text);
    EXPECT_EQ(value ? 0 : value.error().code, EINVAL) << key << "=" << text;
  }
}

}  // namespace kvcachefs::metadata_test
