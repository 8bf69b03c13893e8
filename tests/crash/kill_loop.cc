// The serving process is killed at random moments, over and over, under clients that do not know it: the
// calls of real engines; a file written, read, truncated and mapped at random against a copy in memory; a
// mapping that is read all the time; a stream of reads on one descriptor; and names made, moved and removed.
// No client may see an error, a short count or a wrong byte, no stored entry may be missing, and nothing may
// pile up. At the end the program prints the pauses that a client doing opens has seen.
//
// kill_loop [--kills N] [--seed S] [--entries N] [--upgrades N] [--other DAEMON] [GoogleTest's own]
// --entries: how many entries of 4 KiB lie in the pool in addition.
// --upgrades: how often the daemon, instead of being killed, becomes the program --other (default: the same
// program again) and its own program in turn.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

#include "base/mutex.h"
#include "tests/clients/client.h"
#include "tests/support/disks.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/program.h"
#include "tests/support/programs.h"

namespace kvcachefs::test {
namespace {

using clients::Client;
using Clock = std::chrono::steady_clock;

uint64_t kills = 20;
uint64_t seed = 1;
uint64_t bystanders = 10'000;
uint64_t upgrades = 0;
std::string other_daemon;

constexpr auto kUndisturbed = std::chrono::seconds(2);
constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kEntries = 64;
constexpr size_t kEntryBytes = 256 << 10;

// All clients share a Stage: it says whether to go on, and collects what went wrong.
class Stage {
 public:
  bool goes_on() const { return !ends_; }
  void end() { ends_ = true; }
  void problem(const std::string& text) {
    const MutexLock lock(mutex_);
    if (problems_.size() < 10) problems_.push_back(text);
    ends_ = true;
  }
  // True if the call succeeded.
  bool ok(const std::string& call, long result) {
    if (result >= 0) return true;
    problem(call + ": " + error_name(error_of(result)));
    return false;
  }
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  std::atomic<bool> ends_{false};
  Mutex mutex_;
  std::vector<std::string> problems_;
};

// A small fsx: one file and a model of its content.
void write_at_random(Stage& stage, const std::string& path, uint64_t own_seed) {
  constexpr size_t kMost = 512 << 10;
  Random random(own_seed);
  std::string model;
  File file(path, O_RDWR | O_CREAT | O_TRUNC);
  for (uint64_t step = 0; stage.goes_on(); ++step) {
    const size_t at = random.below(kMost);
    const size_t length = 1 + random.below(64 << 10);
    switch (random.below(7)) {
      case 0:
      case 1: {
        const std::string bytes = pattern(own_seed + step, length);
        const long written = ::pwrite(file.fd(), bytes.data(), length, static_cast<off_t>(at));
        if (!stage.ok("pwrite", written)) return;
        if (static_cast<size_t>(written) != length) return stage.problem("a short write");
        if (model.size() < at + length) model.resize(at + length);
        model.replace(at, length, bytes);
        break;
      }
      case 2:
      case 3: {
        const std::string read = read_at(file.fd(), static_cast<off_t>(at), length);
        if (read != (at < model.size() ? model.substr(at, length) : ""))
          return stage.problem("wrong bytes in " + path + " at " + std::to_string(at) + ", step " +
                               std::to_string(step));
        break;
      }
      case 4:
        if (!stage.ok("ftruncate", ::ftruncate(file.fd(), static_cast<off_t>(at)))) return;
        model.resize(at);
        break;
      case 5: {
        if (model.empty()) break;
        const Mapping mapped(file.fd(), model.size(), PROT_READ | PROT_WRITE, MAP_SHARED);
        if (!mapped.valid()) return stage.problem("mmap failed");
        if (mapped.text() != model) return stage.problem("wrong bytes in the mapping of " + path);
        const size_t place = at % model.size();
        mapped.data()[place] = model[place] = static_cast<char>(step);
        break;
      }
      default: {
        file = File(path, O_RDWR);
        struct stat status {};
        if (!stage.ok("fstat", ::fstat(file.fd(), &status))) return;
        if (static_cast<size_t>(status.st_size) != model.size())
          return stage.problem(path + " has " + std::to_string(status.st_size) + " bytes, not " +
                               std::to_string(model.size()));
      }
    }
  }
}

void read_mapping(Stage& stage, const std::string& path, uint64_t own_seed) {
  const File file(path, O_RDONLY);
  const Mapping mapped(file.fd(), 4 * kMiB, PROT_READ, MAP_SHARED);
  if (!mapped.valid()) return stage.problem("mmap of " + path + " failed");
  while (stage.goes_on())
    if (const std::string wrong = difference(own_seed, mapped.text()); !wrong.empty())
      return stage.problem("mapping of " + path + ": " + wrong);
}

struct Stream {
  uint64_t reads = 0;
  std::atomic<double> longest_ms = 0;  // since it was last set to 0
};

// read_stream() reads an open file over and over.
void read_stream(Stage& stage, Stream& stream, const std::string& path, uint64_t own_seed) {
  const std::string all = pattern(own_seed, 4 * kMiB);
  const File file(path, O_RDONLY);
  std::string piece(128 << 10, '\0');
  for (size_t at = 0; stage.goes_on(); at = (at + piece.size()) % all.size()) {
    const auto begun = Clock::now();
    const long count = ::pread(file.fd(), piece.data(), piece.size(), static_cast<off_t>(at));
    const std::chrono::duration<double, std::milli> took = Clock::now() - begun;
    if (took.count() > stream.longest_ms) stream.longest_ms = took.count();
    ++stream.reads;
    if (!stage.ok("read of " + path, count)) break;
    if (static_cast<size_t>(count) != piece.size() || all.compare(at, piece.size(), piece) != 0) {
      stage.problem("wrong bytes in the stream of " + path);
      break;
    }
  }
}

// Each name in turn goes through its life; because only this thread changes it, the thread knows how each
// call has to end.
void move_names(Stage& stage, const std::string& root, uint64_t own_seed) {
  Random random(own_seed);
  for (uint64_t round = 0; stage.goes_on(); ++round) {
    const std::string directory = root + "/d" + std::to_string(round);
    const std::string a = directory + "/a", b = directory + "/b", c = directory + "/c";
    if (!stage.ok("mkdir", ::mkdir(directory.c_str(), 0755))) return;
    for (const std::string& name : {a, b}) {
      const File file(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0644));
      if (!stage.ok("exclusive open of " + name, file.fd())) return;
      if (!stage.ok("write", ::write(file.fd(), name.data(), name.size()))) return;
    }
    if (!stage.ok("exchange", ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE))) return;
    if (read_file(a) != b || read_file(b) != a) return stage.problem("exchanged twice, or never");
    if (!stage.ok("link", ::link(a.c_str(), c.c_str()))) return;
    if (::link(a.c_str(), c.c_str()) == 0 || errno != EEXIST) return stage.problem("linked where a name is");
    if (!stage.ok("rename", ::rename(b.c_str(), a.c_str()))) return;
    struct stat status {};
    if (!stage.ok("stat", ::stat(c.c_str(), &status))) return;
    if (status.st_nlink != 1) return stage.problem("a replaced name still counts");
    // The file is open without a name and can be read until it is closed.
    const File open(c, O_RDONLY);
    if (!stage.ok("unlink", ::unlink(c.c_str()))) return;
    if (::unlink(c.c_str()) == 0 || errno != ENOENT) return stage.problem("unlinked twice");
    if (random.one_in(4)) std::this_thread::sleep_for(std::chrono::milliseconds(random.below(50)));
    if (read_at(open.fd(), 0, 4096) != b) return stage.problem("wrong bytes of a file without a name");
    if (!stage.ok("unlink", ::unlink(a.c_str()))) return;
    if (!stage.ok("rmdir", ::rmdir(directory.c_str()))) return;
  }
}

