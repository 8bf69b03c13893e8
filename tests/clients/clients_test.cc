// Every engine's calls on a real mount, from two processes, with three times as many bytes as the pool holds.
// Each process asks for runs of blocks as a prompt would: it probes to the first miss, loads and compares the
// blocks found, and stores the rest. Any outcome except right bytes and ENOENT at open is a failure.
#include <sys/statvfs.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tests/clients/calls.h"
#include "tests/clients/client.h"
#include "tests/clients/content.h"
#include "tests/clients/processes.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::clients {
namespace {

constexpr uint64_t kPoolBytes = uint64_t{128} << 20;
constexpr unsigned kProcesses = 2;
constexpr size_t kRunBlocks = 16;
constexpr uint64_t kRunsPerLook = 6;
constexpr size_t kFailuresKept = 5;
constexpr std::chrono::minutes kDeadline(4);

struct Plan {
  Engine engine;
  std::string root;
  uint64_t runs = 0;       // runs of kRunBlocks keys in the working set
  uint64_t run_loads = 0;  // how many runs each process asks for
};

struct Counts {
  std::atomic<uint64_t> loads = 0;
  std::atomic<uint64_t> hits = 0;
  std::atomic<uint64_t> late_misses = 0;  // the probe found the block, the open did not
  std::atomic<uint64_t> stores = 0;
  std::atomic<uint64_t> mixed = 0;  // how often there were both loads and stores to do
  std::atomic<uint64_t> failures = 0;
  uint64_t removals = 0;
  uint64_t asked = 0;  // blocks
};

// One client process. It keeps the first failures as sentences and goes on, so that one error does not hide
// the others.
class Process {
 public:
  Process(const Plan& plan, unsigned number)
      : plan_(plan),
        number_(number),
        client_(plan.engine.make({plan.root, plan.engine.entry_bytes, kPoolBytes})),
        at_once_(client_->write_first_threads() == 0 ? 1 : 2) {
    for (size_t block = 0; block < at_once_ * kRunBlocks; ++block)
      buffers_.emplace_back(plan.engine.entry_bytes);
  }

  void ask_for_runs() {
    judge(client_->start());
    test::Random random(number_ + 1);
    uint64_t last = random.below(plan_.runs);
    // Every third run is asked for twice, as a conversation goes on. Without that, only the third of the
    // working set that is in the pool would give hits.
    for (uint64_t asked = 0; asked < plan_.run_loads && counts_.failures == 0;) {
      std::vector<uint64_t> runs = {last};
      if (at_once_ > 1) runs.push_back((last + 1 + random.below(plan_.runs - 1)) % plan_.runs);
      ask_for(runs);
      asked += runs.size();
      if (asked % kRunsPerLook == 0) look_and_remove(last);
      if (!random.one_in(3)) last = random.below(plan_.runs);
    }
  }

  // The process asks alone, in a pool with more room than a run takes, so that nothing has to leave. A block
  // stored now must be there when it is asked for again, be in every list, and be gone once it is deleted.
  void ask_alone() {
    ask_for({number_});
    const uint64_t hits_before = counts_.hits;
    ask_for({number_});
    expect("hits of a run just stored", counts_.hits - hits_before, kRunBlocks);
    size_t entries = 0;
    if (const auto outcome = client_->list(entries)) {
      judge(*outcome);
      if (entries < kRunBlocks) expect("entries listed", entries, kRunBlocks);
    }
    const uint64_t removals_before = counts_.removals;
    remove(number_);
    if (counts_.removals == removals_before) return;
    size_t found = 0;
    judge(client_->probe(keys_of(number_), found));
    expect("entries found after they were deleted", found, 0);
  }

  std::string report() const {
    std::string text;
    const auto line = [&](const char* name, uint64_t value) {
      text += std::string(name) + " " + std::to_string(value) + "\n";
    };
    line("asked", counts_.asked);
    line("loads", counts_.loads);
    line("hits", counts_.hits);
    line("late_misses", counts_.late_misses);
    line("stores", counts_.stores);
    line("mixed", counts_.mixed);
    line("removals", counts_.removals);
    line("failures", counts_.failures);
    for (const std::string& failure : failures_) text += failure.empty() ? "" : "failure " + failure + "\n";
    return text;
  }

 private:
  struct Block {
    uint64_t key = 0;
    std::span<std::byte> bytes;
    bool first = false;   // the first block of its run
    bool ours = false;    // this process stores it
    bool missed = false;  // at open
  };

  bool mine(uint64_t run) const { return run % kProcesses == number_; }

