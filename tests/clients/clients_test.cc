// Every engine's calls on a real mount, from two processes, on three times as many bytes as the pool holds.
// Each process asks for runs of blocks as a prompt would: probe to the first miss, load what was found and
// compare all of it, store the rest. Any outcome but right bytes and ENOENT at open is a failure.
#include <sys/statvfs.h>

#include <atomic>
#include <chrono>
#include <cstdio>
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
constexpr size_t kFailuresKept = 5;
constexpr std::chrono::minutes kDeadline(4);

struct Plan {
  Engine engine;
  std::string root;
  uint64_t runs = 0;       // runs of kRunBlocks keys in the working set
  uint64_t run_loads = 0;  // how many each process asks for
};

struct Counts {
  std::atomic<uint64_t> loads = 0;
  std::atomic<uint64_t> hits = 0;
  std::atomic<uint64_t> late_misses = 0;  // the probe found it, the open did not
  std::atomic<uint64_t> stores = 0;
  std::atomic<uint64_t> failures = 0;
};

// One client process. It keeps the first failures as sentences and goes on, so that one error does not hide
// the others.
class Process {
 public:
  Process(const Plan& plan, unsigned number)
      : plan_(plan),
        number_(number),
        client_(plan.engine.make({plan.root, plan.engine.entry_bytes, kPoolBytes})) {
    for (size_t block = 0; block < kRunBlocks; ++block) buffers_.emplace_back(plan.engine.entry_bytes);
  }

  std::string run() {
    judge(client_->start());
    test::Random random(number_ + 1);
    uint64_t last = random.below(plan_.runs);
    // Every third is asked for twice, as a conversation goes on: else a third of the pool would be all the
    // hits.
    for (uint64_t ask = 0; ask < plan_.run_loads && counts_.failures == 0; ++ask) {
      ask_for_run(last);
      if (!random.one_in(3)) last = random.below(plan_.runs);
    }
    return report();
  }

 private:
  bool mine(uint64_t run) const { return run % kProcesses == number_; }

  void ask_for_run(uint64_t run) {
    const Sharing sharing = client_->sharing();
    if (sharing == Sharing::kNone && !mine(run)) run ^= 1;
    std::vector<uint64_t> keys;
    for (size_t block = 0; block < kRunBlocks; ++block) keys.push_back(run * kRunBlocks + block);
    size_t found = 0;
    judge(client_->probe(keys, found));
    std::atomic<size_t> loaded = found;
    on_threads(found, [&](size_t block) {
      if (load(keys[block], buffers_[block].span())) return;
      for (size_t seen = loaded; block < seen && !loaded.compare_exchange_weak(seen, block);) {
      }
    });
    if (sharing == Sharing::kOwnerStores && !mine(run)) return;
    on_threads(kRunBlocks - loaded, [&](size_t index) {
      const size_t block = loaded + index;
      fill_content(keys[block], buffers_[block].span());
      ++counts_.stores;
      judge(client_->store(keys[block], buffers_[block].span()));
    });
  }

  bool load(uint64_t key, std::span<std::byte> into) {
    ++counts_.loads;
    const Outcome outcome = client_->load(key, into);
    judge(outcome);
    if (outcome.missed()) ++counts_.late_misses;
    if (!outcome.done()) return false;
    if (const auto wrong = first_wrong_byte(key, into)) {
      judge({Outcome::Kind::kFailed,
             "wrong bytes of key " + std::to_string(key) + " at " + std::to_string(*wrong)});
    }
    ++counts_.hits;
    return true;
  }

  template <class Work>
  void on_threads(size_t items, const Work& work) {
    std::atomic<size_t> next = 0;
    const auto worker = [&] {
      for (size_t item = next++; item < items; item = next++) work(item);
    };
    std::vector<std::jthread> threads;
    for (unsigned thread = 1; thread < client_->threads() && thread < items; ++thread)
      threads.emplace_back(worker);
    worker();
  }

