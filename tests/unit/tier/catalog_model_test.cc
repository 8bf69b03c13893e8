// Seeded batches against a naive model, with reopens, kills and a small map.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "tests/support/catalogs.h"
#include "tests/support/disks.h"
#include "tier/catalog/catalog.h"

namespace kvcachefs::catalog_model_test {

using test::CatalogChanges;
using test::content_of;
using test::file_node;
using test::NaiveCatalog;
using test::Random;
using test::text_of;
using test::units_of;

uint64_t count_from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

std::vector<CatalogChange> batch_of(uint64_t seed, uint64_t number, const NaiveCatalog& before) {
  Random random(seed * 1'000'003 + number);
  return CatalogChanges(random.next()).batch(before, 1 + random.below(12));
}

void run_model(uint64_t seed) {
  const test::DiskDirectory place;
  NaiveCatalog naive;
  std::unique_ptr<Catalog> catalog;
  for (uint64_t number = 0; number < 60; ++number) {
    if (catalog == nullptr || Random(seed + number).one_in(10)) {
      catalog.reset();
      auto opened = Catalog::open(place / "catalog");
      ASSERT_TRUE(opened) << opened.error().message;
      catalog = std::move(*opened);
    }
    const std::vector<CatalogChange> batch = batch_of(seed, number, naive);
    const auto freed = catalog->commit(batch);
    ASSERT_TRUE(freed) << freed.error().message;
    ASSERT_EQ(units_of(*freed), naive.commit(batch)) << "batch " << number;
    if (number % 5 == 0) {
      ASSERT_EQ(text_of(*catalog), naive.text()) << "batch " << number;
    }
  }
  ASSERT_EQ(text_of(*catalog), naive.text());
}

TEST(CatalogModel, HoldsWhatANaiveOneHolds) {
  const uint64_t first = count_from_environment("KVCACHEFS_CATALOG_SEED", 1);
  const uint64_t seeds = count_from_environment("KVCACHEFS_CATALOG_SEEDS", 20);
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run_model(seed);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

// commit_for_ever() commits batch after batch until the process is killed; each acknowledged batch writes one
// byte to the pipe.
[[noreturn]] void commit_for_ever(const std::string& directory, uint64_t seed, NaiveCatalog naive, int pipe) {
  auto catalog = Catalog::open(directory, {.map_bytes = 1 << 20});
  if (!catalog) ::_exit(1);
  for (uint64_t number = 0;; ++number) {
    const std::vector<CatalogChange> batch = batch_of(seed, number, naive);
    if (!(*catalog)->commit(batch)) ::_exit(2);
    if (::write(pipe, "x", 1) != 1) ::_exit(3);
    naive.commit(batch);
  }
}

uint64_t run_until_killed(const std::string& directory, uint64_t seed, const NaiveCatalog& naive,
                          uint64_t kill_after, std::chrono::microseconds and_then) {
  int pipe[2];
  EXPECT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(pipe[0]);
    commit_for_ever(directory, seed, naive, pipe[1]);
  }
  ::close(pipe[1]);
  uint64_t acknowledged = 0;
  char byte;
  while (acknowledged < kill_after && ::read(pipe[0], &byte, 1) == 1) ++acknowledged;
  // The test draws the moment of the kill, which may be anywhere in a commit.
  const auto until = std::chrono::steady_clock::now() + and_then;
  while (std::chrono::steady_clock::now() < until) {
  }
  ::kill(child, SIGKILL);
  while (::read(pipe[0], &byte, 1) == 1) ++acknowledged;
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(pipe[0]);
  EXPECT_TRUE(WIFSIGNALED(status)) << "exit " << WEXITSTATUS(status);
  return acknowledged;
}

TEST(CatalogCrash, AKillLeavesAPrefixWithAllThatWasAcknowledged) {
  const test::DiskDirectory place;
  const std::string directory = place / "catalog";
  const uint64_t rounds = count_from_environment("KVCACHEFS_CATALOG_KILLS", 15);
  NaiveCatalog naive;
  Random random(7);
  for (uint64_t round = 0; round < rounds; ++round) {
    const auto and_then = std::chrono::microseconds(random.below(4000));
    const uint64_t acknowledged = run_until_killed(directory, round, naive, random.below(20), and_then);
    auto catalog = Catalog::open(directory);
    ASSERT_TRUE(catalog) << catalog.error().message;
    const std::string held = text_of(**catalog);
    for (uint64_t number = 0; number < acknowledged; ++number) naive.commit(batch_of(round, number, naive));
    if (held == naive.text()) continue;
    naive.commit(batch_of(round, acknowledged, naive));  // committed, but not yet acknowledged
    ASSERT_EQ(held, naive.text()) << "round " << round << ", " << acknowledged << " acknowledged";
  }
}

TEST(CatalogGrowth, AMapThatIsTooSmallGrows) {
  const test::DiskDirectory place;
  constexpr uint64_t kEntries = 200'000;
  constexpr uint64_t kBatch = 5'000;
  {
    auto catalog = Catalog::open(place / "catalog", {.map_bytes = 256 << 10});
    ASSERT_TRUE(catalog) << catalog.error().message;
    for (uint64_t id = 2; id < kEntries + 2;) {
      std::vector<CatalogChange> batch;
      for (const uint64_t end = id + kBatch; id < end; ++id) {
        batch.emplace_back(PutNode{file_node(id)});
        batch.emplace_back(PutName{kCatalogRoot, std::to_string(id * 0x9e3779b97f4a7c15), id});
        batch.emplace_back(PutContent{id, content_of({{id, 1}}, id)});
      }
      const auto freed = (*catalog)->commit(batch);
      ASSERT_TRUE(freed) << freed.error().message;
      ASSERT_TRUE(freed->empty());
    }
  }
  auto catalog = Catalog::open(place / "catalog", {.map_bytes = 256 << 10});
  ASSERT_TRUE(catalog) << catalog.error().message;
  EXPECT_GT(std::filesystem::file_size(place / "catalog/data.mdb"), 32u << 20);
  EXPECT_EQ((*catalog)->highest_id(), kEntries + 1);
  struct Count : CatalogVisitor {
    void node(const CatalogNode& node, std::span<const CatalogName> names,
              const CatalogContent* content) override {
      whole += names.size() == 1 && names[0].name == std::to_string(node.id * 0x9e3779b97f4a7c15) &&
               content != nullptr && content->extents == std::vector<Extent>{{node.id, 1}};
    }
    void lost(CatalogLoss, uint64_t, std::string_view) override { ++losses; }
    uint64_t whole = 0;
    uint64_t losses = 0;
  } count;
  ASSERT_TRUE((*catalog)->load(count));
  EXPECT_EQ(count.whole, kEntries);
  EXPECT_EQ(count.losses, 0);
}

}  // namespace kvcachefs::catalog_model_test