// An engine stores and loads entries; because nothing is evicted here, each stored entry has to be there.
void run_engine(Stage& stage, const clients::Engine& engine, const std::string& root, uint64_t own_seed) {
  Random random(own_seed);
  constexpr uint64_t kKeys = 8;
  constexpr uint64_t kRounds = 40;
  make_directory(root);
  const auto client =
      engine.make({.root = root, .entry_bytes = engine.entry_bytes, .budget_bytes = 64 * kMiB});
  if (const clients::Outcome started = client->start(); started.failed())
    return stage.problem(started.reason);
  std::string into(engine.entry_bytes, '\0');
  for (uint64_t round = 0; round < kRounds && stage.goes_on(); ++round) {
    const uint64_t key = random.below(kKeys);
    const std::string bytes = pattern(key, engine.entry_bytes);
    const auto name = std::string(engine.name) + ", key " + std::to_string(key) + ": ";
    const clients::Outcome stored = client->store(key, std::as_bytes(std::span(bytes)));
    if (!stored.done()) return stage.problem(name + "store: " + stored.reason);
    const clients::Outcome loaded = client->load(key, std::as_writable_bytes(std::span(into)));
    if (!loaded.done())
      return stage.problem(name + "load: " + loaded.reason + (loaded.missed() ? " (miss)" : ""));
    if (const std::string wrong = difference(key, into); !wrong.empty())
      return stage.problem(name + "wrong bytes: " + wrong + ", round " + std::to_string(round));
  }
}

