#include "tier/entries/shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

namespace kvcachefs::shares_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr Taken kInode{.data_bytes = 0, .inode_space = kNameSpace, .disk_units = 0};

class SharesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    shares_.set_memory({.size_bytes = 100 * kMiB, .inodes = 1000});
    shares_.set_disk(1000, 4096);
    shares_.set_share(10);
  }
  // The user's inode takes this much now; answers his number.
  uint8_t take(uint64_t ino, uid_t uid, const Taken& taken) {
    File& its = files_[ino];
    its.facts.ino = ino;
    its.facts.owner = shares_.given(its.facts, uid, its.taken, taken);
    its.taken = taken;
    return its.facts.owner;
  }
  void remove(uint64_t ino) {
    shares_.changed(ino, files_[ino].facts.owner, files_[ino].taken, {});
    files_.erase(ino);
  }
  std::set<uid_t> over() const {
    std::set<uid_t> result;
    for (const Shares::User& user : shares_.users())
      if (user.over) result.insert(user.uid.value_or(UINT32_MAX));
    return result;
  }

  struct File {
    PolicyFacts facts;
    Taken taken;
  };
  Shares shares_;
  std::map<uint64_t, File> files_;
};

TEST_F(SharesTest, WhoHasMoreOfOneKindIsOver) {
  Taken taken = kInode;
  taken.data_bytes = 10 * kMiB - kInodeBytes;
  const uint8_t number = take(1, 1000, taken);
  EXPECT_FALSE(shares_.is_over(number)) << "all of his share";
  ++taken.data_bytes;
  EXPECT_EQ(take(1, 1000, taken), number);
  EXPECT_TRUE(shares_.is_over(number));
  EXPECT_TRUE(shares_.is_user_over(1000));
  EXPECT_FALSE(shares_.is_user_over(1001));
  EXPECT_EQ(shares_.over().count(), 1u);
  EXPECT_TRUE(shares_.over()[number]);

  take(2, 1001, {.data_bytes = 0, .inode_space = 100 * kNameSpace, .disk_units = 0});
  take(3, 1002, {.data_bytes = 0, .inode_space = 101 * kNameSpace, .disk_units = 0});
  take(4, 1003, {.data_bytes = 0, .inode_space = kNameSpace, .disk_units = 100});
  take(5, 1004, {.data_bytes = 0, .inode_space = kNameSpace, .disk_units = 101});
  EXPECT_EQ(over(), (std::set<uid_t>{1000, 1002, 1004}));
  shares_.set_share(0);
  EXPECT_THAT(over(), IsEmpty());
  EXPECT_FALSE(shares_.is_over(number) || shares_.is_user_over(1000) || shares_.over().any());
  shares_.set_share(11);
  EXPECT_THAT(over(), IsEmpty());
}

TEST_F(SharesTest, OnlyWhatIsBeyondAShareIsExcess) {
  take(1, 1000, {.data_bytes = 30 * kMiB, .inode_space = 8 * kNameSpace, .disk_units = 0});
  take(2, 1001, {.data_bytes = 4096, .inode_space = 150 * kNameSpace, .disk_units = 0});
  take(3, 1002, {.data_bytes = 9 * kMiB, .inode_space = kNameSpace, .disk_units = 0});
  const Shares::Excess excess = shares_.excess();
  EXPECT_EQ(excess.data_bytes, 20 * kMiB + 8 * kInodeBytes);
  EXPECT_EQ(excess.inodes, 50u);
}

// Else one who has little could be promised the whole pool, and all others' would leave for it.
TEST_F(SharesTest, APromiseCountsAsFarAsAShareGoes) {
  Shares::Promises promised{};
  promised[take(1, 1000, {.data_bytes = 4 * kMiB, .inode_space = 0, .disk_units = 0})] = 50 * kMiB;
  EXPECT_EQ(shares_.within(promised), 6 * kMiB);
  promised[take(2, 1001, {.data_bytes = 40 * kMiB, .inode_space = 0, .disk_units = 0})] = 50 * kMiB;
  EXPECT_EQ(shares_.within(promised), 6 * kMiB);
  promised[take(3, 1002, {.data_bytes = kMiB, .inode_space = 0, .disk_units = 0})] = 3 * kMiB;
  EXPECT_EQ(shares_.within(promised), 9 * kMiB);
}

TEST_F(SharesTest, AnotherOwnerTakesWhatItTakes) {
  Taken taken{.data_bytes = 11 * kMiB, .inode_space = kNameSpace, .disk_units = 0};
  const uint8_t first = take(1, 1000, taken);
  const uint8_t second = take(1, 1001, taken);
  EXPECT_NE(first, second);
  EXPECT_EQ(over(), (std::set<uid_t>{1001}));
  ASSERT_EQ(shares_.users().size(), 1u);
  EXPECT_EQ(shares_.users()[0].memory_bytes, 11 * kMiB + kInodeBytes);
  remove(1);
  EXPECT_THAT(shares_.users(), IsEmpty());
}

TEST_F(SharesTest, ThoseBeyondTheNumbersShareOne) {
  for (uint32_t each = 0; each < 300; ++each) take(each, 1000 + each, kInode);
  EXPECT_EQ(shares_.users().size(), 255u) << "254, and the others; root has nothing";
  EXPECT_EQ(files_[253].facts.owner, 254);
  EXPECT_EQ(files_[254].facts.owner, Shares::kManyUsers);
  EXPECT_EQ(files_[299].facts.owner, Shares::kManyUsers);
  EXPECT_FALSE(shares_.is_user_over(1299));
  EXPECT_EQ(take(400, 1000 + 299, {.data_bytes = 0, .inode_space = 60 * kNameSpace, .disk_units = 0}),
            Shares::kManyUsers);
  EXPECT_EQ(over(), (std::set<uid_t>{UINT32_MAX}));
  EXPECT_TRUE(shares_.is_user_over(1299) && shares_.is_user_over(5000));
  EXPECT_FALSE(shares_.is_user_over(1000));
  // A number is somebody else's when nothing is left of its user.
  remove(7);
  EXPECT_EQ(take(500, 9000, kInode), 8);
  remove(500);
  for (auto at = files_.begin(); at != files_.end();) remove((at++)->first);
  EXPECT_THAT(shares_.users(), IsEmpty());
}

TEST_F(SharesTest, OtherInodesCountUntilTheirLastNameGoes) {
  shares_.counted(1, 1000, {.data_bytes = 4096, .inode_space = kNameSpace, .disk_units = 0});
  shares_.counted(2, 1000, kInode);
  ASSERT_EQ(shares_.users().size(), 1u);
  EXPECT_EQ(shares_.users()[0].memory_bytes, 4096 + 2 * kInodeBytes);
  shares_.counted(1, 1001, {.data_bytes = 4096, .inode_space = 3 * kNameSpace, .disk_units = 0});
  ASSERT_EQ(shares_.users().size(), 2u);
  EXPECT_EQ(shares_.users()[0].memory_bytes, kInodeBytes);
  EXPECT_EQ(shares_.users()[1].memory_bytes, 4096 + 3 * kInodeBytes);
  for (const uint64_t ino : {1, 2, 2, 3}) shares_.gone(ino);
  EXPECT_THAT(shares_.users(), IsEmpty());
}

}  // namespace kvcachefs::shares_test
