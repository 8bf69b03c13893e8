// The fixture of tests whose serving process dies at places that they name (base/fault_point.h), on a pool
// with a disk tier. One thread; failures are recorded with GoogleTest.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/disk_tier.h"

namespace kvcachefs::test {

class FaultedTierTest : public DiskTierTest {
 protected:
  FaultedTierTest();
  ~FaultedTierTest() override;

  std::string fault_file() const { return disk() / "fault"; }
  void arm(const std::string& places);
  ::testing::AssertionResult fired(const std::string& places);
  // Has the process die at each of these places, one after the other, while `act` goes on.
  void die_at(const std::string& places, const std::function<void()>& act);
  // Whoever dies ten times within moments of having begun is given up: the one that serves now has served
  // for longer than that.
  void serve_for_a_moment();
  void kill_server();
  // Waits until another has taken over.
  void replace_server();

  // Entries whose content goes by their place in the group (pool_pressure.h).
  void add(const std::string& name, int count);
  void expect_whole();
  // What is stored is there and right; so is the disk, and what comes back from it.
  void check_all();

 private:
  std::vector<std::pair<std::string, int>> groups_;
};

}  // namespace kvcachefs::test
