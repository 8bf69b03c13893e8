// The file of what was changed of pools (daemon/kept_settings.h), as text.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/kept_settings.h"
#include "tests/support/files.h"
#include "tests/unit/daemon/fake_mount.h"

namespace kvcachefs::kept_pools_test {

constexpr uint64_t kMemory = uint64_t{1} << 30;

const KeptPools kPools = {
    {"a", {.is_created = true, .is_deleted = false, .values = {{"size", "8M"}, {"policy", "lfu"}}}},
    {"b", {.is_created = false, .is_deleted = true, .values = {}}},
    {"c", {.is_created = false, .is_deleted = false, .values = {{"spill", "/data/\"x\"\\ y"}}}}};

constexpr std::string_view kOfANewerVersion = R"(
format = 7
[pools.p]
policy = "lfu"
colour = "dark \"blue\""
weights = [1, 2.5, {a = true}]
frozen = true
"a key" = 1979-05-27
[pools.p.schedule]
every = "1h"
[pools.p.schedule.but]
days = ["Sat", "Sun"]
[tenants.x]
share = 3

# end
)";

TEST(KeptPools, WhatIsWrittenIsRead) {
  for (const KeptPools& pools : {KeptPools(), kPools}) {
    const auto read = parse_kept_pools("F", format_kept_pools(pools), kMemory);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(*read, pools);
  }
}

TEST(KeptPools, WhatANewerVersionHasWrittenStays) {
  const auto read = parse_kept_pools("F", kOfANewerVersion, kMemory);
  ASSERT_TRUE(read) << read.error().message;
  const KeptPool& pool = read->at("p");
  EXPECT_EQ(pool.values.size(), 1u);
  EXPECT_EQ(pool.values.at("policy"), "lfu");
  EXPECT_EQ(pool.unknown.size(), 5u);
  EXPECT_FALSE((KeptPool{.values = {}, .unknown = pool.unknown}).is_nothing());
  const std::string text = format_kept_pools(*read);
  for (const char* part :
       {"\"format\" = 7\n", "\"tenants\" = { x = { share = 3 } }\n", "\"colour\" = \"dark \\\"blue\\\"\"\n",
        "\"weights\" = [ 1, 2.5, { a = true } ]\n", "\"frozen\" = true\n", "\"a key\" = 1979-05-27\n",
        "\"schedule\" = { but = { days = [ \"Sat\", \"Sun\" ] }, every = \"1h\" }\n"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is missing:\n" << text;
  const auto again = parse_kept_pools("F", text, kMemory);
  ASSERT_TRUE(again) << again.error().message << text;
  EXPECT_EQ(*again, *read);
}

TEST(KeptPools, AWrongValueOfAKnownKeyIsRefused) {
  for (const auto& [line, why] : std::vector<std::pair<std::string, std::string>>{
           {"policy = \"mru\"", "F:2: policy: 'mru' is not a policy"},
           {"policy = 3", "F:2: policy is no text"},
           {"created = \"yes\"", "F:2: created is not true or false"},
           {"deleted = 1", "F:2: deleted is not true or false"}}) {
    const auto read = parse_kept_pools("F", "[pools.p]\n" + line + "\n\n# end\n", kMemory);
    ASSERT_FALSE(read) << line;
    EXPECT_TRUE(read.error().message.starts_with(why)) << read.error().message;
  }
}

TEST(KeptPools, ATextThatWasCutIsRefused) {
  const std::string whole = format_kept_pools(kPools);
  for (size_t size = 0; size < whole.size(); ++size) {
    const auto read = parse_kept_pools("F", whole.substr(0, size), kMemory);
    ASSERT_FALSE(read) << whole.substr(0, size);
    EXPECT_TRUE(read.error().message.starts_with("F:")) << read.error().message;
  }
}

TEST(KeptPools, AVersionThatWroteNoLastLineIsRead) {
  const auto read =
      parse_kept_pools("F",
                       "# kvcachefsd wrote this: what was changed of its pools while it served, "
                       "over its configuration.\n"
                       "\n[pools.\"a\"]\npolicy = \"lfu\"\n",
                       kMemory);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->at("a").values.at("policy"), "lfu");
}

// A header of a table may be deeper than a value.
TEST(KeptPools, WhatCouldNotBeReadIsNotWritten) {
  test::FakeMount place;
  const std::string file = place.root() / "kept.settings";
  std::string header = "a";
  for (int depth = 0; depth < 300; ++depth) header += ".a";
  const std::string text = "[pools.p]\npolicy = \"lfu\"\n[" + header + "]\n\n# end\n";
  place.write("kept.settings", text);
  std::filesystem::permissions(file, std::filesystem::perms(0600));
  const auto read = KeptSettings::read(file, kMemory);
  ASSERT_TRUE(read) << read.error().message;
  KeptSettings settings(file, Config(), *read, kMemory);
  PoolOptions pool;
  pool.name = "p";
  EXPECT_TRUE(settings.origin(pool, "policy").is_kept);
  settings.forget(pool, "policy");
  EXPECT_EQ(test::read_file(file), text);
  EXPECT_TRUE(KeptSettings::read(file, kMemory));
}

}  // namespace kvcachefs::kept_pools_test
