// Seeded lives of a pool with a disk tier, with crashes and restarts, against a naive expectation.
//
//   spill_model [--seeds A-B] [--crash-points N] [--verbose]
//
// --seeds runs each seed of the range: some rounds of operations and of takeovers by another process. Each
// round ends in a clean stop, in a loss of power, or in a loss of power at a write, flush or transaction that
// the seed draws. --crash-points runs scenarios and cuts each at every one of its writes, flushes and
// transactions (before and after these), until there were N cuts. A failure is printed with its steps and the
// option that repeats it; a single seed with --verbose always prints its steps. Needs root (it mounts tmpfs)
// and /dev/shm. Exit 0 if nothing failed.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/crash/player.h"

namespace kvcachefs::test {
namespace {

constexpr int kRounds = 4;
constexpr uint64_t kOperationsMax = 50;
constexpr int kScenarioOperations = 30;

class Directory {
 public:
  Directory() {
    std::string path = "/dev/shm/kv-crash-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("mkdtemp in /dev/shm fails");
    path_ = path;
  }
  ~Directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct Setting {
  World::Options world;
  Player::Rules rules;
};

Setting draw_setting(uint64_t seed, bool may_err) {
  Random random(seed ^ 0x5bd1e995);
  Setting setting;
  World::Options& world = setting.world;
  world.seed = seed;
  world.pool_bytes = (512 + 128 * random.below(5)) << 10;
  const bool small = random.one_in(4);
  world.disk_units = small ? 128 + random.below(256) : 8192;
  constexpr std::array kDurabilities = {Durability::kNone, Durability::kWriteback, Durability::kWriteback,
                                        Durability::kSync};
  world.durability = kDurabilities[random.below(kDurabilities.size())];
  if (random.one_in(6)) world.admission = Admission::kSecondAccess;
  constexpr std::array kPolicies = {"lru", "fifo", "lfu"};
  world.policy = kPolicies[random.below(kPolicies.size())];
  world.writable_backing = random.one_in(2);
  setting.rules.durability = world.durability;
  setting.rules.may_discard =
      small || world.durability == Durability::kNone || world.admission != Admission::kAll;
  if (may_err && random.one_in(5)) {
    setting.rules.faulty = setting.rules.may_discard = true;
    world.odds = {.read_error = 200, .write_error = 100, .no_space = 200, .rot = 200, .misdirect = 200};
  }
  if (may_err && !setting.rules.faulty && random.one_in(8)) {
    setting.rules.flush_fails = true;
    world.odds = {.flush_error = 20};
  }
  return setting;
}

class Run {
 public:
  Run(uint64_t seed, const std::string& directory, bool may_err)
      : setting_(draw_setting(seed, may_err)),
        world_(setting_.world, directory),
        player_(world_, expectation_, seed, setting_.rules),
        random_(seed + 0x1234567) {}

  void rounds() {
    takes_over_ = !setting_.rules.faulty;
    world_.start();
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t ending = random_.below(6);
      if (ending >= 2) draw_cut();
      try {
        operate(10 + random_.below(kOperationsMax));
        if (ending == 0 && !setting_.rules.flush_fails) {
          stop();
        } else {
          end_by_power();
        }
      } catch (const Crash&) {
        end_by_power();
      }
      come_back();
    }
  }

  // scenario() runs one life that is cut at this point, and then one that ends well.
  void scenario(Cut cut) {
    world_.start();
    world_.cut(cut);
    try {
      operate(kScenarioOperations);
      player_.close_all();
      world_.quiesce();
      operations_ = world_.disk().operations();
      commits_ = world_.commits();
    } catch (const Crash&) {
    }
    end_by_power();
    come_back();
    operate(5);
    stop();
    come_back();
  }

  uint64_t operations() const { return operations_; }
  uint64_t commits() const { return commits_; }
  const Player& player() const { return player_; }

 private:
  void draw_cut() {
    const uint64_t kind = random_.below(4);
    if (kind < 2) return world_.cut({Cut::Kind::kDisk, 1 + random_.below(120)});
    world_.cut({kind == 2 ? Cut::Kind::kBeforeCommit : Cut::Kind::kAfterCommit, 1 + random_.below(40)});
  }
  void operate(uint64_t count) {
    for (uint64_t done = 0; done < count; ++done) {
      player_.operate();
      // Takeovers are left out if the disk errs, because it can make a takeover fail, too.
      if (takes_over_ && random_.one_in(30)) player_.take_over();
    }
    if (!setting_.rules.faulty) player_.check_now();
  }
  void stop() {
    player_.close_all();
    player_.note("clean stop");
    world_.bring_to_disk();
    player_.all_durable();
    player_.note_times();
    player_.forget_life();
    world_.lose_power();
  }
  void end_by_power() {
    player_.note("the power goes");
    player_.forget_life();
    world_.lose_power();
  }
  void come_back() {
    world_.start();
    player_.check_after_crash();
    if (!setting_.rules.faulty) world_.check_space();
  }