  void judge(const Outcome& outcome) {
    if (!outcome.failed()) return;
    const size_t place = counts_.failures++;
    if (place < kFailuresKept) failures_[place] = outcome.reason;
  }

  std::string report() const {
    std::string text;
    const auto line = [&](const char* name, uint64_t value) {
      text += std::string(name) + " " + std::to_string(value) + "\n";
    };
    line("loads", counts_.loads);
    line("hits", counts_.hits);
    line("late_misses", counts_.late_misses);
    line("stores", counts_.stores);
    line("failures", counts_.failures);
    for (const std::string& failure : failures_) text += failure.empty() ? "" : "failure " + failure + "\n";
    return text;
  }

  const Plan plan_;
  const unsigned number_;
  std::unique_ptr<Client> client_;
  std::vector<Buffer> buffers_;
  Counts counts_;
  std::string failures_[kFailuresKept];  // a place each, so that threads do not meet
};

class ClientsTest : public ::testing::TestWithParam<Engine> {};

TEST_P(ClientsTest, StoresProbesAndLoadsWhileThePoolEvicts) {
  KVCACHEFS_NEED_MOUNT();
  const bool evicts = test::mode() != test::Mode::kTmpfs;
  test::Mount mount({.pools = {"p:size=" + std::to_string(kPoolBytes)}});
  const Engine engine = GetParam();
  const uint64_t working_set_bytes = evicts ? kPoolBytes * 3 : kPoolBytes / 2;
  const uint64_t runs = working_set_bytes / engine.entry_bytes / kRunBlocks / kProcesses * kProcesses;
  // 6 times the pool asked for in all: with a third of the working set in the pool two thirds of it are
  // stores.
  const Plan plan{engine, mount.path(), runs, kPoolBytes * 6 / engine.entry_bytes / kRunBlocks / kProcesses};

  std::vector<ChildProcess> processes;
  for (unsigned number = 0; number < kProcesses; ++number) {
    processes.emplace_back(
        [&plan, number](int, int answers) { send_message(answers, Process(plan, number).run()); });
  }
  std::map<std::string, uint64_t> sums;
  for (ChildProcess& process : processes) {
    const std::optional<std::string> report = process.answer(kDeadline);
    EXPECT_TRUE(report.has_value());
    EXPECT_EQ(process.finish(kDeadline), "");
    if (!report) continue;
    if (report->find("failure ") != std::string::npos) ADD_FAILURE() << *report;
    for (const auto& [name, value] : test::parse_stats(*report))
      sums[name] += std::strtoull(value.c_str(), nullptr, 10);
  }
  if (HasFailure()) report_daemon_log(mount);
  std::printf("%s: %lu loads, %lu hits, %lu missed at open, %lu stores\n", engine.name, sums["loads"],
              sums["hits"], sums["late_misses"], sums["stores"]);
  EXPECT_EQ(sums["failures"], 0u);
  EXPECT_GT(sums["hits"], 0u);
  struct statvfs space {};
  ASSERT_EQ(::statvfs(mount.path().c_str(), &space), 0);
  EXPECT_EQ(space.f_bsize, 4096u);
  EXPECT_EQ(space.f_blocks * space.f_frsize, kPoolBytes);
  if (!evicts) return;
  EXPECT_GT(mount.stat_value("discards") + mount.stat_value("evictions"), 0);
  EXPECT_LE(mount.stat_value("used_bytes"), static_cast<int64_t>(kPoolBytes));
  EXPECT_EQ(mount.stat_value("reservation_failures"), 0);
  // Nobody has anything open any more: all that was counted as open has to come back.
  EXPECT_TRUE(test::eventually([&] { return mount.stat_value("open_entries") == 0; }));
}

INSTANTIATE_TEST_SUITE_P(Engines, ClientsTest, ::testing::ValuesIn(engines()),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

}  // namespace
}  // namespace kvcachefs::clients
