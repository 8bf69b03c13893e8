// The fixture of tests that make the serving process of a pool with a disk tier die at fault points which the
// test names (base/fault_point.h). One thread; failures are recorded with GoogleTest.
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
  // die_at() makes the serving process die at each of these places, one after the other, while `act` runs.
  void die_at(const std::string& places, const std::function<void()>& act);
  // The supervisor gives up after ten servers in a row that died within moments of their start. When
  // serve_for_a_moment() returns, the present server has lived longer than that.
  void serve_for_a_moment();
  void kill_server();
  // replace_server() kills the serving process and waits until a successor has taken over.
  void replace_server();

  // add() adds entries with a content that depends on their number in the group (pool_pressure.h).
  void add(const std::string& name, int count);
  void expect_whole();
  // check_all() checks the entries, the spill file with `kvcachefs check`, and the entries again after a
  // restart from the disk.
  void check_all();

 private:
  std::vector<std::pair<std::string, int>> groups_;
};

}  // namespace kvcachefs::test
