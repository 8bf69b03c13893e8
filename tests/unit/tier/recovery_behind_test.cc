// What a pool's disk has comes back while the pool is served.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <cerrno>
#include <ctime>
#include <future>
#include <utility>

#include "tests/support/recovery_test.h"

namespace kvcachefs::recovery_behind_test {

using test::code_of;
using test::directory_node;
using test::file_node;
using ::testing::HasSubstr;
using Tier = Entry::Tier;

class RecoveryBehindTest : public test::RecoveryTest {
 protected:
  // /d 2 with the files f 3 and g 4.
  void commit_tree() {
    commit_left({PutNode{directory_node(2)}, PutName{kCatalogRoot, "d", 2}, PutNode{file_node(3)},
                 PutName{2, "f", 3}, PutContent{3, content(1, {{1, 1}})}, PutNode{file_node(4)},
                 PutName{2, "g", 4}, PutContent{4, content(1, {{2, 1}})}});
  }
  Result<void> begin() { return attach(&Recovery::begin_attaching); }
  Result<void> bring_back(const std::function<void()>& in_use = [] {}) {
    return recovery_->bring_back(in_use);
  }
  // Leaves room for so many names.
  void fill_but(uint64_t free) {
    for (uint64_t i = arena_->usage().free_inodes; i > free; --i) (void)make("filler" + std::to_string(i));
    ASSERT_EQ(arena_->usage().free_inodes, free);
  }
};

TEST_F(RecoveryBehindTest, TheTierIsInUseWhenTheDirectoriesAreBack) {
  commit_tree();
  ASSERT_TRUE(begin());
  EXPECT_TRUE(recovery_->brings_back());
  EXPECT_TRUE(disk_->restoring());
  EXPECT_FALSE(is_there("d"));
  bool was_used = false;
  ASSERT_TRUE(bring_back([&] {
    was_used = true;
    EXPECT_NE(disk_->tier(), nullptr);
    EXPECT_FALSE(disk_->takes_more()) << "what is free on the disk is not known yet";
    EXPECT_TRUE(is_there("d"));
    EXPECT_FALSE(is_there("d/f"));
    EXPECT_EQ(restoring_up_to(root()), kCatalogRoot);
    EXPECT_TRUE(insight_->spill_usage().restoring);
    EXPECT_EQ(code_of(tree_->remove(root(), "d", true)), EBUSY);
  }));
  EXPECT_TRUE(was_used);
  EXPECT_FALSE(recovery_->brings_back());
  EXPECT_FALSE(disk_->restoring());
  EXPECT_FALSE(restoring_up_to(root()));
  EXPECT_TRUE(disk_->takes_more());
  EXPECT_EQ(state(ino("d/f")).tier, Tier::kCold);
  EXPECT_EQ(state(ino("d/f")).stage, Entry::Stage::kCandidate);
  EXPECT_EQ(entries_.candidates().next_cold(), ino("d/f")) << "in the order of the first storing";
  EXPECT_EQ(used_units(), 2u);
}

TEST_F(RecoveryBehindTest, AClientsNewerFileStays) {
  commit_tree();
  ASSERT_TRUE(begin());
  ASSERT_TRUE(bring_back([&] { store("d/f"); }));
  EXPECT_EQ(state(ino("d/f")).tier, Tier::kDirty);
  EXPECT_EQ(state(ino("d/f")).node_id, 0u);
  EXPECT_TRUE(state(ino("d/f")).spill_queued) << "from now on";
  EXPECT_EQ(used_units(), 1u) << "of g";
}

TEST_F(RecoveryBehindTest, WhatAClientWaitsForComesBack) {
  commit_tree();
  ASSERT_TRUE(begin());
  NamesToCome& names = disk_->names_to_come();
  std::future<Result<void>> g;
  ASSERT_TRUE(bring_back([&] {
    EXPECT_EQ(names.to_come(ino("d"), "f"), 3u);
    EXPECT_EQ(names.to_come(ino("d"), "g"), 4u);
    EXPECT_EQ(names.to_come(ino("d"), "h"), 0u);
    EXPECT_EQ(names.to_come(arena_->tree().ino, "f"), 0u);
    EXPECT_EQ(names.to_come(arena_->tree().ino, "d"), 0u) << "directories are back";
    g = std::async(std::launch::async, [&] { return names.await(4); });
  }));
  EXPECT_TRUE(g.get());
  EXPECT_FALSE(names.any());
  EXPECT_TRUE(is_there("d/f"));
  EXPECT_TRUE(is_there("d/g"));
  EXPECT_EQ(used_units(), 2u);
}

// A client cannot take one of these names now, but an earlier version let it.
TEST_F(RecoveryBehindTest, AFileWhoseNameIsTakenKeepsItsOthers) {
  commit_tree();
  commit_left({PutName{kCatalogRoot, "h", 3}, PutName{2, "f2", 3}});
  ASSERT_TRUE(begin());
  ASSERT_TRUE(bring_back([&] { store("h"); }));
  EXPECT_EQ(state(ino("h")).tier, Tier::kDirty);
  EXPECT_EQ(ino("d/f"), ino("d/f2"));
  EXPECT_EQ(state(ino("d/f")).tier, Tier::kCold);
}

TEST_F(RecoveryBehindTest, ThePoolDoesNotShrinkMeanwhile) {
  commit_tree();
  ASSERT_TRUE(begin());
  const uint64_t size_bytes = capacity_->size_bytes();
  ASSERT_TRUE(bring_back([&] { EXPECT_EQ(code_of(settings_->set_size(size_bytes - (1 << 20))), EBUSY); }));
  EXPECT_TRUE(settings_->set_size(size_bytes - (1 << 20)));
}

TEST_F(RecoveryBehindTest, WhatHasNoRoomIsDroppedAsIfEvicted) {
  commit_tree();
  ASSERT_TRUE(begin());
  ASSERT_TRUE(bring_back([&] { fill_but(1); }));
  EXPECT_TRUE(is_there("d/f"));
  EXPECT_FALSE(is_there("d/g"));
  EXPECT_EQ(used_units(), 1u);
}

TEST_F(RecoveryBehindTest, APoolThatIsTooSmallIsRefused) {
  commit_tree();
  fill_but(2);
  const auto refused = begin();
  EXPECT_EQ(code_of(refused), ENOSPC);
  EXPECT_THAT(refused.error().message, HasSubstr("not enough for its entries' names, which need"));
  EXPECT_EQ(disk_->owned(), nullptr);
  EXPECT_FALSE(disk_->restoring());
  EXPECT_FALSE(recovery_->brings_back());
}

TEST_F(RecoveryBehindTest, APoolThatWasFullStartsAgain) {
  commit_tree();
  fill_but(3);
  ASSERT_TRUE(begin());
  ASSERT_TRUE(bring_back());
  EXPECT_TRUE(is_there("d/f")) << "the mark of f leaves no room for g";
}

TEST_F(RecoveryBehindTest, AfterAFailureTheCatalogStaysAsItIs) {
  commit_tree();
  ASSERT_TRUE(begin());
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto failed = bring_back([&] {
    const struct rlimit none { 0, before.rlim_max };
    (void)::setrlimit(RLIMIT_NOFILE, &none);
  });
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(code_of(failed), EMFILE);
  EXPECT_TRUE(tier().store->log().frozen());
  EXPECT_FALSE(disk_->restoring());
  EXPECT_TRUE(restoring_up_to(root())) << "a successor tries again";
  EXPECT_EQ(test::id_in(tier().store->catalog(), 2, "f"), 3u);
}

TEST_F(RecoveryBehindTest, WhatIsGivenUpIsLeftToTheNextStart) {
  commit_tree();
  ASSERT_TRUE(begin());
  EXPECT_EQ(code_of(bring_back([&] { recovery_->give_up(); })), ECANCELED);
  EXPECT_FALSE(is_there("d/f"));
  EXPECT_EQ(test::id_in(tier().store->catalog(), 2, "f"), 3u);
}

TEST_F(RecoveryBehindTest, ASuccessorKnowsWhatWasRemovedFromWhatIsToCome) {
  ASSERT_TRUE(put_restoring(root(), 3, std::vector<uint64_t>{5, 6}));
  commit_left(5, "removed later", content(1, {{4, 1}}));
  commit_left(6, "there, too", content(1, {{5, 1}}));
  commit_left({PutName{kCatalogRoot, "its later link", 6}});
  (void)leave_cold("there, too", 6, content(1, {{5, 1}}));
  commit_left(2, "removed", content(1, {{1, 1}}));
  commit_left(3, "there", content(1, {{2, 1}}));
  commit_left({PutName{kCatalogRoot, "its removed link", 3}});
  commit_left(4, "to come", content(1, {{3, 1}}));
  (void)leave_cold("there", 3, content(1, {{2, 1}}));
  recover();
  EXPECT_FALSE(is_there("removed"));
  EXPECT_EQ(catalogued("removed"), 0u);
  EXPECT_FALSE(is_there("its removed link"));
  EXPECT_EQ(catalogued("its removed link"), 0u);
  EXPECT_TRUE(is_there("there"));
  EXPECT_FALSE(is_there("removed later"));
  EXPECT_FALSE(is_there("its later link"));
  EXPECT_EQ(catalogued("its later link"), 0u);
  EXPECT_TRUE(is_there("there, too"));
  EXPECT_EQ(state(ino("to come")).tier, Tier::kCold);
  EXPECT_EQ(used_units(), 3u);
  EXPECT_FALSE(restoring_up_to(root()));
}

// The catalog is read while clients change what it has.
TEST_F(RecoveryBehindTest, ASuccessorLeavesAloneWhatClientsMayHaveRenamed) {
  ASSERT_TRUE(put_restoring(root(), 3));
  commit_left(3, "there", content(1, {{2, 1}}));
  commit_left(4, "to come", content(1, {{3, 1}}));
  (void)leave_cold("there", 3, content(1, {{2, 1}}));
  (void)adopt();
  ASSERT_TRUE(begin_attaching_adopted());
  ASSERT_TRUE(bring_back([&] { ASSERT_TRUE(tree_->rename(root(), "there", root(), "renamed", 0)); }));
  EXPECT_FALSE(is_there("there"));
  EXPECT_TRUE(is_there("renamed"));
  EXPECT_TRUE(is_there("to come"));
}

// A file that a client's newer one has replaced, which is not on the disk yet, keeps its name there.
TEST_F(RecoveryBehindTest, ASuccessorKeepsWhatIsReplaced) {
  ASSERT_TRUE(put_restoring(root(), 3, std::vector<uint64_t>{4}));
  commit_left(3, "f", content(1, {{2, 1}}));
  commit_left(4, "g", content(1, {{3, 1}}));
  commit_left(5, "to come", content(1, {{4, 1}}));
  (void)leave("f");
  (void)leave("g");
  recover();
  EXPECT_EQ(state(ino("f")).tier, Tier::kDirty);
  EXPECT_EQ(state(ino("g")).tier, Tier::kDirty);
  EXPECT_EQ(catalogued("f"), 3u);
  EXPECT_EQ(catalogued("g"), 4u);
  EXPECT_TRUE(is_there("to come"));
}

class RestoredTimesTest : public RecoveryBehindTest {
 protected:
  // /d 2 and /e 3, with the file f in each.
  void SetUp() override {
    RecoveryBehindTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    CatalogNode d = directory_node(2), e = directory_node(3);
    for (CatalogNode* const node : {&d, &e}) node->accessed = node->modified = kOld;
    commit_left({PutNode{d}, PutName{kCatalogRoot, "d", 2}, PutNode{e}, PutName{kCatalogRoot, "e", 3},
                 PutNode{file_node(4)}, PutName{2, "f", 4}, PutContent{4, content(1, {{1, 1}})},
                 PutNode{file_node(5)}, PutName{3, "f", 5}, PutContent{5, content(1, {{2, 1}})}});
  }
  int64_t seconds_of(const char* name) const { return sys::stat_at(root(), name)->st_mtim.tv_sec; }
  void touch(const char* name, int64_t seconds) {
    const timespec time{.tv_sec = seconds, .tv_nsec = 0};
    ASSERT_TRUE(sys::change_times(open(name, O_RDONLY).get(), {time, time}));
    tree_->attributes_changed(ino(name));
  }
  int64_t catalogued_seconds(uint64_t id) {
    return test::node_in(tier().store->catalog(), id)->modified.tv_sec;
  }