  const Setting setting_;
  Expectation expectation_;
  World world_;
  Player player_;
  Random random_;
  uint64_t operations_ = 0;
  uint64_t commits_ = 0;
  bool takes_over_ = false;
};

bool verbose = false;

void print_steps(const Player& player) {
  for (const std::string& line : player.trace()) std::printf("  %s\n", line.c_str());
}

// attempt() runs `action`; if it throws, prints the steps and `what` with the exception's text and returns
// false.
template <class Action>
bool attempt(uint64_t seed, const std::string& what, bool may_err, Action action) {
  const Directory directory;
  Run run(seed, directory.path(), may_err);
  try {
    action(run);
    if (verbose) print_steps(run.player());
    return true;
  } catch (const std::exception& error) {
    print_steps(run.player());
    std::printf("%s: %s\n", what.c_str(), error.what());
    std::fflush(stdout);
    return false;
  }
}

uint64_t run_seeds(uint64_t first, uint64_t last) {
  uint64_t failures = 0;
  for (uint64_t seed = first; seed <= last; ++seed)
    if (!attempt(seed, fmt::format("--seeds {}-{}", seed, seed), true, [](Run& run) { run.rounds(); }))
      ++failures;
  return failures;
}

uint64_t run_crash_points(uint64_t first_seed, uint64_t points) {
  uint64_t failures = 0;
  uint64_t done = 0;
  const auto one = [&](uint64_t seed, Cut cut) {
    if (done++ >= points) return;
    const std::string what =
        fmt::format("--scenario {} --cut {}:{}", seed, static_cast<int>(cut.kind), cut.at);
    if (!attempt(seed, what, false, [&](Run& run) { run.scenario(cut); })) ++failures;
  };
  uint64_t seed = first_seed;
  while (done < points) {
    uint64_t operations = 0;
    uint64_t commits = 0;
    const bool whole = attempt(seed, fmt::format("--scenario {} --cut 0:0", seed), false, [&](Run& run) {
      run.scenario({});
      operations = run.operations();
      commits = run.commits();
    });
    if (!whole) ++failures;
    for (uint64_t at = 1; at <= operations; ++at) one(seed, {Cut::Kind::kDisk, at});
    for (uint64_t at = 1; at <= commits; ++at) {
      one(seed, {Cut::Kind::kBeforeCommit, at});
      one(seed, {Cut::Kind::kAfterCommit, at});
    }
    ++seed;
  }
  return failures;
}

struct Orders {
  uint64_t first = 1, last = 0;
  uint64_t points = 0;
  uint64_t scenario = 0;
  Cut cut;
};

int usage() {
  std::printf("spill_model [--seeds A-B] [--crash-points N] [--scenario SEED --cut KIND:N] [--verbose]\n");
  return 2;
}

std::pair<uint64_t, uint64_t> two_numbers(const std::string& text, char between) {
  const size_t at = text.find(between);
  const uint64_t first = std::stoull(text.substr(0, at));
  return {first, at == std::string::npos ? first : std::stoull(text.substr(at + 1))};
}

int run(const Orders& orders) {
  const auto begun = std::chrono::system_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::system_clock::now() - begun).count();
  };
  uint64_t failures = 0;
  if (orders.last >= orders.first) {
    failures += run_seeds(orders.first, orders.last);
    std::printf("seeds %lu to %lu: %lu failures, %.1f s\n", orders.first, orders.last, failures, seconds());
  }
  if (orders.points > 0) {
    const uint64_t failed = run_crash_points(1, orders.points);
    failures += failed;
    std::printf("%lu crash points: %lu failures, %.1f s\n", orders.points, failed, seconds());
  }
  if (orders.scenario > 0 &&
      !attempt(orders.scenario, "the scenario", false, [&](Run& run) { run.scenario(orders.cut); }))
    ++failures;
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace kvcachefs::test

// Sanitizers report on stdout, because stderr is discarded.
extern "C" const char* __asan_default_options() {
  return "log_path=stdout";
}
extern "C" const char* __ubsan_default_options() {
  return "log_path=stdout";
}

int main(int count, char** arguments) {
  using namespace kvcachefs::test;
  Orders orders;
  for (int index = 1; index < count; ++index) {
    const std::string option = arguments[index];
    if (option == "--verbose") {
      verbose = true;
      continue;
    }
    if (++index == count) return usage();
    const std::string value = arguments[index];
    if (option == "--seeds")
      std::tie(orders.first, orders.last) = two_numbers(value, '-');
    else if (option == "--crash-points")
      orders.points = std::stoull(value);
    else if (option == "--scenario")
      orders.scenario = std::stoull(value);
    else if (option == "--cut")
      orders.cut = {static_cast<Cut::Kind>(two_numbers(value, ':').first), two_numbers(value, ':').second};
    else
      return usage();
  }
  ::umask(0);  // as the daemon sets it
  // The pool's log of each restart would bury all other output.
  if (!verbose)
    if (const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC); nowhere >= 0)
      ::dup2(nowhere, STDERR_FILENO);
  return run(orders);
}
