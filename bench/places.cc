#include "bench/places.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/clock.h"
#include "base/mountinfo.h"
#include "base/unique_fd.h"
#include "bench/timing.h"

namespace kvcachefs::bench {
namespace {

// The deadline is long, because a start that misses its bound belongs in the table and is not an error.
constexpr uint64_t kStartDeadlineNs = 120'000'000'000;
constexpr useconds_t kPauseUs = 2000;
constexpr unsigned long kPlain = MS_NOSUID | MS_NODEV;

std::string program(const std::string& name) {
  const char* const folder = std::getenv("KVCACHEFS_BIN_DIR");
  return (folder == nullptr ? std::string(KVCACHEFS_BIN_DIR) : folder) + "/" + name;
}

constexpr std::string_view kWorkPrefix = "/tmp/kv-bench-";

// The last mount goes first, so that a mount goes before the one that it covers.
template <class IsMeant>
void unmount_all(const IsMeant& is_meant) {
  auto mounts = read_mounts();
  if (!mounts) return;
  std::ranges::reverse(*mounts);
  for (const MountPoint& mount : *mounts)
    if (is_meant(mount.directory)) ::umount2(mount.directory.c_str(), MNT_FORCE | MNT_DETACH);
}

// What a benchmark leaves mounted that was killed together with its daemon: the memory of its pools, too.
void clean_up_after_the_dead() {
  unmount_all([](const std::string& directory) {
    if (!directory.starts_with(kWorkPrefix)) return false;
    const pid_t owner = std::atoi(directory.c_str() + kWorkPrefix.size());
    return owner > 0 && ::kill(owner, 0) != 0 && errno == ESRCH;
  });
}

bool wait_until(const std::function<bool()>& condition) {
  const uint64_t deadline_ns = now_ns() + kStartDeadlineNs;
  while (!condition()) {
    if (now_ns() > deadline_ns) return false;
    ::usleep(kPauseUs);
  }
  return true;
}

std::vector<std::string> kvcachefs_words(const std::string& pool_options, const std::string& runtime_dir,
                                         Transport transport) {
  std::vector<std::string> words = {program("kvcachefsd"), "--pool", "p:" + pool_options, "-o",
                                    "runtime_dir=" + runtime_dir + ",state_dir=none"};
  if (transport == Transport::kIoUring) words.insert(words.end(), {"-o", "io_uring"});
  if (transport == Transport::kDaemonIo) words.insert(words.end(), {"-o", "no_passthrough"});
  return words;
}

}  // namespace

WorkDirectory::WorkDirectory() : path_(std::string(kWorkPrefix) + std::to_string(::getpid()) + "-XXXXXX") {
  clean_up_after_the_dead();
  must(::mkdtemp(path_.data()) == nullptr ? -1 : 0, "mkdtemp", path_);
}

WorkDirectory::~WorkDirectory() {
  unmount_all([this](const std::string& directory) { return directory.starts_with(path_ + "/"); });
  std::error_code ignored;
  // The deepest directories are removed first, and only empty ones: a mount that still exists keeps its
  // files.
  for (const auto& entry : std::filesystem::directory_iterator(path_, ignored)) {
    for (const auto& below : std::filesystem::directory_iterator(entry.path(), ignored)) {
      std::filesystem::remove(below.path(), ignored);
    }
    std::filesystem::remove(entry.path(), ignored);
  }
  std::filesystem::remove(path_, ignored);
}

std::string WorkDirectory::make(const std::string& name) const {
  const std::string path = path_ + "/" + name;
  std::filesystem::create_directory(path);
  return path;
}

Tmpfs::Tmpfs(const WorkDirectory& work, const std::string& name, const std::string& options)
    : mount_point_(work.make(name)), directory_(mount_point_ + "/p") {
  const std::string all = options + ",inode64,mode=1777";
  if (::mount("tmpfs", mount_point_.c_str(), "tmpfs", kPlain, (all + ",noswap").c_str()) != 0) {
    must(::mount("tmpfs", mount_point_.c_str(), "tmpfs", kPlain, all.c_str()), "mount", mount_point_);
  }
  std::filesystem::create_directory(directory_);
}

Tmpfs::~Tmpfs() {
  ::umount2(mount_point_.c_str(), MNT_DETACH);
}

Server::Server(std::vector<std::string> words, const std::string& mount_point,
               const std::string& awaited_file)
    : mount_point_(mount_point) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const std::string log = mount_point + ".log";
  const UniqueFd output(static_cast<int>(
      must(::open(log.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644), "open", log)));
  pid_ = static_cast<pid_t>(must(::fork(), "fork", words[0]));
  if (pid_ == 0) {
    ::dup2(output.get(), STDOUT_FILENO);
    ::dup2(output.get(), STDERR_FILENO);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  bool ended = false;
  const bool serves = wait_until([&] {
    ended = ::waitpid(pid_, nullptr, WNOHANG) == pid_;
    return ended || ::access(awaited_file.c_str(), F_OK) == 0;
  });
  if (ended) pid_ = -1;
  if (ended || !serves) {
    end();
    throw BenchError(words[0] + " does not serve " + mount_point + "\n" + read_text(log));
  }
}

Server::~Server() {
  end();
}

void Server::end() {
  if (pid_ > 0) {
    ::kill(pid_, SIGTERM);
    const bool ended = wait_until([&] { return ::waitpid(pid_, nullptr, WNOHANG) == pid_; });
    if (!ended) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    pid_ = -1;
  }
  ::umount2(mount_point_.c_str(), MNT_DETACH);
}

const char* transport_name(Transport transport) {
  return transport == Transport::kIoUring ? "io_uring" : "/dev/fuse";
}

bool io_uring_offered() {
  return read_text("/sys/module/fuse/parameters/enable_uring").starts_with("Y");
}

Kvcachefs::Kvcachefs(const WorkDirectory& work, const std::string& name, const std::string& pool_options,
                     Transport transport)
    : mount_point_(work.make(name)),
      runtime_dir_(work.make(name + "-run")),
      server_(
          [&] {
            std::vector<std::string> words = kvcachefs_words(pool_options, runtime_dir_, transport);
            words.push_back(mount_point_);
            return words;
          }(),
          mount_point_, mount_point_ + "/.kvcachefs/version") {}

double Kvcachefs::pool_stat(const std::string& name) const {
  std::istringstream lines(read_text(control("stats")));
  for (std::string word, value; lines >> word >> value;) {
    if (word == name) return std::strtod(value.c_str(), nullptr);
  }
  throw BenchError("no `" + name + "` in " + control("stats"));
}

std::map<std::string, std::string> Kvcachefs::mount_stats() const {
  std::map<std::string, std::string> stats;
  std::istringstream lines(read_text(mount_point_ + "/.kvcachefs/stats"));
  for (std::string word, value; lines >> word && std::getline(lines, value);) stats[word] = value.substr(1);
  return stats;
}

uint64_t Kvcachefs::private_bytes() const {
  std::istringstream lines(read_text("/proc/" + mount_stats().at("pid") + "/status"));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("RssAnon:")) return std::strtoull(line.c_str() + 8, nullptr, 10) * 1024;
  }
  return 0;
}

MinimalServer::MinimalServer(const WorkDirectory& work, const std::string& name,
                             const std::string& backing_file, Transport transport, const std::string& threads)
    : mount_point_(work.make(name)),
      server_({program("minimal_server"), mount_point_, backing_file, threads,
               transport == Transport::kIoUring ? "io_uring" : "dev_fuse"},
              mount_point_, mount_point_ + "/big") {}

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace kvcachefs::bench
