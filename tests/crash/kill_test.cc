// The daemon of a pool with a disk tier is killed at any time under load, and started again on the same disk.
// Acknowledged content is there, byte for byte; no content is torn, and none was never stored.
//
// kill_test [--rounds N] [--seed S] [GoogleTest's own]
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "tests/crash/kill_load.h"
#include "tests/support/disks.h"
#include "tests/support/mount.h"
#include "tests/support/program.h"

namespace kvcachefs::test {
namespace {

constexpr unsigned kClients = 4;
// A history grows from crash to crash; after so many rounds another begins on an empty disk.
constexpr uint64_t kRoundsOfHistory = 20;

uint64_t rounds = 10;
uint64_t seed = 1;

// A disk, and the clients that know its content.
struct History {
  explicit History(Random& random) {
    for (unsigned client = 0; client < kClients; ++client)
      clients.push_back(std::make_unique<KillLoad>(client, random.next()));
  }
  std::string spill() const { return disk / "spill"; }
  DiskDirectory disk;
  std::vector<std::unique_ptr<KillLoad>> clients;
};

class KillTest : public ::testing::Test {
 protected:
  void SetUp() override { KVCACHEFS_NEED_DAEMON(); }

  std::unique_ptr<Mount> start(const History& history, Durability durability) const {
    MountOptions options;
    options.pools = {"p:size=12M,spill=" + history.spill() +
                     ",spill_size=384M,durability=" + std::string(durability_name(durability))};
    return std::make_unique<Mount>(options);
  }

  void run_load(History& history, Mount& mount, Durability durability) {
    std::atomic<bool> killed{false};
    std::atomic<bool> stop{false};
    const bool clean = random_.one_in(6);
    std::vector<std::thread> threads;
    for (auto& client : history.clients)
      threads.emplace_back([&] {
        client->run({.pool = mount.path(), .durability = durability, .killed = &killed, .stop = &stop});
      });
    stopping_log_.clear();
    const int code = mount.wait_for_exit(std::chrono::milliseconds(20 + random_.below(1200)));
    EXPECT_EQ(code, -1) << "the daemon ended by itself";
    if (!clean) {
      killed = true;
      mount.kill();
    }
    stop = true;
    for (std::thread& thread : threads) thread.join();
    if (!clean) return;
    ::kill(mount.pid(), SIGTERM);
    EXPECT_EQ(mount.wait_for_exit(std::chrono::seconds(60)), 0);
    stopping_log_ = mount.log();
    for (auto& client : history.clients) client->stopped_cleanly();
  }

  void check(const History& history) {
    const Outcome outcome = run({"kvcachefs", "check", "p", "--spill", history.spill(), "--data"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.error;
  }

  void expect_no_problems(const History& history, const Mount* mount) {
    for (const auto& client : history.clients)
      for (const std::string& problem : client->problems()) ADD_FAILURE() << problem;
    if (!HasFailure()) return;
    if (mount != nullptr) report_daemon_log(*mount);
    if (!stopping_log_.empty())
      std::fprintf(stderr, "--- and as it stopped ---\n%s---\n", stopping_log_.c_str());
  }

  Random random_{seed};
  std::string stopping_log_;
};

TEST_F(KillTest, AcknowledgedEntriesSurvive) {
  constexpr Durability kDurabilities[] = {Durability::kNone, Durability::kWriteback, Durability::kSync};
  std::unique_ptr<History> history;
  uint64_t operations = 0, acknowledged = 0, found = 0, refused = 0;
  const auto end_history = [&] {
    for (const auto& client : history->clients) {
      operations += client->operations();
      acknowledged += client->acknowledged();
      refused += client->refused();
    }
    history.reset();
  };
  for (uint64_t round = 0; round < rounds; ++round) {
    if (!history) history = std::make_unique<History>(random_);
    const Durability durability = kDurabilities[random_.below(3)];
    SCOPED_TRACE("round " + std::to_string(round) + ", durability " +
                 std::string(durability_name(durability)) + ", seed " + std::to_string(seed));
    {
      const auto mount = start(*history, durability);
      run_load(*history, *mount, durability);
      expect_no_problems(*history, mount.get());
    }
    if (HasFailure()) return;
    if (random_.one_in(3)) check(*history);
    {
      const auto mount = start(*history, durability);
      for (auto& client : history->clients) {
        client->verify(mount->path());
        found += client->found();
      }
      for (const std::string& name : list(mount->path()))
        if (!name.starts_with("client")) ADD_FAILURE() << name << " came from nowhere";
      expect_no_problems(*history, mount.get());
      if (random_.one_in(2))
        mount->kill();
      else
        mount->stop();
    }
    if (HasFailure()) return;
    if ((round + 1) % kRoundsOfHistory == 0) end_history();
  }
  if (history) end_history();
  std::printf(
      "%llu rounds: %llu operations, %llu acknowledgements, %llu entries back, %llu met a full pool\n",
      static_cast<unsigned long long>(rounds), static_cast<unsigned long long>(operations),
      static_cast<unsigned long long>(acknowledged), static_cast<unsigned long long>(found),
      static_cast<unsigned long long>(refused));
}

void take_arguments(int argument_count, char** arguments) {
  for (int at = 1; at + 1 < argument_count; at += 2) {
    uint64_t* const number = std::strcmp(arguments[at], "--rounds") == 0 ? &rounds
                             : std::strcmp(arguments[at], "--seed") == 0 ? &seed
                                                                         : nullptr;
    if (number != nullptr) *number = std::strtoull(arguments[at + 1], nullptr, 10);
  }
}

}  // namespace
}  // namespace kvcachefs::test

int main(int argument_count, char** arguments) {
  ::testing::InitGoogleTest(&argument_count, arguments);
  kvcachefs::test::take_arguments(argument_count, arguments);
  return RUN_ALL_TESTS();
}
