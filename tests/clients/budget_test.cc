// LMCache's `local_disk` keeps an index and a budget and does not expect a name to go: it raises, and keeps
// its lock. The README gives it a separate pool and a budget of less than 90% of that pool: then the pool
// evicts nothing.
#include <string>
#include <vector>

#include "tests/clients/calls.h"
#include "tests/clients/client.h"
#include "tests/clients/content.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::clients {
namespace {

constexpr uint64_t kPoolBytes = uint64_t{128} << 20;

class BudgetTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  void SetUp() override { KVCACHEFS_NEED_DAEMON(); }

  // evicted_with() stores three times the pool's size, with a block in four asked for again; returns how many
  // entries the pool evicted.
  static int64_t evicted_with(uint64_t budget_bytes, uint64_t entry_bytes) {
    test::Mount mount({.pools = {"p:size=" + std::to_string(kPoolBytes)}});
    const auto client = make_lmcache_local_disk({mount.path(), entry_bytes, budget_bytes});
    EXPECT_TRUE(client->start().done());
    Buffer buffer(entry_bytes);
    test::Random random(entry_bytes);
    const uint64_t keys = 3 * kPoolBytes / entry_bytes;
    for (uint64_t key = 0; key < keys; ++key) {
      fill_content(key, buffer.span());
      const Outcome stored = client->store(key, buffer.span());
      EXPECT_TRUE(stored.done()) << stored.reason;
      const std::vector<uint64_t> asked = {random.below(key + 1)};
      size_t found = 0;
      EXPECT_TRUE(client->probe(asked, found).done());
      if (found == 0 || !random.one_in(4)) continue;
      const Outcome loaded = client->load(asked[0], buffer.span());
      if (loaded.done()) {
        EXPECT_FALSE(first_wrong_byte(asked[0], buffer.span()).has_value());
      }
    }
    const int64_t evicted = mount.stat_value("discards") + mount.stat_value("evictions");
    mount.stop();
    return evicted;
  }
};

TEST_P(BudgetTest, BelowNineTenthsOfThePoolNothingIsEvicted) {
  EXPECT_EQ(evicted_with(kPoolBytes / 10 * 9, GetParam()), 0);
}

INSTANTIATE_TEST_SUITE_P(Sizes, BudgetTest,
                         ::testing::Values(uint64_t{64} << 10, uint64_t{1} << 20, uint64_t{10} << 20,
                                           uint64_t{32} << 20),
                         [](const auto& parameter) { return std::to_string(parameter.param >> 10) + "KiB"; });

}  // namespace
}  // namespace kvcachefs::clients
