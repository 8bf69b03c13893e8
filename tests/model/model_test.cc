// Seeded random streams of operations on the mount and on a plain tmpfs: each outcome has to be the same, and
// so has the whole tree from time to time. KVCACHEFS_SEEDS=N runs N seeds instead of a few; KVCACHEFS_SEED=S
// starts at S.
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>

#include "gtest/gtest.h"
#include "tests/model/operation.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::test {
namespace {

constexpr int kSteps = 4000;
constexpr int kTreeEvery = 100;
constexpr size_t kHistory = 25;

long number_from(const char* variable, long fallback) {
  const char* text = std::getenv(variable);
  return text == nullptr ? fallback : std::atol(text);
}

class ModelTest : public SharedMount<ModelTest> {
 public:
  static bool needs_daemon() { return false; }
  static MountOptions options() { return {.pools = {"p:size=256M"}}; }

 protected:
  // True if both sides agreed to the end.
  static bool run(uint64_t seed, const std::string& mounted, const std::string& plain) {
    Random random(seed);
    Side here(mounted);
    Side there(plain);
    std::deque<std::string> history;
    for (int step = 0; step < kSteps; ++step) {
      const Operation operation = draw(random);
      std::string on_mount = here.apply(operation);
      std::string on_tmpfs = there.apply(operation);
      history.push_back(operation.text() + " -> " + on_tmpfs.substr(0, 100));
      if (history.size() > kHistory) history.pop_front();
      if (on_mount == on_tmpfs && (step + 1) % kTreeEvery == 0) {
        on_mount = here.tree();
        on_tmpfs = there.tree();
      }
      if (on_mount == on_tmpfs) continue;
      ADD_FAILURE() << "seed " << seed << ", step " << step << ": " << operation.text()
                    << "\non the mount: " << on_mount << "\non the tmpfs: " << on_tmpfs;
      for (const std::string& line : history) std::fprintf(stderr, "  %s\n", line.c_str());
      return false;
    }
    return true;
  }
};

TEST_F(ModelTest, RandomStreams) {
  const PlainTmpfs plain("size=256M");
  const long first = number_from("KVCACHEFS_SEED", 1);
  const long count = number_from("KVCACHEFS_SEEDS", 12);
  for (long seed = first; seed < first + count; ++seed) {
    std::printf("seed %ld\n", seed);
    remove_content(mount().path());
    remove_content(plain.path());
    if (!run(seed, mount().path(), plain.path())) return;
  }
}

}  // namespace
}  // namespace kvcachefs::test
