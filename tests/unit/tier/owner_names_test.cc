#include "tier/index/owner_names.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>

namespace kvcachefs::owner_names_test {

TEST(OwnerNamesTest, ANameKeepsItsNumberWhileAReferenceIsHeld) {
  OwnerNames names;
  const OwnerNumber planner = names.acquire("planner").value();
  EXPECT_NE(planner, kNoOwner);
  EXPECT_EQ(names.acquire("planner").value(), planner);
  EXPECT_NE(names.acquire("coder").value(), planner);
  names.release(planner);
  EXPECT_EQ(names.find("planner"), planner);
  EXPECT_EQ(names.name_of(planner), "planner");
  names.release(planner);
  EXPECT_EQ(names.find("planner"), kNoOwner);
  EXPECT_EQ(names.size(), 1u);
}

TEST(OwnerNamesTest, NoOwnerIsNumberedWithoutReferences) {
  OwnerNames names;
  EXPECT_EQ(names.acquire("").value(), kNoOwner);
  names.release(kNoOwner);
  EXPECT_EQ(names.name_of(kNoOwner), "");
  EXPECT_EQ(names.size(), 0u);
}

TEST(OwnerNamesTest, OneNameTooManyIsRefusedAndTakenWhenAnotherHasGone) {
  OwnerNames names;
  for (size_t i = 0; i < kMostOwnerNames; ++i) ASSERT_TRUE(names.acquire("agent" + std::to_string(i)));
  const Result<OwnerNumber> refused = names.acquire("one more");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ENOSPC);
  EXPECT_NE(refused.error().message.find("65,535"), std::string::npos);
  EXPECT_TRUE(names.acquire("agent7"));
  names.release(names.find("agent8"));
  EXPECT_TRUE(names.acquire("one more"));
  EXPECT_EQ(names.name_of(names.find("agent65534")), "agent65534");
}

TEST(OwnerNamesTest, AnOwnerIsExcludedWithItsRolesAndNoOther) {
  OwnerNames names;
  const auto excluded = [&](const std::string& name, const std::string& owner) {
    const OwnerNumber number = names.acquire(name).value();
    return names.excluding(owner)(number);
  };
  EXPECT_TRUE(excluded("planner", "planner"));
  EXPECT_TRUE(excluded("planner:critic", "planner"));
  EXPECT_TRUE(excluded("planner:", "planner"));
  EXPECT_TRUE(excluded("planner:a:b", "planner:a"));
  EXPECT_FALSE(excluded("planner2", "planner"));
  EXPECT_FALSE(excluded("planner-x", "planner"));
  EXPECT_FALSE(excluded("plan", "planner"));
  EXPECT_FALSE(excluded("planner", "planner:critic"));
  EXPECT_FALSE(excluded("", "planner"));
  EXPECT_FALSE(excluded("planner", ""));
  EXPECT_FALSE(excluded("", ""));
}

}  // namespace kvcachefs::owner_names_test
