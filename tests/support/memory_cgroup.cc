#include "tests/support/memory_cgroup.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "base/key_value.h"
#include "base/mountinfo.h"
#include "tests/support/files.h"

namespace kvcachefs::test {
namespace {

struct Home {
  std::string directory;  // empty: there is none
  bool unified = false;
};

// With v2 no process may be where groups with limits are below, but for the root of the hierarchy.
Home find_home() {
  const auto mounts = read_mounts();
  if (!mounts) return {};
  for (const MountPoint& mount : *mounts)
    if (mount.type == "cgroup" && ("," + mount.options + ",").find(",memory,") != std::string::npos) {
      const std::string text = read_file("/proc/self/cgroup");
      for (std::string_view lines = text; !lines.empty();) {
        std::string_view path = take_part(lines, '\n');
        take_part(path, ':');
        if (take_part(path, ':') == "memory") return {mount.directory + std::string(path), false};
      }
    }
  for (const MountPoint& mount : *mounts)
    if (mount.type == "cgroup2" && write_once(mount.directory + "/cgroup.subtree_control", "+memory") == 0)
      return {mount.directory, true};
  return {};
}

}  // namespace

std::string MemoryCgroup::lacking() {
  const Home home = find_home();
  return !home.directory.empty() && ::access(home.directory.c_str(), W_OK) == 0 ? "" : "memory cgroups";
}

MemoryCgroup::MemoryCgroup(uint64_t limit_bytes) {
  static int made = 0;
  const Home home = find_home();
  home_ = home.directory;
  unified_ = home.unified;
  directory_ = home_ + "/kv-test-" + std::to_string(::getpid()) + "-" + std::to_string(made++);
  if (::mkdir(directory_.c_str(), 0755) != 0 || !set_limit(limit_bytes))
    throw std::runtime_error(directory_ + ": " + std::strerror(errno));
}

MemoryCgroup::~MemoryCgroup() {
  (void)leave();
  for (int tries = 0; ::rmdir(directory_.c_str()) != 0 && tries < 500; ++tries) {
    const std::string text = read_file(directory_ + "/cgroup.procs");
    for (std::string_view lines = text; !lines.empty();)
      if (const auto pid = number_in<pid_t>(take_part(lines, '\n'))) (void)::kill(*pid, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

bool MemoryCgroup::set_limit(uint64_t bytes) {
  return write_once(directory_ + (unified_ ? "/memory.max" : "/memory.limit_in_bytes"),
                    std::to_string(bytes)) == 0;
}

uint64_t MemoryCgroup::used_bytes() const {
  return std::strtoull(
      read_file(directory_ + (unified_ ? "/memory.current" : "/memory.usage_in_bytes")).c_str(), nullptr, 10);
}

bool MemoryCgroup::add(pid_t pid) {
  return write_once(directory_ + "/cgroup.procs", std::to_string(pid)) == 0;
}

bool MemoryCgroup::leave() const {
  return write_once(home_ + "/cgroup.procs", "0") == 0;
}

MemoryTaker::MemoryTaker(MemoryCgroup& cgroup, uint64_t bytes) {
  std::array<int, 2> ready{};
  if (::pipe(ready.data()) != 0) throw std::runtime_error("pipe");
  pid_ = ::fork();
  if (pid_ == 0) {
    ::close(ready[0]);
    const bool first = write_once("/proc/self/oom_score_adj", "1000") == 0;
    if (!first || !cgroup.add(0)) ::_exit(1);
    char* const memory = static_cast<char*>(
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (memory == MAP_FAILED) ::_exit(1);
    std::memset(memory, 1, bytes);
    if (::write(ready[1], "1", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  ::close(ready[1]);
  ready_fd_ = ready[0];
}

bool MemoryTaker::has_all() {
  char byte = 0;
  return ::read(ready_fd_, &byte, 1) == 1;
}

void MemoryTaker::end() {
  if (pid_ <= 0) return;
  (void)::kill(pid_, SIGKILL);
  (void)::waitpid(pid_, nullptr, 0);
  ::close(ready_fd_);
  pid_ = -1;
}

}  // namespace kvcachefs::test
