// Eight processes of eight users do all at once that a client may do to two pools, one of them with a disk
// tier, while the serving process is killed and upgraded now and then. No client may see a wrong byte, an
// error that is not documented for its call or a call that does not come back, no bound may be exceeded, and
// no process of the daemon may die of itself. What the disk has at the end is checked and read back.
//
// soak [--seconds N] [--seed N] [--mode passthrough|daemon_io] [--log FILE] [GoogleTest's own]
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fts.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <thread>

#include "tests/soak/client.h"
#include "tests/soak/disturber.h"
#include "tests/soak/sampler.h"
#include "tests/support/disks.h"
#include "tests/support/mount.h"
#include "tests/support/pool_pressure.h"
#include "tests/support/program.h"

namespace kvcachefs::soak {
namespace {

uint64_t seconds = 30;
uint64_t seed = 1;
std::string log_file;

constexpr std::array<uid_t, kClients> kUsers = {0, 65534, 1000, 1001, 1002, 1003, 1004, 1005};
constexpr uint64_t kMostEntries = 6000, kMostDirectories = 1500;
constexpr auto kSamplePause = std::chrono::milliseconds(200);
constexpr auto kStepPause = std::chrono::milliseconds(50);
constexpr auto kLastCalls = std::chrono::seconds(60);  // until clients have ended

class Soak : public ::testing::Test {
 protected:
  void SetUp() override { KVCACHEFS_NEED_DAEMON(); }
  void TearDown() override {
    for (const pid_t client : clients_) {
      (void)::kill(client, SIGKILL);
      (void)::waitpid(client, nullptr, 0);
    }
  }

  std::string spill_file() const { return disk_ / "spill"; }
  static std::string limits() {
    return "max_entries=" + std::to_string(kMostEntries) +
           ",max_directories=" + std::to_string(kMostDirectories) + ",max_xattrs=32,max_xattr_bytes=64K";
  }
  std::string pool_with_disk() const {
    return "b:size=128M," + limits() + ",spill=" + spill_file() + ",spill_size=512M";
  }
  void start() {
    mount_.emplace(test::MountOptions{.pools = {"a:size=256M,user_share=20%," + limits(), pool_with_disk()}});
    place_ = {
        mount_->root(), {"a", "b"}, {256 * test::kMiB, 128 * test::kMiB}, kMostEntries, kMostDirectories};
    disturber_.emplace(record_, *mount_, seconds, seed);
    sampler_.emplace(record_, *mount_, place_, spill_file());
    for (int i = 0; i < kClients; ++i) clients_.push_back(fork_client(record_, place_, i, kUsers[i], seed));
  }
  void go_on() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    std::atomic<bool> samples{true};
    std::thread sampling([&] {
      while (samples) {
        sampler_->sample();
        std::this_thread::sleep_for(kSamplePause);
      }
    });
    while (record_.goes_on() && std::chrono::steady_clock::now() < end) {
      disturber_->step();
      std::this_thread::sleep_for(kStepPause);
    }
    record_.end();
    wait_for_clients();
    samples = false;
    if (!has_hung_)
      sampling.join();
    else
      sampling.detach();
  }
  void wait_for_clients() {
    for (const pid_t client : clients_) {
      int status = 0;
      if (!test::eventually([&] { return ::waitpid(client, &status, WNOHANG) == client; }, kLastCalls)) {
        has_hung_ = true;
        record_.fail("HANG: client process " + std::to_string(client) + " does not end", true);
      } else if (status != 0) {
        record_.fail("client process " + std::to_string(client) + " ended with " + std::to_string(status),
                     true);
      }
    }
    if (!has_hung_) clients_.clear();
  }
  void expect_rest() {
    for (const std::string& pool : place_.pools)
      if (!test::eventually([&] { return mount_->stat_value("open_entries", pool) == 0; }))
        record_.fail("AT REST: " + std::to_string(mount_->stat_value("open_entries", pool)) +
                         " entries are open in pool " + pool,
                     false);
    disturber_->check_end();
    sampler_->sample();
  }
  // What the disk has, with no daemon and then by another one.
  void expect_disk_intact() {
    const auto checked = test::run({"kvcachefs", "check", "b", "--spill", spill_file(), "--data"});
    EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.error;
    std::printf("kvcachefs check: %s", checked.out.c_str());
    mount_.emplace(test::MountOptions{.pools = {pool_with_disk()}});
    const uint64_t before = record_.tally().whole;
    const uint64_t names = read_all(mount_->path("b"));
    std::printf("after a restart: %lu files, %lu of them whole entries\n", names,
                record_.tally().whole - before);
    EXPECT_GT(names, 0u);
    mount_->stop();
  }

