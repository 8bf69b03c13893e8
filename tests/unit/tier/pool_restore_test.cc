// A pool with a catalog that cannot be restored as it should.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <functional>

#include "tests/support/catalogs.h"
#include "tests/support/disks.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/no_kernel.h"
#include "tier/pool/pool.h"
#include "tier/pool/pools.h"

namespace kvcachefs::pool_restore_test {

using test::content_of;
using test::directory_node;
using test::file_node;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr uint64_t kUnitBytes = 4096;

// A catalog that passes calls on. If it is full, its commits fail with ENOSPC; it calls `loaded` after each
// load().
class HookedCatalog final : public Catalog {
 public:
  explicit HookedCatalog(
      std::unique_ptr<Catalog> catalog, bool full = true, std::function<void()> loaded = [] {})
      : catalog_(std::move(catalog)), full_(full), loaded_(std::move(loaded)) {}
  Result<std::vector<Extent>> commit(std::span<const CatalogChange> changes) override {
    if (full_) return fail(ENOSPC, "full");
    return catalog_->commit(changes);
  }
  Result<void> load(CatalogVisitor& visitor, Losses losses) override {
    auto done = catalog_->load(visitor, losses);
    if (losses == Losses::kDrop) loaded_();  // else a test reads it
    return done;
  }
  uint64_t highest_id() override { return catalog_->highest_id(); }
  Result<uint64_t> names() override { return catalog_->names(); }
  Result<std::optional<std::string>> setting(std::string_view name) override {
    return catalog_->setting(name);
  }
  Result<void> put_setting(std::string_view, std::string_view) override { return fail(ENOSPC, "full"); }
  Result<void> clear() override { return fail(ENOSPC, "full"); }

 private:
  const std::unique_ptr<Catalog> catalog_;
  const bool full_;
  const std::function<void()> loaded_;
};

class PoolRestoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root for its tmpfs";
    options_.name = "p";
    options_.size_bytes = uint64_t{16} << 20;
    options_.spill_path = "disk";
    auto made = Pool::create(1, options_,
                             {.arena_path = place_ / "arena",
                              .topology = &topology_,
                              .backing_store = &backing_,
                              .listener = &listener_,
                              .evictor = &evictor_,
                              .cores = 1});
    ASSERT_TRUE(made) << made.error().message;
    pool_ = std::move(*made);
  }

  std::unique_ptr<Catalog> catalog() {
    auto opened = Catalog::open(place_ / "catalog");
    EXPECT_TRUE(opened) << opened.error().message;
    return std::move(*opened);
  }
  void commit(const std::vector<CatalogChange>& changes) { ASSERT_TRUE(catalog()->commit(changes)); }
  static CatalogContent content(std::vector<Extent> extents, uint64_t size_bytes) {
    CatalogContent made = content_of(std::move(extents));
    made.size_bytes = size_bytes;
    return made;
  }
  Result<void> attach(std::unique_ptr<Catalog> catalog, uint64_t unit_bytes = kUnitBytes) {
    return pool_->recovery().attach_disk(
        std::make_unique<test::FaultyDisk>(test::FaultyDiskOptions{.size_bytes = 64 * unit_bytes}),
        std::move(catalog), unit_bytes, options_);
  }
  std::string tree() { return "/proc/self/fd/" + std::to_string(root()); }
  int root() { return pool_->inodes().directory(pool_->root_ino())->fd; }
  std::vector<std::string> names() {
    std::vector<std::string> found;
    for (const auto& file : std::filesystem::recursive_directory_iterator(tree() + "/"))
      found.push_back(file.path().lexically_relative(tree()));
    return found;
  }

  test::DiskDirectory place_;
  NumaTopology topology_{{{.id = 0}}, [](int) { return uint64_t{1} << 40; }};
  test::NoBacking backing_;
  test::NoListener listener_;
  Wakeup evictor_;
  PoolOptions options_;
  std::shared_ptr<Pool> pool_;
};

