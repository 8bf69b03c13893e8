#include <gtest/gtest.h>

#include <cerrno>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "fs/control/queries.h"

namespace kvcachefs::open_query_test {

Result<void> refuse(std::string_view, AnswerText&) {
  return fail(EINVAL);
}
Result<void> echo(std::string_view query, AnswerText& text) {
  text.add(query);
  return {};
}

template <class T>
int code_of(const Result<T>& result) {
  return result ? 0 : result.error().code;
}

TEST(OpenQuery, AFailureStaysUntilTheNextQuery) {
  QueryBudget budget;
  OpenQuery query(budget, 1);
  ASSERT_EQ(code_of(query.add("what")), 0);
  EXPECT_EQ(code_of(query.read(0, 10, refuse)), EINVAL);
  EXPECT_EQ(code_of(query.read(0, 10, echo)), EINVAL) << "an empty answer would be a success";
  ASSERT_EQ(code_of(query.add("next")), 0);
  EXPECT_EQ(query.read(4, 10, echo).value_or(""), "next");
}

TEST(OpenQuery, NoCallWaitsForAnAnswer) {
  QueryBudget budget;
  OpenQuery query(budget, 1);
  ASSERT_EQ(code_of(query.add("what")), 0);
  const auto slow = [&](std::string_view, AnswerText& text) -> Result<void> {
    EXPECT_EQ(code_of(query.add("more")), EBUSY);
    EXPECT_EQ(code_of(query.read(0, 10, echo)), EBUSY);
    text.add("wer");
    text.begin_with("ans");
    return {};
  };
  EXPECT_EQ(query.read(0, 10, slow).value_or(""), "answer");
  EXPECT_EQ(query.read(3, 10, refuse).value_or(""), "wer");
}

TEST(OpenQuery, APartThatIsLostSpoilsTheQuery) {
  QueryBudget budget;
  OpenQuery query(budget, 1);
  ASSERT_EQ(code_of(query.add(std::string(kMostQueryBytes, 'x'))), 0);
  EXPECT_EQ(code_of(query.add("y")), EMSGSIZE);
  EXPECT_EQ(code_of(query.add("")), EMSGSIZE);
  EXPECT_EQ(code_of(query.read(0, 10, echo)), EMSGSIZE);
}

TEST(OpenQuery, TakesNothingOnceItHasFailedOrIsClosed) {
  QueryBudget budget;
  const std::string large(kMostQueryBytes, 'x');
  const uint64_t most = QueryBudget::kMostOfUser / kMostQueryBytes;
  std::vector<std::unique_ptr<OpenQuery>> open;
  for (uint64_t i = 0; i < 3 * most; ++i) {
    open.push_back(std::make_unique<OpenQuery>(budget, 1));
    ASSERT_EQ(code_of(open.back()->add(large)), 0) << i;
    ASSERT_EQ(code_of(open.back()->read(0, 10, refuse)), EINVAL);
  }
  open.clear();
  for (uint64_t i = 0; i <= most; ++i) {
    open.push_back(std::make_unique<OpenQuery>(budget, 1));
    EXPECT_EQ(code_of(open.back()->add(large)), i < most ? 0 : EDQUOT) << i;
  }
  OpenQuery others(budget, 2);
  EXPECT_EQ(code_of(others.add(large)), 0) << "each user has a share";
  open.pop_back();
  open.pop_back();
  EXPECT_EQ(code_of(OpenQuery(budget, 1).add(large)), 0);
}

TEST(OpenQuery, AnAnswerEndsWhereItsUserHasNoRoom) {
  QueryBudget budget;
  OpenQuery query(budget, 1);
  ASSERT_EQ(code_of(query.add("what")), 0);
  uint64_t bytes = 0;
  const std::string line(10'000, 'x');
  const auto endless = [&](std::string_view, AnswerText& text) -> Result<void> {
    while (text.add(line) && bytes < 2 * QueryBudget::kMostOfUser) bytes += line.size();
    return {};
  };
  EXPECT_EQ(code_of(query.read(0, 10, endless)), EDQUOT);
  EXPECT_LE(bytes, QueryBudget::kMostOfUser);
  EXPECT_TRUE(QueryBudget::Part(budget, 1).set(QueryBudget::kMostOfUser)) << "all of it is given back";
}

TEST(OpenQuery, ALongAnswerIsReadInParts) {
  QueryBudget budget;
  OpenQuery query(budget, 1);
  std::string expected = "head\n";
  const auto numbers = [&](std::string_view, AnswerText& text) -> Result<void> {
    for (int i = 0; i < 30'000; ++i) {
      const std::string line = std::to_string(i) + "\n";
      expected += line;
      text.add(line);
    }
    text.begin_with("head\n");
    return {};
  };
  ASSERT_EQ(code_of(query.add("what")), 0);
  std::string answer;
  for (size_t size = 1;; size = size * 3 + 7) {
    const std::string part = query.read(answer.size(), size, numbers).value_or("");
    if (part.empty()) break;
    answer += part;
  }
  EXPECT_EQ(answer, expected);
  EXPECT_TRUE(QueryBudget::Part(budget, 1).set(QueryBudget::kMostOfUser - expected.size()));
  EXPECT_FALSE(QueryBudget::Part(budget, 1).set(QueryBudget::kMostOfUser - expected.size() + 1));
}

TEST(QueryBudget, AFewUsersDoNotKeepTheOthersFromAsking) {
  QueryBudget budget;
  std::deque<QueryBudget::Part> parts;
  uid_t user = 1;
  for (; user <= QueryBudget::kMostOfAll / QueryBudget::kMostOfUser; ++user)
    ASSERT_TRUE(parts.emplace_back(budget, user).set(QueryBudget::kMostOfUser));
  for (const uid_t other : {user, user + 1}) {
    QueryBudget::Part& part = parts.emplace_back(budget, other);
    EXPECT_FALSE(part.set(QueryBudget::kAlwaysOfUser + 1));
    EXPECT_TRUE(part.set(QueryBudget::kAlwaysOfUser));
  }
  EXPECT_FALSE(parts.emplace_back(budget, 1).set(1));
  parts.pop_front();
  EXPECT_TRUE(parts.back().set(1));
}

// One person may have the ids of many users (subuid(5)).
TEST(QueryBudget, ManyUsersHaveABoundTogether) {
  QueryBudget budget;
  std::deque<QueryBudget::Part> parts;
  uint64_t bytes = 0;
  for (uid_t user = 1; user <= 4096; ++user)
    if (parts.emplace_back(budget, user).set(QueryBudget::kAlwaysOfUser)) bytes += QueryBudget::kAlwaysOfUser;
  EXPECT_EQ(bytes, 2 * QueryBudget::kMostOfAll);
}

}  // namespace kvcachefs::open_query_test