  // The number of files, each of which is proved. fts(3) changes its directory, so no path is too long.
  uint64_t read_all(const std::string& directory) {
    std::string top = directory;
    std::array<char*, 2> tops = {top.data(), nullptr};
    FTS* const tree = ::fts_open(tops.data(), FTS_PHYSICAL, nullptr);
    uint64_t files = 0;
    while (const FTSENT* const one = ::fts_read(tree)) {
      if (one->fts_info != FTS_F) continue;
      ++files;
      const auto identity = identity_of(one->fts_name);
      if (!identity) continue;
      try {
        // What others than whole entries have far behind is one block in a gigabyte of holes.
        const File file(one->fts_accpath, O_RDONLY);
        const std::string content = test::read_at(file.fd(), 0, 2 * kMostEntryBytes);
        const std::string wrong =
            identity->is_whole ? wrong_whole(one->fts_name, content) : wrong_words(one->fts_name, 0, content);
        if (!wrong.empty())
          record_.fail("WRONG BYTES after a restart: " + std::string(one->fts_name) + ": " + wrong, false);
        record_.tally().whole += identity->is_whole;
      } catch (const std::exception& error) {
        record_.fail(std::string("after a restart: ") + error.what(), false);
      }
    }
    ::fts_close(tree);
    return files;
  }

  void report() {
    const Tally& tally = record_.tally();
    std::printf(
        "%s, seed %lu: %lu entries whole, %lu misses, %lu own files exact, %lu deep, %.1f GB proved\n",
        test::mode_name().data(), seed, tally.whole.load(), tally.misses.load(), tally.own_files.load(),
        tally.deep.load(), static_cast<double>(tally.bytes) / 1e9);
    std::printf("%s\n%s\n%s", record_.table().c_str(), sampler_->peaks().c_str(),
                disturber_->summary().c_str());
    if (!log_file.empty()) std::ofstream(log_file) << mount_->log();
    (void)std::fflush(stdout);
  }

  test::DiskDirectory disk_;
  Record record_;
  Place place_;
  std::optional<test::Mount> mount_;
  std::optional<Sampler> sampler_;
  std::optional<Disturber> disturber_;
  std::vector<pid_t> clients_;
  bool has_hung_ = false;
};

TEST_F(Soak, EveryBoundIsKept) {
  start();
  go_on();
  if (!has_hung_) expect_rest();
  report();
  if (record_.failures() > 0) test::report_daemon_log(*mount_);
  if (!has_hung_) {
    mount_->stop();
    expect_disk_intact();
  }
  for (const std::string& text : record_.texts()) ADD_FAILURE() << text;
  EXPECT_EQ(record_.failures(), 0u);
}

}  // namespace
}  // namespace kvcachefs::soak

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view option = argv[i];
    if (option == "--seconds") kvcachefs::soak::seconds = std::strtoull(argv[i + 1], nullptr, 10);
    if (option == "--seed") kvcachefs::soak::seed = std::strtoull(argv[i + 1], nullptr, 10);
    if (option == "--mode") ::setenv("KVCACHEFS_TEST_MODE", argv[i + 1], 1);
    if (option == "--log") kvcachefs::soak::log_file = argv[i + 1];
  }
  return RUN_ALL_TESTS();
}