// Because other contents already have the extents of a dropped content, a pool cannot go on with a catalog
// that still names them.
TEST_F(PoolRestoreTest, FailsAsAWholeIfTheCatalogCannotDropWhatIsDamaged) {
  CatalogNode link;
  link.id = 5;
  link.mode = S_IFLNK | 0777;
  link.link_target = "a";
  commit({PutNode{directory_node(2)}, PutName{kCatalogRoot, "there", 2}, PutNode{directory_node(3)},
          PutName{2, "new", 3}, PutNode{file_node(4)}, PutName{3, "a", 4}, PutName{kCatalogRoot, "b", 4},
          PutContent{4, content({{1, 1}}, 10)}, PutNode{link}, PutName{kCatalogRoot, "link", 5},
          PutNode{file_node(6)}, PutName{2, "damaged", 6}, PutContent{6, content({{1, 1}}, 10)}});
  ASSERT_EQ(::mkdir((tree() + "/there").c_str(), 0755), 0);
  const Result<void> refused = attach(std::make_unique<HookedCatalog>(catalog()));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ENOSPC);
  EXPECT_THAT(refused.error().message, HasSubstr("pool p: what its catalog has cannot be restored: full"));
  EXPECT_EQ(pool_->disk().tier(), nullptr);
  EXPECT_EQ(pool_->disk().durability(), Durability::kNone);
  EXPECT_THAT(names(), UnorderedElementsAre("there"));
  EXPECT_EQ(pool_->insight().usage().entries, 0);
  EXPECT_EQ(pool_->insight().spill_usage().cold_entries, 0);

  const Result<void> attached = attach(catalog());
  ASSERT_TRUE(attached) << attached.error().message;
  EXPECT_THAT(names(), UnorderedElementsAre("there", "there/new", "there/new/a", "b", "link"));
  EXPECT_EQ(pool_->insight().spill_usage().cold_entries, 1);
  EXPECT_FALSE(test::node_in(pool_->disk().tier()->store->catalog(), 6)) << "dropped by now";
  pool_->disk().tier()->close();
}

// A pool of 16 MiB has 12,288 inodes.
TEST_F(PoolRestoreTest, ASizeThatIsTooSmallForItsNamesCostsNone) {
  constexpr uint64_t kMany = 13'000;
  std::vector<CatalogChange> changes;
  for (uint64_t id = 2; id < 2 + kMany; ++id) {
    changes.push_back(PutNode{directory_node(id)});
    changes.push_back(PutName{kCatalogRoot, std::to_string(id), id});
  }
  commit(changes);
  const auto refused = attach(catalog());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ENOSPC);
  EXPECT_THAT(refused.error().message, HasSubstr("the size that the pool has now is not enough"));
  EXPECT_THAT(names(), ::testing::IsEmpty());
  EXPECT_TRUE(test::node_in(*catalog(), 1 + kMany));
}

// A link takes an inode of a tmpfs too.
TEST_F(PoolRestoreTest, ASizeThatIsTooSmallForItsLinksCostsNone) {
  std::vector<CatalogChange> changes{PutNode{file_node(2)}, PutContent{2, content({{1, 1}}, 10)}};
  for (int i = 0; i < 13'000; ++i) changes.push_back(PutName{kCatalogRoot, std::to_string(i), 2});
  commit(changes);
  const auto refused = attach(catalog());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ENOSPC);
  EXPECT_THAT(names(), ::testing::IsEmpty());
  EXPECT_TRUE(test::id_in(*catalog(), kCatalogRoot, "12999"));
}