  static constexpr timespec kOld{.tv_sec = 1000, .tv_nsec = 5};
};

TEST_F(RestoredTimesTest, TheyAreThoseOfAClientsChange) {
  ASSERT_TRUE(begin());
  ASSERT_TRUE(bring_back([&] {
    EXPECT_EQ(seconds_of("d"), 1000);
    store("d/new");
  }));
  EXPECT_GT(seconds_of("d"), 1000);
  EXPECT_EQ(seconds_of("e"), 1000);
}

TEST_F(RestoredTimesTest, AClientCanSetThemToThePast) {
  ASSERT_TRUE(begin());
  ASSERT_TRUE(bring_back([&] { touch("d", 500); }));
  EXPECT_GE(seconds_of("d"), 500) << "and what is stored there moves them";
  EXPECT_NE(seconds_of("d"), 1000);
  EXPECT_EQ(seconds_of("e"), 1000);
}

TEST_F(RestoredTimesTest, ASuccessorDoesNotTakeTheRestoresForAClients) {
  ASSERT_TRUE(put_restoring(root(), kCatalogRoot));
  for (const auto& [name, id] : {std::pair("d", 2), std::pair("e", 3)}) {
    make_directory(name);
    const CopyMark mark{.state = CopyMark::State::kNone, .node_id = static_cast<uint64_t>(id), .content = {}};
    ASSERT_TRUE(put_copy_mark(open(name, O_RDONLY).get(), mark));
  }
  ASSERT_TRUE(sys::change_times(open("d", O_RDONLY).get(), {kOld, kOld}));
  recover();
  EXPECT_EQ(seconds_of("d"), 1000);
  EXPECT_GT(seconds_of("e"), 1000) << "a client's change";
  EXPECT_TRUE(is_there("d/f"));
  EXPECT_EQ(catalogued_seconds(2), 1000);
}

}  // namespace kvcachefs::recovery_behind_test
