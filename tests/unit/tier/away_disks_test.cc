#include "tier/recovery/away_disks.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "tests/support/pools_test.h"

namespace kvcachefs::away_disks_test {

// What the process writes to its standard error goes to a file meanwhile.
class Log {
 public:
  explicit Log(std::string path) : path_(std::move(path)), before_(::dup(STDERR_FILENO)) {
    const test::File file(path_, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC);
    ::dup2(file.fd(), STDERR_FILENO);
  }
  ~Log() { ::dup2(before_.get(), STDERR_FILENO); }
  int lines(const std::string& with) const {
    std::istringstream text(test::read_file(path_));
    int count = 0;
    for (std::string line; std::getline(text, line);) count += line.find(with) != std::string::npos ? 1 : 0;
    return count;
  }

 private:
  const std::string path_;
  const UniqueFd before_;
};

class AwayDisksTest : public test::PoolsTest {
 protected:
  // A disk and its catalog, of a pool that has gone.
  void make_disk() {
    const auto pool = make(spilling("p"));
    ASSERT_NE(pool, nullptr);
    ASSERT_NE(pool->disk().tier(), nullptr);
    pool->disk().tier()->close();
    ASSERT_TRUE(pools_->remove("p"));
  }
  // The next process, with the pool of that name as the one before left it.
  std::shared_ptr<Pool> adopt() {
    before_ = make(options("p"));
    EXPECT_TRUE(next_.emplace(surroundings()).begin_adopting(before_->number(), spilling("p")));
    EXPECT_TRUE(next_->adopt(before_->number(), spilling("p")));
    return next_->find("p");
  }
  bool finds(AwayDisks& disks) {
    return test::eventually([&] {
      disks.step();
      return disks.found();
    });
  }

  std::shared_ptr<Pool> before_;
  std::optional<Pools> next_;
};

TEST_F(AwayDisksTest, WithoutOneThereIsNothingToLookFor) {
  make(options("p"));
  AwayDisks disks(*pools_, 0);
  EXPECT_FALSE(disks.step());
  EXPECT_FALSE(disks.found());
}

TEST_F(AwayDisksTest, ADiskThatIsBackIsFoundAndAnotherIsNot) {
  make_disk();
  pools_->reap();
  std::filesystem::rename(disk_ / "spill", disk_ / "elsewhere");
  const auto pool = adopt();
  ASSERT_NE(pool, nullptr);
  ASSERT_NE(pool->disk().away(), nullptr);
  const std::string not_its_own(4 * kMiB, 'x');
  test::write_file(disk_ / "spill", not_its_own);
  AwayDisks disks(*next_, 0);
  EXPECT_TRUE(disks.step()) << "a pool is without its disk";
  EXPECT_FALSE(disks.found());
  const Log log(disk_ / "log");
  ASSERT_TRUE(test::eventually([&] {
    disks.step();
    return log.lines("still without its disk") > 0;
  }));
  EXPECT_FALSE(disks.found());
  EXPECT_TRUE(test::read_file(disk_ / "spill") == not_its_own) << "it is only looked at";
  std::filesystem::rename(disk_ / "elsewhere", disk_ / "spill");
  EXPECT_TRUE(finds(disks));
  EXPECT_EQ(log.lines("still without its disk"), 1) << "the reason is said when it changes";
  EXPECT_EQ(log.lines("can be had again"), 1);
  EXPECT_TRUE(disks.step());
  EXPECT_TRUE(disks.found()) << "it stays found";
  EXPECT_NE(pool->disk().away(), nullptr) << "only the next process gets it";
}

}  // namespace kvcachefs::away_disks_test