// While a serving pool is restored, names that come back cannot change, because the catalog could not be
// told.
TEST_F(PoolRestoreTest, WhatComesBackKeepsItsNamesUntilItIsBack) {
  commit({PutNode{directory_node(2)}, PutName{kCatalogRoot, "d", 2}, PutNode{file_node(3)},
          PutName{2, "e", 3}, PutContent{3, content({{1, 1}}, 10)}, PutNode{file_node(4)},
          PutName{kCatalogRoot, "f", 4}, PutContent{4, content({{2, 1}}, 10)}});
  const auto make_new = [&](const char* name) {
    const UniqueFd file(::openat(root(), name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
    const auto handle = sys::handle_of(file.get());
    ASSERT_TRUE(pool_->open_files().created({.fd = file.get(),
                                             .ino = handle->ino,
                                             .generation = handle->generation,
                                             .open = false,
                                             .writer = false,
                                             .named = true,
                                             .name = name,
                                             .node = 0}));
  };
  const auto code_of = [](const Result<void>& result) { return result ? 0 : result.error().code; };
  make_new("new");
  make_new("other");
  make_new("once");
  ASSERT_EQ(::linkat(root(), "once", root(), "twice", 0), 0);
  uint64_t f_ino = 0;
  const auto meanwhile = [&] {
    struct stat f {};
    ASSERT_EQ(::fstatat(root(), "f", &f, 0), 0);
    f_ino = f.st_ino;
    EXPECT_EQ(code_of(pool_->tree().remove(root(), "f", false)), EBUSY);
    EXPECT_EQ(code_of(pool_->tree().rename(root(), "f", root(), "g", 0)), EBUSY);
    EXPECT_EQ(code_of(pool_->tree().rename(root(), "new", root(), "f", 0)), EBUSY);
    EXPECT_EQ(code_of(pool_->tree().rename(root(), "new", root(), "f", RENAME_EXCHANGE)), EBUSY);
    EXPECT_EQ(code_of(pool_->tree().rename(root(), "d", root(), "g", 0)), EBUSY);
    EXPECT_EQ(code_of(pool_->tree().link(f_ino, root(), "g")), EBUSY);
    EXPECT_EQ(code_of(pool_->tree().rename(root(), "twice", root(), "thrice", 0)), EBUSY)
        << "it has two names";
    EXPECT_EQ(code_of(pool_->tree().remove(root(), "twice", false)), EBUSY);
    EXPECT_EQ(pool_->open_files().truncate(f_ino, 0), Presence::kHere);
    EXPECT_EQ(code_of(pool_->tree().rename(root(), "f", root(), "g", 0)), EBUSY)
        << "although it is no longer cold";
    EXPECT_EQ(code_of(pool_->tree().remove(root(), "f", false)), EBUSY);
    EXPECT_EQ(code_of(pool_->tree().rename(root(), "new", root(), "newer", 0)), 0);
    EXPECT_EQ(code_of(pool_->tree().remove(root(), "other", false)), 0);
    ASSERT_EQ(::fchmodat(root(), "f", 0604, 0), 0);
    pool_->tree().attributes_changed(f_ino);
  };
  const auto attached = attach(std::make_unique<HookedCatalog>(catalog(), false, meanwhile));
  ASSERT_TRUE(attached) << attached.error().message;
  EXPECT_THAT(names(), UnorderedElementsAre("d", "d/e", "f", "newer", "once", "twice"));
  EXPECT_EQ(code_of(pool_->tree().rename(root(), "d", root(), "moved", 0)), 0);
  EXPECT_EQ(code_of(pool_->tree().remove(pool_->inodes().directory(pool_->root_ino())->fd, "newer", false)),
            0);
  pool_->disk().tier()->store->log().step(std::chrono::milliseconds(0));
  Catalog& now = pool_->disk().tier()->store->catalog();
  EXPECT_EQ(test::node_in(now, 4)->mode, S_IFREG | 0604u);
  EXPECT_EQ(test::id_in(now, kCatalogRoot, "moved"), 2u);
  EXPECT_FALSE(test::id_in(now, kCatalogRoot, "d"));
  pool_->disk().tier()->close();
}

TEST_F(PoolRestoreTest, WhetherAnEntryCanBeOpenedOrCut) {
  commit({PutNode{file_node(2)}, PutName{kCatalogRoot, "f", 2}, PutContent{2, content({{1, 1}}, 100)}});
  uint64_t ino = 0;
  const auto presence = [&](OpenMode mode) {
    const auto answer = pool_->open_files().begin_open(ino, mode, 0);
    EXPECT_TRUE(answer);
    if (answer->presence == Presence::kHere) pool_->open_files().end_open(ino, mode);
    return answer->presence;
  };
  const OpenMode accepts_disk = {.from_disk = true};
  const auto meanwhile = [&] {
    struct stat f {};
    ASSERT_EQ(::fstatat(root(), "f", &f, 0), 0);
    ino = f.st_ino;
    EXPECT_EQ(presence(accepts_disk), Presence::kGone) << "until its disk can be used";
    EXPECT_EQ(pool_->open_files().truncate(ino, 50), Presence::kGone);
  };
  ASSERT_TRUE(attach(std::make_unique<HookedCatalog>(catalog(), false, meanwhile)));
  EXPECT_EQ(presence({}), Presence::kCold);
  EXPECT_EQ(presence({.writer = true, .from_disk = true}), Presence::kCold) << "the disk cannot serve it";
  EXPECT_EQ(pool_->open_files().truncate(ino, 50), Presence::kCold);
  EXPECT_EQ(presence(accepts_disk), Presence::kHere);
  EXPECT_EQ(presence({}), Presence::kCold) << "nobody has it open any more";
  ASSERT_EQ(pool_->open_files().truncate(ino, 0), Presence::kHere);
  backing_.error = ENOSYS;
  const auto answer = pool_->open_files().begin_open(ino, {}, 0);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ENOSYS);
  ASSERT_TRUE(pool_->tree().remove(root(), "f", false));
  EXPECT_EQ(presence(accepts_disk), Presence::kGone);
  EXPECT_EQ(pool_->open_files().truncate(ino, 0), Presence::kGone);
  pool_->disk().tier()->close();
}

TEST_F(PoolRestoreTest, NoDiskTierComesToADaemonThatEnds) {
  std::filesystem::create_directory(place_ / "pools");
  Pools pools({.directory = place_ / "pools",
               .memory_bytes = uint64_t{1} << 30,
               .pool = {.topology = &topology_,
                        .backing_store = &backing_,
                        .listener = &listener_,
                        .evictor = &evictor_}});
  pools.on_disk_tier([](const auto&) { ADD_FAILURE() << "no pool has a disk tier"; });
  PoolOptions plain;
  plain.name = "serving";
  plain.size_bytes = uint64_t{16} << 20;
  auto serving = pools.create(plain);
  ASSERT_TRUE(serving) << serving.error().message;
  pools.on_disk_tier({});
  PoolOptions spilling = options_;
  spilling.spill_path = place_ / "spill";
  spilling.spill_size_bytes = uint64_t{8} << 20;
  const auto created = pools.create(spilling);
  ASSERT_FALSE(created);
  EXPECT_EQ(created.error().code, ESHUTDOWN);
  EXPECT_EQ(pools.set_spill(*serving, spilling).error().code, ESHUTDOWN);
  EXPECT_EQ((*serving)->disk().tier(), nullptr);
  EXPECT_FALSE(std::filesystem::exists(spilling.spill_path));
}

// RLIMIT_FSIZE makes a file fail to be made, in place of any other cause.
TEST_F(PoolRestoreTest, WhatCannotBeMadeWholeLeavesNoName) {
  constexpr uint64_t kLargeUnitBytes = uint64_t{1} << 30;
  commit({PutNode{file_node(2)}, PutName{kCatalogRoot, "large", 2},
          PutContent{2, content({{1, 2}}, 2 * kLargeUnitBytes)}, PutNode{file_node(3)},
          PutName{kCatalogRoot, "small", 3}, PutContent{3, content({{3, 1}}, 10)}});
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit limit{kLargeUnitBytes, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const Result<void> attached = attach(catalog(), kLargeUnitBytes);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  ASSERT_TRUE(attached) << attached.error().message;
  EXPECT_THAT(names(), UnorderedElementsAre("small"));
  EXPECT_FALSE(test::node_in(pool_->disk().tier()->store->catalog(), 2));
  EXPECT_EQ(pool_->disk().tier()->store->space().free_units(), 62)
      << "all but the superblock's and that of small";
  pool_->disk().tier()->close();
}

TEST_F(PoolRestoreTest, AContentOfMadeUpSizeIsNotClaimed) {
  SpillStore store(std::make_unique<test::FaultyDisk>(test::FaultyDiskOptions{}), catalog(), kUnitBytes,
                   pool_->counters());
  for (const uint64_t size_bytes : {UINT64_MAX, UINT64_MAX - kUnitBytes + 2})
    EXPECT_FALSE(store.claim(content({}, size_bytes))) << size_bytes;
  EXPECT_TRUE(store.claim(content({}, 0)));
  EXPECT_TRUE(store.claim(content({{5, 1}}, kUnitBytes)));
  EXPECT_TRUE(store.claim(content({{6, 2}}, kUnitBytes + 1)));
}

}  // namespace kvcachefs::pool_restore_test