struct Open {
  Clock::time_point begun, ended;
};

std::vector<Open> open_and_close(Stage& stage, const std::vector<std::string>& names, uint64_t own_seed) {
  std::vector<Open> opens;
  Random random(own_seed);
  while (stage.goes_on()) {
    const auto begun = Clock::now();
    const File file(::open(names[random.below(names.size())].c_str(), O_RDONLY));
    if (!stage.ok("open", file.fd())) break;
    opens.push_back({begun, Clock::now()});
  }
  return opens;
}

// The duration for each death of the longest open that ended after it and before the next death.
std::vector<double> pauses_ms(const std::vector<Open>& opens, const std::vector<Clock::time_point>& deaths) {
  std::vector<double> result;
  auto open = opens.begin();
  for (size_t i = 0; i < deaths.size(); ++i) {
    double longest_ms = 0;
    while (open != opens.end() && open->ended < deaths[i]) ++open;
    for (; open != opens.end() && (i + 1 == deaths.size() || open->ended < deaths[i + 1]); ++open)
      longest_ms =
          std::max(longest_ms, std::chrono::duration<double, std::milli>(open->ended - open->begun).count());
    if (longest_ms > 0) result.push_back(longest_ms);  // no open ended: the next death came during the open
  }
  std::ranges::sort(result);
  return result;
}

// print_takeovers() prints how long the takeovers of the pool took, as the log says.
void print_takeovers(const std::string& log) {
  std::vector<double> took_ms;
  const std::string said = " entries in ";
  for (size_t at = 0; (at = log.find(said, at)) != std::string::npos; at += said.size())
    took_ms.push_back(std::strtod(log.c_str() + at + said.size(), nullptr));
  if (took_ms.empty()) return;
  std::ranges::sort(took_ms);
  std::printf("%zu takeovers, of the pool: median %.0f ms, longest %.0f ms\n", took_ms.size(),
              took_ms[took_ms.size() / 2], took_ms.back());
}

class KillLoop : public ::testing::Test {
 protected:
  void SetUp() override { KVCACHEFS_NEED_DAEMON(); }

  static size_t descriptors_of(pid_t pid) {
    const std::filesystem::directory_iterator all("/proc/" + std::to_string(pid) + "/fd");
    return static_cast<size_t>(std::distance(begin(all), end(all)));
  }
  static size_t memory_kib_of(pid_t pid) {
    const std::string status = read_file("/proc/" + std::to_string(pid) + "/status");
    return std::strtoull(status.c_str() + status.find("VmRSS:") + 6, nullptr, 10);
  }
};

