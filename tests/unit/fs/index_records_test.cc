#include "fs/control/index_records.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <climits>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcachefs::index_records_test {

using Values = std::vector<std::pair<std::string, std::string>>;

std::string bytes_of(const std::vector<uint32_t>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(uint32_t)};
}

std::string binary(const std::string& name, const std::string& model, const std::string& parent,
                   const std::string& agent, const std::vector<uint32_t>& tokens) {
  std::vector<uint32_t> head;
  for (const size_t size : {name.size(), model.size(), parent.size(), agent.size(), tokens.size()})
    head.push_back(static_cast<uint32_t>(size));
  return "KVI1" + bytes_of(head) + name + model + parent + agent + bytes_of(tokens);
}

// The only record of the text, which it takes whole.
IndexRecord only(std::string_view text) {
  auto record = take_record(text);
  EXPECT_TRUE(record && *record) << (record ? "not whole" : record.error().message);
  EXPECT_EQ(text, "");
  return record && *record ? **record : IndexRecord();
}
int error_of(std::string_view text) {
  const auto record = take_record(text);
  return record ? 0 : record.error().code;
}
bool is_unfinished(std::string_view text) {
  const auto record = take_record(text);
  return record && !*record;
}

TEST(TakeRecord, OfText) {
  const IndexRecord record =
      only("\n\nindex d/e  tokens=1,2,4294967295\tmodel=m parent=p agent=a layer=3 offset_hint=0.5,-1\n");
  EXPECT_EQ(record.name, "d/e");
  const float hint[] = {0.5F, -1};
  EXPECT_EQ(record.values, (Values{{"tokens", bytes_of({1, 2, UINT32_MAX})},
                                   {"model", "m"},
                                   {"parent", "p"},
                                   {"agent", "a"},
                                   {"layer", "3"},
                                   {"offset_hint", {reinterpret_cast<const char*>(hint), sizeof(hint)}}}));
}

TEST(TakeRecord, BlanksAndControlCharactersAreEscaped) {
  const IndexRecord record = only("index a\\ b\\nc\\\\\\ d\\x01 agent=my\\ agent\\\\ model=a=b\n");
  EXPECT_EQ(record.name, "a b\nc\\ d\x01");
  EXPECT_EQ(record.values, (Values{{"agent", "my agent\\"}, {"model", "a=b"}}));
  EXPECT_EQ(only("index \\ model=m agent=x\n").name, " model=m");
}

TEST(TakeRecord, OfBytes) {
  const IndexRecord record = only(binary("a b\n", "m", "p", "x", {7, 8}));
  EXPECT_EQ(record.name, "a b\n");
  EXPECT_EQ(record.values,
            (Values{{"model", "m"}, {"parent", "p"}, {"agent", "x"}, {"tokens", bytes_of({7, 8})}}));
  EXPECT_EQ(only(binary("e", "", "", "", {0x0a0a0a0a})).values, (Values{{"tokens", "\n\n\n\n"}}));
}

