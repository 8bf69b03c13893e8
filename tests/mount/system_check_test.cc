// `kvcachefsd --check-system` on this machine: that it says what a daemon then finds, and changes nothing.
#include <gmock/gmock.h>

#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/program.h"

namespace kvcachefs::test {
namespace {

using ::testing::HasSubstr;

// The state of a row in what the program prints; empty: there is no such row.
std::string state_of(const std::string& table, const std::string& what) {
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(what + "  ")) continue;
    std::istringstream words(line.substr(what.size()));
    std::string state;
    words >> state;
    return state;
  }
  return "";
}

std::set<std::string> names_in(const std::string& directory) {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error))
    names.insert(entry.path().filename());
  return names;
}

// Of the directory on which the trials mount. Mounts of other tests come and go meanwhile.
std::vector<std::string> mounts_on_run() {
  std::vector<std::string> devices;
  for (const MountPoint& mount : read_mounts().value_or(std::vector<MountPoint>()))
    if (mount.directory == "/run" || mount.directory == "/run/fuse") devices.push_back(mount.device);
  return devices;
}

class SystemCheckMountTest : public ::testing::Test {
 protected:
  void SetUp() override { KVCACHEFS_NEED_DAEMON(); }
};

TEST_F(SystemCheckMountTest, SaysWhatADaemonFinds) {
  const Outcome outcome = run({"kvcachefsd", "--check-system"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
  EXPECT_EQ(outcome.error, "");
  for (const char* needed : {"rights", "FUSE", "file handles on tmpfs", "file leases on tmpfs"})
    EXPECT_EQ(state_of(outcome.out, needed), "present") << outcome.out;
  EXPECT_EQ(state_of(outcome.out, "free space"), "") << "no disk was named";
  Mount mount;
  const std::string stats = read_file(mount.root() + "/.kvcachefs/stats");
  EXPECT_EQ(state_of(outcome.out, "passthrough") == "present",
            stats.find("io_mode passthrough") != std::string::npos)
      << outcome.out << stats;
  mount.stop();
}

TEST_F(SystemCheckMountTest, LeavesNoMountAndNoFile) {
  const DiskDirectory disk;
  const auto before = mounts_on_run();
  const Outcome outcome = run({"kvcachefsd", "--check-system=" + disk.path()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
  EXPECT_EQ(state_of(outcome.out, "direct I/O (O_DIRECT)"), "present") << outcome.out;
  EXPECT_EQ(state_of(outcome.out, "free space"), "present") << outcome.out;
  EXPECT_EQ(names_in(disk.path()), std::set<std::string>());
  EXPECT_EQ(mounts_on_run(), before);
}

TEST_F(SystemCheckMountTest, RefusesADiskThatIsNone) {
  Outcome outcome = run({"kvcachefsd", "--check-system", "/dev/shm/llama.spill"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(state_of(outcome.out, "place of the disk tier"), "absent") << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("kvcachefs cannot serve like this. It needs: place of the disk tier"));
  outcome = run({"kvcachefsd", "--check-system=/not/there/llama.spill"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("/not/there: No such file or directory"));
}

TEST_F(SystemCheckMountTest, LooksAtTheFileThatIsThere) {
  const DiskDirectory place;
  const auto state_at = [&](const std::string& path, int code) {
    const Outcome outcome = run({"kvcachefsd", "--check-system=" + path});
    EXPECT_EQ(outcome.exit_code, code) << outcome.out;
    return state_of(outcome.out, "place of the disk tier");
  };
  write_file(place / "empty", "");
  write_file(place / "zeros", std::string(10'000, '\0'));
  EXPECT_EQ(state_at(place / "empty", 0), "present");
  EXPECT_EQ(state_at(place / "zeros", 0), "present");
  write_file(place / "text", "of something else");
  ASSERT_EQ(::mkfifo((place / "fifo").c_str(), 0600), 0);
  ASSERT_EQ(::symlink((place / "loop").c_str(), (place / "loop").c_str()), 0);
  ASSERT_EQ(::symlink("/not/there", (place / "dangling").c_str()), 0);
  write_file("/dev/shm/kv-test-memory", "");
  ASSERT_EQ(::symlink("/dev/shm/kv-test-memory", (place / "memory").c_str()), 0);
  for (const char* name : {"text", "fifo", "loop", "dangling", "memory"})
    EXPECT_EQ(state_at(place / name, 1), "absent") << name;
  (void)::unlink("/dev/shm/kv-test-memory");
}

// What a user sees who is not root: no trial, and nothing that is taken for known.
TEST_F(SystemCheckMountTest, TellsAUserWhatItCannotTry) {
  const DiskDirectory place;
  std::filesystem::permissions(place.path(), std::filesystem::perms(0755));
  std::filesystem::copy_file(program_path("kvcachefsd"), place / "kvcachefsd");
  const Outcome outcome = run({"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
                               place / "kvcachefsd", "--check-system"});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.error;
  EXPECT_EQ(state_of(outcome.out, "rights"), "absent") << outcome.out;
  for (const char* what : {"FUSE", "passthrough", "file handles on tmpfs", "huge pages on tmpfs"})
    EXPECT_EQ(state_of(outcome.out, what), "unknown") << outcome.out;
}

}  // namespace
}  // namespace kvcachefs::test
