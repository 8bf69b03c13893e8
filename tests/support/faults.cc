#include "tests/support/faults.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "base/sys_process.h"
#include "tests/support/files.h"

namespace kvcachefs::test {

FaultedTierTest::FaultedTierTest() {
  ::setenv("KVCACHEFS_FAULT_FILE", fault_file().c_str(), 1);
}

FaultedTierTest::~FaultedTierTest() {
  ::unsetenv("KVCACHEFS_FAULT_FILE");
}

void FaultedTierTest::arm(const std::string& places) {
  ASSERT_EQ(store(fault_file(), places), 0);
}

::testing::AssertionResult FaultedTierTest::fired(const std::string& places) {
  if (eventually([&] { return !exists(fault_file()); })) return ::testing::AssertionSuccess();
  ::unlink(fault_file().c_str());
  return ::testing::AssertionFailure() << "nobody came to: " << places;
}

void FaultedTierTest::die_at(const std::string& places, const std::function<void()>& act) {
  arm(places);
  act();
  EXPECT_TRUE(fired(places));
}

void FaultedTierTest::serve_for_a_moment() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(60);
  while (std::chrono::steady_clock::now() < end) (void)exists(path("nothing"));
}

void FaultedTierTest::kill_server() {
  const pid_t serving = mount().serving_pid();
  ASSERT_GT(serving, 0);
  const auto process = sys::open_process(serving);
  ASSERT_TRUE(process);
  ASSERT_EQ(::kill(serving, SIGKILL), 0);
  // Until it has died, one of its threads may still answer. One that waits for a disk dies later.
  pollfd dead{process->get(), POLLIN, 0};
  (void)::poll(&dead, 1, 2000);
}

void FaultedTierTest::replace_server() {
  const pid_t before = mount().serving_pid();
  kill_server();
  ASSERT_TRUE(eventually([&] {
    const pid_t now = mount().serving_pid();
    return now > 0 && now != before;
  }));
  // The next server answers this, and so it has taken over.
  EXPECT_FALSE(exists(path("nothing")));
}

void FaultedTierTest::add(const std::string& name, int count) {
  fill_pool(name, count);
  groups_.emplace_back(name, count);
}

void FaultedTierTest::expect_whole() {
  for (const auto& [name, count] : groups_) {
    std::vector<std::string> names;
    for (int i = 0; i < count; ++i) names.push_back(path(name + "-" + std::to_string(i)));
    EXPECT_EQ(check_whole(names), count) << name;
  }
  EXPECT_EQ(stat("checksum_errors"), 0);
}

void FaultedTierTest::check_all() {
  expect_whole();
  EXPECT_TRUE(becomes("dirty_entries", 0));
  stop_and_check();
  start();
  expect_whole();
}

}  // namespace kvcachefs::test