TEST_F(KillLoop, NobodyNotices) {
  Programs programs;
  Mount mount({.pools = {"p:size=" + std::to_string(512 + bystanders * 8 / 1024) + "M"}});
  Stage stage;
  std::vector<std::string> names;
  for (size_t i = 0; i < kEntries; ++i) {
    names.push_back(mount.path() + "/entry-" + std::to_string(i));
    ASSERT_EQ(store(names.back(), pattern(1000 + i, kEntryBytes)), 0);
  }
  write_file(mount.path() + "/long", pattern(7, 4 * kMiB));
  make_directory(mount.path() + "/bystanders");
  for (uint64_t i = 0; i < bystanders; ++i)
    write_file(mount.path() + "/bystanders/" + std::to_string(i), pattern(i, 4096));
  const size_t descriptors = descriptors_of(mount.pid());
  [[maybe_unused]] const size_t supervisor_kib = memory_kib_of(mount.pid());
  [[maybe_unused]] const size_t child_kib = memory_kib_of(mount.server_pid());
  Stream stream;
  std::vector<Open> opens;
  std::vector<Clock::time_point> deaths;
  std::vector<std::thread> clients;
  const auto start = [&](auto client) {
    clients.emplace_back([&stage, client] {
      try {
        client();
      } catch (const std::exception& failure) {
        stage.problem(failure.what());
      }
    });
  };
  start([&] { write_at_random(stage, mount.path() + "/random", seed); });
  start([&] { read_mapping(stage, mount.path() + "/long", 7); });
  start([&] { read_stream(stage, stream, mount.path() + "/long", 7); });
  start([&] { move_names(stage, mount.path(), seed + 1); });
  start([&] { opens = open_and_close(stage, names, seed + 2); });
  uint64_t engines = 0;
  start([&] {
    for (const auto& all = clients::engines(); stage.goes_on(); ++engines) {
      const std::string root = mount.path() + "/engine-" + std::to_string(engines);
      run_engine(stage, all[engines % all.size()], root, seed + 3 + engines);
      // Without this the pool would get full and evict entries that have to be there.
      remove_content(root);
    }
  });
  // The longest read without a death is the noise.
  std::this_thread::sleep_for(kUndisturbed);
  const double undisturbed_ms = stream.longest_ms.exchange(0);
  Random random(seed);
  // Some servers are killed before they serve.
  for (uint64_t kill = 0; kill < (upgrades > 0 ? 0 : kills) && stage.goes_on(); ++kill) {
    mount.kill_server(!random.one_in(4), std::chrono::milliseconds(random.below(300)));
    deaths.push_back(Clock::now());
  }
  for (uint64_t upgrade = 0; upgrade < upgrades && stage.goes_on(); ++upgrade) {
    std::this_thread::sleep_for(std::chrono::milliseconds(random.below(300)));
    programs.install_program(upgrade % 2 == 0 && !other_daemon.empty() ? other_daemon : programs.real());
    deaths.push_back(Clock::now());
    const auto outcome = run({"kvcachefs", "--mount", mount.root(), "upgrade"});
    if (outcome.exit_code != 0) stage.problem("upgrade: " + outcome.error);
  }
  stage.end();
  for (std::thread& client : clients) client.join();
  for (const std::string& problem : stage.problems()) ADD_FAILURE() << problem;
  for (size_t i = 0; i < kEntries; ++i) EXPECT_EQ(difference(1000 + i, read_file(names[i])), "") << names[i];
  for (uint64_t i = 0; i < bystanders; ++i)
    ASSERT_EQ(difference(i, read_file(mount.path() + "/bystanders/" + std::to_string(i))), "") << i;
  EXPECT_TRUE(eventually([&] { return mount.stat_value("open_entries") == 0; }));
  EXPECT_TRUE(eventually([&] { return descriptors_of(mount.pid()) <= descriptors + 2; }))
      << descriptors_of(mount.pid()) << " descriptors, at first " << descriptors;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // sanitizers keep freed memory
  // The growth allowed is that of log buffers and of memory shared with the child; a leak for each death is
  // more.
  EXPECT_LE(memory_kib_of(mount.pid()), supervisor_kib + 2048);
  EXPECT_LE(memory_kib_of(mount.server_pid()), child_kib + 16384);
#endif
  // All entries that take memory have a name; a leaked backing id would keep the memory of a nameless file.
  remove_content(mount.path());
  EXPECT_TRUE(eventually([&] { return mount.stat_value("used_bytes") < 64 << 10; }))
      << mount.stat_value("used_bytes") << " bytes of nothing";
  if (HasFailure()) report_daemon_log(mount);
  print_takeovers(mount.log());
  const std::vector<double> pauses = pauses_ms(opens, deaths);
  ASSERT_FALSE(pauses.empty());
  std::printf("%zu deaths, %lu runs of engines, %zu opens\n", deaths.size(), engines, opens.size());
  std::printf("pause of a client doing opens: median %.0f ms, longest %.0f ms, of %zu\n",
              pauses[pauses.size() / 2], pauses.back(), pauses.size());
  std::printf("%lu reads on an open file, longest %.1f ms; before the first death %.1f ms\n", stream.reads,
              stream.longest_ms.load(), undisturbed_ms);
}

}  // namespace
}  // namespace kvcachefs::test

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--kills") == 0)
      kvcachefs::test::kills = std::strtoull(argv[i + 1], nullptr, 10);
    if (std::strcmp(argv[i], "--entries") == 0)
      kvcachefs::test::bystanders = std::strtoull(argv[i + 1], nullptr, 10);
    if (std::strcmp(argv[i], "--upgrades") == 0)
      kvcachefs::test::upgrades = std::strtoull(argv[i + 1], nullptr, 10);
    if (std::strcmp(argv[i], "--other") == 0) kvcachefs::test::other_daemon = argv[i + 1];
    if (std::strcmp(argv[i], "--seed") == 0) kvcachefs::test::seed = std::strtoull(argv[i + 1], nullptr, 10);
  }
  return RUN_ALL_TESTS();
}