TEST(TakeRecord, WhatIsWrongIsRefused) {
  for (const char* wrong : {"what a agent=x\n",
                            "index\n",
                            "index a\n",
                            "index agent=x\n",
                            "index a agent\n",
                            "index a agent=\n",
                            "index a colour=red\n",
                            "index a agent=x agent=y\n",
                            "index a tokens=\n",
                            "index a tokens=1,\n",
                            "index a tokens=1;2\n",
                            "index a tokens=-1\n",
                            "index a tokens=4294967296\n",
                            "index a offset_hint=nan\n",
                            "index a pre_rope=yes\n",
                            "index a layer=x\n",
                            "index /a agent=x\n",
                            "index a/ agent=x\n",
                            "K\n",
                            "KVQ1",
                            "index a agent=a\\nb\n"})
    EXPECT_EQ(error_of(wrong), EINVAL) << wrong;
  EXPECT_EQ(error_of("index " + std::string(PATH_MAX, 'a') + " agent=x\n"), EINVAL);
  EXPECT_EQ(error_of(std::string("index a\0b agent=x\n", 18)), EINVAL);
  EXPECT_EQ(error_of(binary("", "m", "", "", {})), EINVAL);
  EXPECT_EQ(error_of(binary("e", "", "", "", {})), EINVAL);
  EXPECT_EQ(error_of(binary("e", "a\nb", "", "", {})), EINVAL);
  EXPECT_EQ(error_of(binary("e", std::string(256, 'm'), "", "", {})), EINVAL);
  EXPECT_EQ(error_of(binary("e", std::string(kMostRecordBytes, 'm'), "", "", {})), EMSGSIZE);
  EXPECT_EQ(error_of(std::string(
                "KVI1\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 24)),
            EMSGSIZE);
  EXPECT_EQ(error_of(std::string(kMostRecordBytes + 1, 'i')), EMSGSIZE);
}

TEST(TakeRecord, IsNotWholeBeforeItsEnd) {
  for (const std::string& whole :
       {std::string("index e tokens=1,2 model=m\n"), binary("e", "m", "p", "", {1, 2})}) {
    for (size_t size = 0; size < whole.size(); ++size)
      EXPECT_TRUE(is_unfinished(whole.substr(0, size))) << size << " of " << whole;
    EXPECT_FALSE(is_unfinished(whole));
  }
}

class OpenRecordsTest : public ::testing::Test {
 protected:
  int write(std::string_view piece, bool is_first = false) {
    const auto done =
        records_.write(piece, is_first, [this](std::span<const IndexRecord> whole) -> Result<void> {
          if (refused_ != 0) return fail(refused_);
          for (const IndexRecord& record : whole) names_ += record.name;
          return {};
        });
    message_ = done ? "" : done.error().message;
    return done ? 0 : done.error().code;
  }
  static std::string of(const std::string& name) { return "index " + name + " agent=x\n"; }

  QueryBudget budget_;
  OpenRecords records_{budget_, 1};
  int refused_ = 0;
  std::string names_, message_;
};

TEST_F(OpenRecordsTest, AWriteMayEndAnywhere) {
  const std::string all = of("a") + binary("b", "m", "", "", {1}) + "\n" + of("c");
  for (size_t cut = 1; cut < all.size(); ++cut) {
    names_.clear();
    ASSERT_EQ(write(all.substr(0, cut)), 0) << cut;
    ASSERT_EQ(write(all.substr(cut)), 0) << cut;
    EXPECT_EQ(names_, "abc") << cut;
    EXPECT_FALSE(records_.is_unfinished());
  }
  names_.clear();
  for (const char byte : all) ASSERT_EQ(write({&byte, 1}), 0);
  EXPECT_EQ(names_, "abc");
  ASSERT_EQ(write("index"), 0);
  EXPECT_TRUE(records_.is_unfinished());
}

TEST_F(OpenRecordsTest, OneWrongRecordKeepsAllOfItsWriteBack) {
  EXPECT_EQ(write(of("a") + "index b\n" + of("c")), EINVAL);
  EXPECT_TRUE(message_.starts_with("record 2: ")) << message_;
  EXPECT_EQ(names_, "");
  EXPECT_EQ(write(of("d")), 0) << "the next begins with a record";
  EXPECT_EQ(names_, "d");
  EXPECT_EQ(write(binary("e", "\n", "", "", {})), EINVAL);
  EXPECT_EQ(write(of("f")), 0) << "where it ends is known";
}

TEST_F(OpenRecordsTest, WhatGoesOnWithWhatIsLostIsRefused) {
  for (const std::string& piece :
       {"index b\n" + of("c").substr(0, 9), std::string("KVI2"), of("x").substr(0, 3)}) {
    refused_ = piece.size() == 3 ? EACCES : 0;
    EXPECT_NE(write(piece + (refused_ != 0 ? of("y").substr(3) + "in" : "")), 0);
    refused_ = 0;
    EXPECT_EQ(write(of("z")), ESTALE) << piece;
    EXPECT_EQ(write(of("z")), ESTALE) << "it stays so";
    EXPECT_EQ(write(of("z"), true), 0) << "the first of an open";
    EXPECT_FALSE(records_.is_unfinished());
  }
  records_.follows_another();
  EXPECT_EQ(write(of("z")), ESTALE);
  EXPECT_EQ(write(of("z"), true), 0);
  EXPECT_EQ(write(of("z")), 0);
}

TEST_F(OpenRecordsTest, AnErrorOfTheirsLosesNoneThatIsWhole) {
  refused_ = ENOENT;
  EXPECT_EQ(write(of("a")), ENOENT);
  refused_ = 0;
  EXPECT_EQ(write(of("b")), 0);
}

TEST_F(OpenRecordsTest, WhatIsNotWholeIsBounded) {
  const std::string large = "index a agent=" + std::string(kMostRecordBytes - 20, 'x');
  ASSERT_EQ(write(large), 0);
  EXPECT_EQ(write(std::string(20, 'x')), EMSGSIZE);
  std::vector<std::unique_ptr<OpenRecords>> open;
  const auto unused = [](std::span<const IndexRecord>) { return Result<void>(); };
  for (uint64_t i = 0; i < QueryBudget::kMostOfUser / large.size(); ++i) {
    open.push_back(std::make_unique<OpenRecords>(budget_, 1));
    ASSERT_TRUE(open.back()->write(large, true, unused)) << i;
  }
  OpenRecords one_more(budget_, 1), others(budget_, 2);
  const auto refused = one_more.write(large, true, unused);
  EXPECT_EQ(refused ? 0 : refused.error().code, EDQUOT);
  EXPECT_TRUE(others.write(large, true, unused)) << "each user has a share";
  open.pop_back();
  EXPECT_TRUE(one_more.write(large, true, unused));
}

}  // namespace kvcachefs::index_records_test
