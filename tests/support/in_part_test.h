// The fixture of tests that look at what a process that takes over serves while it still walks its pools
// (fs/served_in_part.h). One thread; failures are recorded with GoogleTest.
#pragma once

#include <unistd.h>

#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "tests/support/faults.h"
#include "tests/support/files.h"

namespace kvcachefs::test {

using namespace std::chrono_literals;

class ServedInPartTest : public FaultedTierTest {
 protected:
  static constexpr int kEntries = 8;

  // `act` is called while a successor waits in the midst of its takeover, and after it that goes on.
  template <class Act>
  void while_it_walks(const std::string& place, Act act) {
    SCOPED_TRACE(place);
    EXPECT_GE(stat("entries"), 0);  // answered when the takeover before this has ended
    const pid_t before = mount().serving_pid();
    arm("pause " + place);
    kill_server();
    ASSERT_TRUE(eventually([&] { return exists(paused()); }));
    EXPECT_NE(mount().serving_pid(), before);
    act();
    go_on();
  }
  void go_on() { (void)::unlink(paused().c_str()); }
  std::vector<std::string> names(const std::string& group) {
    std::vector<std::string> result;
    for (int i = 0; i < kEntries; ++i) result.push_back(path(group + "-" + std::to_string(i)));
    return result;
  }
  std::string paused() const { return fault_file() + ".paused"; }
  void TearDown() override {
    (void)::unlink(paused().c_str());
    FaultedTierTest::TearDown();
  }
};

// A request that is put aside is known by what waits for it: it has not ended although others have.
template <class T>
bool waits(const std::future<T>& call) {
  return call.wait_for(0s) == std::future_status::timeout;
}

}  // namespace kvcachefs::test