  static std::vector<uint64_t> keys_of(uint64_t run) {
    std::vector<uint64_t> keys;
    for (size_t block = 0; block < kRunBlocks; ++block) keys.push_back(run * kRunBlocks + block);
    return keys;
  }

  void ask_for(const std::vector<uint64_t>& runs) {
    std::vector<Block> loads;
    std::vector<Block> stores;
    for (size_t place = 0; place < runs.size(); ++place) queue(runs[place], place, loads, stores);
    if (!loads.empty() && !stores.empty()) ++counts_.mixed;
    work(loads, stores);
    // A block that went after the probe is computed again, and so are all blocks of the run behind it.
    std::vector<Block> lost;
    bool missed = false;
    for (const Block& block : loads) {
      missed = block.missed || (missed && !block.first);
      if (missed && block.ours) lost.push_back(block);
    }
    work({}, lost);
    counts_.asked += runs.size() * kRunBlocks;
  }

  // The engine lists and removes sometimes beside its requests, while the other process goes on.
  void look_and_remove(uint64_t run) {
    size_t entries = 0;
    if (const auto outcome = client_->list(entries)) judge(*outcome);
    if (client_->sharing() == Sharing::kAll || mine(run)) remove(run);
  }

  void remove(uint64_t run) {
    for (const uint64_t key : keys_of(run)) {
      const auto outcome = client_->remove(key);
      if (!outcome) return;
      judge(*outcome);
      ++counts_.removals;
    }
  }

  // queue() probes for the blocks of a run and queues those found as loads, the others as stores.
  void queue(uint64_t run, size_t place, std::vector<Block>& loads, std::vector<Block>& stores) {
    const Sharing sharing = client_->sharing();
    if (sharing == Sharing::kNone && !mine(run)) run ^= 1;
    const bool ours = sharing != Sharing::kOwnerStores || mine(run);
    const std::vector<uint64_t> keys = keys_of(run);
    size_t found = 0;
    judge(client_->probe(keys, found));
    for (size_t index = 0; index < kRunBlocks; ++index) {
      const Block block{.key = keys[index],
                        .bytes = buffers_[place * kRunBlocks + index].span(),
                        .first = index == 0,
                        .ours = ours};
      if (index < found) loads.push_back(block);
      if (index >= found && ours) stores.push_back(block);
    }
  }

  void load(Block& block) {
    ++counts_.loads;
    const Outcome outcome = client_->load(block.key, block.bytes);
    judge(outcome);
    if (outcome.missed()) ++counts_.late_misses;
    block.missed = !outcome.done();
    if (block.missed) return;
    if (const auto wrong = first_wrong_byte(block.key, block.bytes)) {
      judge({Outcome::Kind::kFailed,
             "wrong bytes of key " + std::to_string(block.key) + " at " + std::to_string(*wrong)});
    }
    ++counts_.hits;
  }

  void store(const Block& block) {
    fill_content(block.key, block.bytes);
    ++counts_.stores;
    judge(client_->store(block.key, block.bytes));
  }

  // work() works through both queues with as many threads of each kind as the engine has.
  void work(std::span<Block> loads, std::span<Block> stores) {
    std::atomic<size_t> next_load = 0;
    std::atomic<size_t> next_store = 0;
    const auto load_one = [&] {
      const size_t place = next_load++;
      if (place < loads.size()) load(loads[place]);
      return place < loads.size();
    };
    const auto store_one = [&] {
      const size_t place = next_store++;
      if (place < stores.size()) store(stores[place]);
      return place < stores.size();
    };
    const auto read_first = [&] {
      while (load_one() || store_one()) {
      }
    };
    const auto write_first = [&] {
      while (store_one() || load_one()) {
      }
    };
    const size_t writers = client_->write_first_threads();
    const size_t readers = client_->threads() - writers;
    const size_t items = loads.size() + stores.size();
    std::vector<std::jthread> threads;
    for (size_t thread = 0; thread < writers && thread < items; ++thread) threads.emplace_back(write_first);
    for (size_t thread = 1; thread < readers && thread < items; ++thread) threads.emplace_back(read_first);
    read_first();
  }

  void expect(const char* what, uint64_t value, uint64_t wanted) {
    if (value == wanted) return;
    judge({Outcome::Kind::kFailed,
           std::string(what) + ": " + std::to_string(value) + ", not " + std::to_string(wanted)});
  }

  void judge(const Outcome& outcome) {
    if (!outcome.failed()) return;
    const size_t place = counts_.failures++;
    if (place < kFailuresKept) failures_[place] = outcome.reason;
  }

