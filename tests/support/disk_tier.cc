#include "tests/support/disk_tier.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <functional>

#include "tests/support/files.h"
#include "tests/support/program.h"

namespace kvcachefs::test {
namespace {

// Two seconds of spilling on a slow disk must fit, also on a busy machine.
constexpr auto kDeadline = std::chrono::seconds(60);

}  // namespace

std::string refusal(const std::vector<std::string>& pools) {
  try {
    Mount mount({.pools = pools});
    mount.stop();
  } catch (const MountError& error) {
    return error.what();
  }
  return "";
}

void DiskTierTest::SetUp() {
  KVCACHEFS_NEED_DAEMON();
  if (mode() != Mode::kIoUring) return;
  const std::string said = refusal({"p:size=32M,spill=" + spill_file() + ",spill_size=64M"});
  EXPECT_NE(said.find("ended with 2"), std::string::npos) << said;
  EXPECT_NE(said.find("over io_uring"), std::string::npos) << said;
  EXPECT_FALSE(exists(spill_file())) << "refused, and yet made";
  GTEST_SKIP() << "a disk tier is refused over io_uring, which was seen";
}

void DiskTierTest::TearDown() {
  if (!mount_) return;
  if (HasFailure()) report_daemon_log(*mount_);
  stop();
}

void DiskTierTest::start(const TierOptions& options) {
  start_pool("p:size=" + options.size + ",spill=" + spill_file() + ",spill_size=" + options.spill_size +
                 (options.more.empty() ? "" : "," + options.more),
             options.waits_for_names);
}

void DiskTierTest::start_pool(const std::string& pool, bool waits_for_names) {
  stop();
  mount_ = std::make_unique<Mount>(MountOptions{.pools = {pool}, .waits_for_names = waits_for_names});
}

void DiskTierTest::stop() {
  if (mount_) mount_->stop();
  mount_.reset();
}

void DiskTierTest::kill() {
  mount_->kill();
  mount_.reset();
}

void DiskTierTest::stop_and_check() {
  stop();
  const Outcome checked = run({"kvcachefs", "check", "p", "--data", "--spill", spill_file()});
  EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.error;
}

std::vector<std::string> DiskTierTest::fill_pool(const std::string& name, int count, size_t bytes) {
  return fill(mount_->path(), name, count, bytes);
}

::testing::AssertionResult DiskTierTest::becomes(std::string_view name, int64_t value) {
  int64_t now = 0;
  if (eventually([&] { return (now = stat(name)) == value; }, kDeadline))
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << name << " is " << now << ", not " << value;
}

::testing::AssertionResult DiskTierTest::rises_to(std::string_view name, int64_t least) {
  int64_t now = 0;
  if (eventually([&] { return (now = stat(name)) >= least; }, kDeadline))
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << name << " is " << now << ", less than " << least;
}

void DiskTierTest::set(std::string_view file, std::string_view value) {
  ASSERT_EQ(error_name(write_once(mount_->place_to_write(file), value)), "ok") << file << " = " << value;
}

int DiskTierTest::sync_directory(const std::string& name) {
  const File directory(path(name), O_RDONLY | O_DIRECTORY);
  return error_of(::fsync(directory.fd()));
}

void DiskTierTest::make_all_cold() {
  // The order is repeated, because eviction skips an entry that is on its way to the disk or was just looked
  // up.
  ASSERT_TRUE(eventually(
      [&] {
        order(*mount_, "1000000 entries");
        return stat("cold_entries") == stat("entries");
      },
      kDeadline))
      << stat("cold_entries") << " of " << stat("entries");
}

std::string DiskTierTest::tier_of(const std::string& name) {
  return xattr(name, "user.kvcachefs.tier");
}

bool DiskTierTest::damage(std::string_view content) {
  const File file(spill_file(), O_RDWR | O_CLOEXEC);
  struct stat status {};
  if (::fstat(file.fd(), &status) != 0) return false;
  const auto bytes = static_cast<size_t>(status.st_size);
  const Mapping mapping(file.fd(), bytes, PROT_READ | PROT_WRITE, MAP_SHARED);
  if (!mapping.valid()) return false;
  char* const end = mapping.data() + bytes;
  const std::boyer_moore_searcher searcher(content.begin(), content.end());
  char* const found = std::search(mapping.data(), end, searcher);
  if (found == end) return false;
  found[content.size() / 2] = static_cast<char>(found[content.size() / 2] ^ 0x10);
  return ::msync(mapping.data(), bytes, MS_SYNC) == 0;
}

}  // namespace kvcachefs::test
