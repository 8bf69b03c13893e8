#include "daemon/succession.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/fault_point.h"
#include "base/sys.h"
#include "daemon/child.h"
#include "daemon/pool_list.h"
#include "tier/catalog/catalog_records.h"
#include "tier/disk/spill_superblock.h"
#include "tier/pool/open_disk_tier.h"

namespace kvcachefs {
namespace {

constexpr const char* kVariable = "KVCACHEFS_INHERITANCE";
constexpr const char* kShownVariable = "KVCACHEFS_SHOWN_MEMORY";  // the number of a descriptor
constexpr const char* kMemoryName = "kvcachefs-memory";
constexpr const char* kLockName = "kvcachefs-lock";
constexpr const char* kDeviceName = "kvcachefs-device";
constexpr uint64_t kPatienceNs = 5'000'000'000;
constexpr int kNotExecuted = 127;
constexpr uint64_t kLookEveryNs = 10'000'000;
constexpr int kReapTries = 100;
constexpr auto kReapPause = std::chrono::milliseconds(10);

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

// The result is the first line that the child says before it ends or the patience does. The child's first
// byte tells that it has its own copy of the pipe's end; then `answering`, the asker's end, is closed.
Result<std::string> read_answer(int fd, UniqueFd answering, const Interrupted& interrupted) {
  std::string said;
  const uint64_t deadline_ns = now_ns() + kPatienceNs;
  for (uint64_t now = now_ns(); now < deadline_ns; now = now_ns()) {
    if (interrupted()) return fail(EINTR);
    pollfd event{fd, POLLIN, 0};
    char piece[256];
    const uint64_t wait_ns = std::min(deadline_ns - now, kLookEveryNs);
    if (poll(&event, 1, static_cast<int>(wait_ns / 1'000'000) + 1) <= 0) continue;
    const ssize_t size = read(fd, piece, answering ? 1 : sizeof piece);
    if (size <= 0) return said.substr(0, said.find('\n'));
    if (answering)
      answering.reset();
    else if (said.size() < sizeof piece)
      said.append(piece, static_cast<size_t>(size));
  }
  return "it does not answer";
}

// A new process that shares the table of descriptors calls this: from here on it has only the standard ones.
// Its standard error is `answering` of the process `asker`, and a first byte tells that. The new process
// never has a copy of the serving process's descriptors. In a plain fork, an entry that is being evicted at
// that moment would keep the evictor's lease and could not be opened (fcntl(2), EWOULDBLOCK).
void keep_only_answer(pid_t asker, int answering, int shown) {
  if (close_range(STDERR_FILENO + 1, UINT_MAX, CLOSE_RANGE_UNSHARE) != 0) {
    // Before Linux 5.9, and where a filter forbids it, the table is copied.
    if (unshare(CLONE_FILES) != 0) _exit(kNotExecuted);
    closefrom(STDERR_FILENO + 1);
  }
  const auto open_of_asker = [asker](int fd, int flags) {
    return ::open(fmt::format("/proc/{}/fd/{}", asker, fd).c_str(), flags);
  };
  if (shown >= 0) (void)setenv(kShownVariable, std::to_string(open_of_asker(shown, O_RDONLY)).c_str(), 1);
  const int answer = open_of_asker(answering, O_WRONLY | O_CLOEXEC);
  if (answer < 0 || dup2(answer, STDERR_FILENO) < 0 || write(STDERR_FILENO, "", 1) != 1) _exit(kNotExecuted);
  if (answer != STDERR_FILENO) (void)::close(answer);
}

// A child process does `in_child` and answers with its exit status; the message of a failure is what it says
// to standard error. It can read the file `shown`, if that is one.
Result<void> ask(const std::function<void()>& in_child, int shown, const Interrupted& interrupted) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return std::unexpected(sys::last_error("pipe2"));
  const UniqueFd answer(ends[0]);
  UniqueFd answering(ends[1]);
  const pid_t asker = getpid();
  const pid_t child = fork_sharing_descriptors();
  if (child < 0) return std::unexpected(sys::last_error("fork"));
  if (child == 0) {
    keep_only_answer(asker, answering.get(), shown);
    fault_point("asked whether it could succeed");
    in_child();
    _exit(kNotExecuted);
  }
  const auto said = read_answer(answer.get(), std::move(answering), interrupted);
  (void)::kill(child, SIGKILL);
  int status = 0;
  // A child that waits for a disk cannot be killed; the supervisor's loop reaps it later.
  pid_t reaped = 0;
  for (int tries = 0; tries < kReapTries && reaped == 0; ++tries) {
    reaped = waitpid(child, &status, WNOHANG);
    if (reaped == 0) std::this_thread::sleep_for(kReapPause);
  }
  if (!said) return fail(said.error().code);
  if (reaped == child && WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  return fail(ENOEXEC, said->empty() ? fmt::format("it ends with status {}", status) : *said);
}

}  // namespace

std::optional<Inheritance> inheritance(ServiceManager& manager) {
  Inheritance found;
  auto kept = manager.take_kept();
  if (const char* const text = std::getenv(kVariable)) {
    int memory_fd = -1, lock_fd = -1, stand_in_fd = -1;  // older programs have no stand-in
    if (std::sscanf(text, "%d %d %d", &memory_fd, &lock_fd, &stand_in_fd) < 2) return std::nullopt;
    (void)unsetenv(kVariable);
    found = {.memory = UniqueFd(memory_fd),
             .lock = UniqueFd(lock_fd),
             .device = {},
             .stand_in = StandIn(UniqueFd(stand_in_fd))};
    for (const int fd : {memory_fd, lock_fd, stand_in_fd}) (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    return found;
  }
  // All three are taken, or none: the process may have died while it handed them over.
  if (!kept[kMemoryName] || !kept[kLockName] || !kept[kDeviceName]) return std::nullopt;
  return Inheritance{.memory = std::move(kept[kMemoryName]),
                     .lock = std::move(kept[kLockName]),
                     .device = std::move(kept[kDeviceName])};
}

void keep_inheritance(ServiceManager& manager, const Survivors& survivors, int lock_fd) {
  if (survivors.copied()) manager.drop(kMemoryName);  // of the program before this one
  manager.keep(kMemoryName, survivors.memory_fd());
  manager.keep(kLockName, lock_fd);
  if (const auto device = survivors.connection().device_fd()) manager.keep(kDeviceName, *device);
}

void keep_other_connection(ServiceManager& manager, const Survivors& survivors) {
  manager.drop(kDeviceName);
  if (const auto device = survivors.connection().device_fd()) manager.keep(kDeviceName, *device);
}

void drop_inheritance(ServiceManager& manager) {
  for (const char* name : {kMemoryName, kLockName, kDeviceName}) manager.drop(name);
}

Succession::Succession(int argc, char** argv) : arguments_(argv, argv + argc) {
  std::error_code error;
  program_ = std::filesystem::read_symlink("/proc/self/exe", error);
  directory_ = std::filesystem::current_path(error);
}

std::string own_formats() {
  return fmt::format("{}.{}.{}", Survivors::format(), kSuperblockVersion, records::kFormat);
}

std::string objection_to(std::string_view formats) {
  unsigned memory = 0, superblock = 0, catalog = 0;
  const std::string text(formats);
  if (std::sscanf(text.c_str(), "%u.%u.%u", &memory, &superblock, &catalog) != 3)
    return fmt::format("{} are no formats that this program knows of", text);
  const bool knows_memory = memory >= Survivors::oldest_format() && memory <= Survivors::format();
  if (knows_memory && superblock <= kSuperblockVersion && catalog <= records::kFormat) return {};
  return fmt::format("formats {} (memory, disk, catalog) of what is there, this program's are {}", text,
                     own_formats());
}

Result<void> could_adopt(std::string_view formats, uint64_t memory_bytes) {
  if (std::string objection = objection_to(formats); !objection.empty())
    return fail(EPROTONOSUPPORT, std::move(objection));
  const char* const shown = std::getenv(kShownVariable);
  if (shown == nullptr) return {};
  auto survivors = Survivors::look_at(UniqueFd(std::atoi(shown)));
  if (!survivors) return pass(survivors);
  auto listed = parse_pool_list((*survivors)->pools(), memory_bytes);
  return listed ? Result<void>() : pass(listed);
}

Error Succession::become(std::vector<std::string> words) const {
  std::error_code unknown;
  const auto present = std::filesystem::current_path(unknown);
  (void)!chdir(directory_.c_str());
  execv(program_.c_str(), pointers_to(words).data());
  auto error = sys::last_error(program_);
  (void)!chdir(present.c_str());
  return error;
}

Result<void> Succession::check(int memory_fd, const Interrupted& interrupted) const {
  std::vector<std::string> words = arguments_;
  words.insert(words.begin() + 1, "--can-succeed=" + own_formats());
  auto answered = ask([&] { (void)become(std::move(words)); }, memory_fd, interrupted);
  if (answered || answered.error().code == EINTR) return answered;
  return fail(ENOEXEC, fmt::format("{} cannot go on with what is served here: {}", program_,
                                   answered.error().message));
}

Result<void> check_disks(const std::string& pools, uint64_t memory_bytes,
                         const std::vector<std::string>& away, const Interrupted& interrupted) {
  auto listed = parse_pool_list(pools, memory_bytes);
  if (!listed) return pass(listed);
  const auto look_at_all = [&] {
    for (const ListedPool& pool : listed->pools) {
      if (pool.options.spill_path.empty() || std::ranges::find(away, pool.options.name) != away.end())
        continue;
      auto looked = look_at_disk_tier(pool.options);
      if (looked) continue;
      std::fprintf(stderr, "%s\n", looked.error().message.c_str());
      _exit(1);
    }
    _exit(0);
  };
  auto answered = ask(look_at_all, -1, interrupted);
  if (answered || answered.error().code == EINTR) return answered;
  return fail(EIO, fmt::format("the next process would be without a disk: {}", answered.error().message));
}

Result<void> Succession::execute(int memory_fd, int lock_fd, int stand_in_fd,
                                 const std::vector<int>& descriptors) const {
  for (const int fd : descriptors) (void)fcntl(fd, F_SETFD, 0);
  (void)fcntl(stand_in_fd, F_SETFD, 0);
  (void)setenv(kVariable, fmt::format("{} {} {}", memory_fd, lock_fd, stand_in_fd).c_str(), 1);
  auto error = become(arguments_);
  (void)unsetenv(kVariable);
  for (const int fd : descriptors) (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
  return std::unexpected(std::move(error));
}

}  // namespace kvcachefs