  const Plan plan_;
  const unsigned number_;
  std::unique_ptr<Client> client_;
  const size_t at_once_;  // runs asked for at once
  std::vector<Buffer> buffers_;
  Counts counts_;
  std::string failures_[kFailuresKept];  // each thread writes another place
};

// serve() answers once when all runs have been asked for; then waits for a request, asks alone, and answers
// with its report.
void serve(const Plan& plan, unsigned number, int requests, int answers) {
  Process process(plan, number);
  process.ask_for_runs();
  if (!send_message(answers, "asked") || !receive_message(requests, kDeadline)) return;
  process.ask_alone();
  send_message(answers, process.report());
}

class ClientsTest : public ::testing::TestWithParam<Engine> {};

TEST_P(ClientsTest, StoresProbesAndLoadsWhileThePoolEvicts) {
  KVCACHEFS_NEED_MOUNT();
  const bool evicts = test::mode() != test::Mode::kTmpfs;
  test::Mount mount({.pools = {"p:size=" + std::to_string(kPoolBytes)}});
  const Engine engine = GetParam();
  const uint64_t working_set_bytes = evicts ? kPoolBytes * 3 : kPoolBytes / 2;
  const uint64_t runs = working_set_bytes / engine.entry_bytes / kRunBlocks / kProcesses * kProcesses;
  // The processes ask for 6 times the pool in all. Because a third of the working set is in the pool, two
  // thirds of these blocks are stores.
  const Plan plan{engine, mount.path(), runs, kPoolBytes * 6 / engine.entry_bytes / kRunBlocks / kProcesses};

  std::vector<ChildProcess> processes;
  for (unsigned number = 0; number < kProcesses; ++number) {
    processes.emplace_back(
        [&plan, number](int requests, int answers) { serve(plan, number, requests, answers); });
  }
  for (ChildProcess& process : processes) EXPECT_TRUE(process.answer(kDeadline).has_value());
  std::map<std::string, uint64_t> sums;
  for (ChildProcess& process : processes) {
    // A run is at most a quarter of the pool. Without this order, only entries just used might be able to
    // leave for it: files written in place are spared for their first second, which is longer than it takes
    // to fill the pool.
    if (evicts) {
      EXPECT_EQ(test::write_once(mount.control("evict"), "60%"), 0);
    }
    EXPECT_TRUE(process.ask("alone"));
    const std::optional<std::string> report = process.answer(kDeadline);
    EXPECT_TRUE(report.has_value());
    EXPECT_EQ(process.finish(kDeadline), "");
    if (!report) continue;
    if (report->find("failure ") != std::string::npos) ADD_FAILURE() << *report;
    for (const auto& [name, value] : test::parse_stats(*report))
      sums[name] += std::strtoull(value.c_str(), nullptr, 10);
  }
  if (HasFailure()) report_daemon_log(mount);
  std::printf("%s: %lu asked for, %lu loads, %lu hits, %lu missed at open, %lu stores\n", engine.name,
              sums["asked"], sums["loads"], sums["hits"], sums["late_misses"], sums["stores"]);
  EXPECT_EQ(sums["failures"], 0u);
  // A third of the runs is asked for again at once (of pairs, every second run), which gives hits even if
  // little else stayed. Half of these runs may be the other process's to store, or may have gone meanwhile.
  EXPECT_GE(sums["hits"], sums["asked"] / 6);
  const auto client = engine.make({mount.path(), engine.entry_bytes, kPoolBytes});
  if (client->write_first_threads() > 0) {
    EXPECT_GT(sums["mixed"], 0u);
  }
  struct statvfs space {};
  ASSERT_EQ(::statvfs(mount.path().c_str(), &space), 0);
  EXPECT_EQ(space.f_bsize, 4096u);
  if (!test::every_pool_spills()) {
    EXPECT_EQ(space.f_blocks * space.f_frsize, kPoolBytes / 16 * 15);
  }
  if (!evicts) return;
  // The counters begin at 0 with each serving process.
  if (!test::servers_are_killed()) {
    EXPECT_GT(mount.stat_value("discards") + mount.stat_value("evictions"), 0);
  }
  EXPECT_LE(mount.stat_value("used_bytes"), static_cast<int64_t>(kPoolBytes));
  EXPECT_EQ(mount.stat_value("reservation_failures"), 0);
  // Because all processes have ended, no entry may stay counted as open.
  EXPECT_TRUE(test::eventually([&] { return mount.stat_value("open_entries") == 0; }));
}

INSTANTIATE_TEST_SUITE_P(Engines, ClientsTest, ::testing::ValuesIn(engines()),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

}  // namespace
}  // namespace kvcachefs::clients
