#include "tests/support/mount.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <sstream>
#include <thread>

#include "tests/support/files.h"
#include "tests/support/program.h"
#include "tests/support/sanitizer_reports.h"

namespace kvcachefs::test {
namespace {

// Because a daemon under a sanitizer on a busy machine needs seconds, the deadlines are long; because a
// daemon that hangs should not cost minutes, they are not longer.
constexpr std::chrono::seconds kStartDeadline(60);
constexpr std::chrono::seconds kStopDeadline(60);
constexpr std::chrono::seconds kKillDeadline(5);
constexpr useconds_t kSqueezePauseUs = 2000;  // so that the tests get a processor, too
constexpr std::string_view kWorkPrefix = "/tmp/kv-test-";

const bool watching = (watch_for_sanitizer_reports(), true);

void unmount_below(const std::string& prefix) {
  std::vector<MountPoint> mounts = mounts_below(prefix);
  // The last mount goes first, so that a mount goes before the one that it covers.
  std::ranges::reverse(mounts);
  for (const MountPoint& mount : mounts) ::umount2(mount.directory.c_str(), MNT_FORCE | MNT_DETACH);
}

// clean_up_after_the_dead() removes the mounts that a killed test program left behind: its daemons die with
// it, their mounts do not.
void clean_up_after_the_dead() {
  for (const MountPoint& mount : mounts_below("/tmp")) {
    if (!mount.directory.starts_with(kWorkPrefix)) continue;
    const pid_t owner = std::atoi(mount.directory.c_str() + kWorkPrefix.size());
    if (owner <= 0 || exists("/proc/" + std::to_string(owner))) continue;
    ::umount2(mount.directory.c_str(), MNT_FORCE | MNT_DETACH);
  }
}

std::string make_work_dir() {
  static const bool cleaned = (clean_up_after_the_dead(), true);
  (void)cleaned;
  std::string name = std::string(kWorkPrefix) + std::to_string(::getpid()) + "-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) throw MountError("mkdtemp " + name + " failed");
  ::chmod(name.c_str(), 0755);
  return name;
}

std::string tmpfs_options_of(const std::string& pool_spec) {
  std::string size = "64M";
  const size_t at = pool_spec.find("size=");
  if (at != std::string::npos) size = pool_spec.substr(at + 5, pool_spec.find(',', at) - at - 5);
  return "huge=within_size,inode64,mode=1777,size=" + size;
}

void mount_tmpfs(const std::string& at, const std::string& options) {
  if (::mount("tmpfs", at.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, options.c_str()) != 0) {
    throw MountError("mount of a tmpfs at " + at + " with " + options + ": " + error_name(error_of(-1)));
  }
}

int exit_code(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

Mount::Mount(MountOptions options) : options_(std::move(options)), work_dir_(make_work_dir()) {
  root_ = options_.mount_point.empty() ? work_dir_ + "/mnt" : options_.mount_point;
  runtime_dir_ = options_.runtime_dir.empty() ? work_dir_ + "/run" : options_.runtime_dir;
  log_file_ = work_dir_ + "/log";
  // mkdir(2) may fail: a killed daemon's stale mount point exists, though it answers ENOTCONN.
  ::mkdir(root_.c_str(), 0755);
  try {
    if (mode() == Mode::kTmpfs) {
      start_tmpfs();
    } else {
      start_daemon();
      wait_until_serving();
      start_squeezing();
      start_killing();
    }
  } catch (const std::exception& error) {
    const std::string text = std::string(error.what()) + "\n" + log();
    clean_up();
    throw MountError(text);
  }
}

Mount::~Mount() {
  if (running_) stop();
  clean_up();
}

void Mount::start_tmpfs() {
  for (const std::string& pool : options_.pools) {
    const std::string directory = path(pool.substr(0, pool.find(':')));
    make_directory(directory);
    mount_tmpfs(directory, tmpfs_options_of(pool));
  }
}

void Mount::start_daemon() {
  std::vector<std::string> words = {program_path("kvcachefsd")};
  for (const std::string& pool : options_.pools) words.insert(words.end(), {"--pool", with_disk_tier(pool)});
  words.insert(words.end(), {"-o", "runtime_dir=" + runtime_dir_ + ",state_dir=" + runtime_dir_ + ".state"});
  if (mode() == Mode::kDaemonIo) words.insert(words.end(), {"-o", "no_passthrough"});
  if (mode() == Mode::kIoUring) words.insert(words.end(), {"-o", "io_uring"});
  for (const std::string& option : options_.options) words.insert(words.end(), {"-o", option});
  words.insert(words.end(), options_.arguments.begin(), options_.arguments.end());
  std::istringstream more(environment("KVCACHEFS_DAEMON_ARGS"));
  for (std::string word; more >> word;) words.push_back(word);
  words.push_back(root_);

  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const File log(log_file_, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC);
  pid_ = ::fork();
  if (pid_ < 0) throw MountError("fork failed");
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(log.fd(), STDOUT_FILENO);
    ::dup2(log.fd(), STDERR_FILENO);
    ::execv(arguments[0], arguments.data());
    ::dprintf(STDERR_FILENO, "cannot run %s\n", arguments[0]);
    ::_exit(127);
  }
  running_ = true;
}

std::string Mount::with_disk_tier(const std::string& pool) {
  if (!every_pool_spills() || pool.find("spill=") != std::string::npos) return pool;
  if (!disk_) disk_ = std::make_unique<DiskDirectory>();
  return pool + ",spill=" + (*disk_ / pool.substr(0, pool.find(':'))) + ",spill_size=2G";
}

// The squeezer orders all entries that are not in use out of the memory of each pool, over and over. It is a
// process, because a thread would disturb the tests that fork.
void Mount::start_squeezing() {
  if (!disk_ || squeezer_ > 0) return;
  std::vector<std::string> orders;
  for (const std::string& pool : options_.pools)
    orders.push_back(control("evict", pool.substr(0, pool.find(':'))));
  squeezer_ = ::fork();
  if (squeezer_ != 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  static volatile std::sig_atomic_t ends = 0;
  struct sigaction action {};
  action.sa_handler = [](int) { ends = 1; };
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGTERM, &action, nullptr);
  while (ends == 0) {
    for (const std::string& order : orders)
      if (write_once(order, "100%") == ENOTCONN) ::_exit(0);
    ::usleep(kSqueezePauseUs);
  }
  ::_exit(0);
}

pid_t Mount::serving_pid() const {
  const std::string pid = std::to_string(pid_);
  return std::atoi(read_file("/proc/" + pid + "/task/" + pid + "/children").c_str());
}

// The killer is a process for the same reason as the squeezer. Three of four servers are killed only after
// they have begun to serve.
void Mount::start_killing() {
  if (!servers_are_killed() || killer_ > 0) return;
  killer_ = ::fork();
  if (killer_ != 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::minstd_rand random(static_cast<unsigned>(::getpid()));
  for (;;) kill_server(random() % 4 != 0, std::chrono::milliseconds(random() % 150));
}

void Mount::kill_server(bool once_it_serves, std::chrono::milliseconds after) {
  const auto servers = [this] {
    size_t count = 0;
    const std::string text = log();
    for (size_t at = 0; (at = text.find(" serves ", at)) != std::string::npos; ++at) ++count;
    return count;
  };
  const auto begun = std::chrono::steady_clock::now();
  if (once_it_serves) eventually([&] { return servers() > killed_servers_; }, kStartDeadline);
  // Each server serves as long as its takeover took: on a slow machine clients would hardly get on.
  std::this_thread::sleep_for(after + (std::chrono::steady_clock::now() - begun));
  const pid_t serving = serving_pid();
  killed_servers_ = servers();
  if (serving > 0) ::kill(serving, SIGKILL);
}

void Mount::stop_killing() {
  if (killer_ <= 0) return;
  ::kill(killer_, SIGKILL);
  ::waitpid(killer_, nullptr, 0);
  killer_ = -1;
}

void Mount::stop_squeezing() {
  if (squeezer_ <= 0) return;
  ::kill(squeezer_, SIGTERM);
  ::waitpid(squeezer_, nullptr, 0);
  squeezer_ = -1;
}

void Mount::wait_until_serving() {
  bool serves = false;
  int code = -1;
  eventually(
      [&] {
        code = wait_for_exit(std::chrono::milliseconds(0));
        if (code != -1) return true;
        const std::vector<MountPoint> mounts = read_mounts().value();
        const MountPoint* const mounted = find_mount(mounts, root_);
        // The daemon answers before its log and its statistics say in which mode it serves.
        serves = mounted != nullptr && mounted->type == kFileSystemType &&
                 exists(root_ + "/.kvcachefs/version") && log().find(" serves ") != std::string::npos;
        return serves;
      },
      kStartDeadline);
  if (code != -1) throw MountError("kvcachefsd ended with " + std::to_string(code) + " instead of serving");
  if (!serves) throw MountError("kvcachefsd does not serve " + root_);
  if (options_.waits_for_names) wait_for_names();
}

// A start serves before all names are back. On a busy machine even a few may take longer.
void Mount::wait_for_names() const {
  for (const std::string& pool : options_.pools) {
    if (pool.find("spill=") == std::string::npos) continue;
    const std::string name = pool.substr(0, pool.find(':'));
    const auto are_back = [&] {
      std::string text;
      return load(control("stats", name), &text) == 0 && parse_stats(text)["disk_restoring"] == "0";
    };
    if (!eventually(are_back, kStartDeadline)) throw MountError("not all names of " + name + " come back");
  }
}

std::string Mount::log() const {
  return exists(log_file_) ? read_file(log_file_) : "";
}

int Mount::wait_for_exit(std::chrono::milliseconds deadline) {
  if (!running_) return -1;
  int status = 0;
  const pid_t pid = pid_;
  if (!eventually([&] { return ::waitpid(pid, &status, WNOHANG) == pid; }, deadline)) return -1;
  running_ = false;
  return exit_code(status);
}

void Mount::stop() {
  stop_squeezing();
  stop_killing();
  if (!running_) return;
  ::kill(pid_, SIGTERM);
  const int code = wait_for_exit(kStopDeadline);
  if (code == -1) {
    ADD_FAILURE() << "kvcachefsd does not end after SIGTERM\n" << log();
  } else if (code != 0) {
    ADD_FAILURE() << "kvcachefsd ended with " << code << "\n" << log();
  }
  if (code != -1) {
    for (const MountPoint& left : mounts_below(work_dir_)) {
      ADD_FAILURE() << "left mounted: " << left.directory << " (" << left.type << ")\n" << log();
    }
  }
  clean_up();
}

void Mount::kill() {
  stop_squeezing();
  stop_killing();
  if (!running_) return;
  // Because the supervisor's child would go on without it, the stopped supervisor's child is killed first.
  ::kill(pid_, SIGSTOP);
  const pid_t serving = serving_pid();
  if (serving > 0) ::kill(serving, SIGKILL);
  ::kill(pid_, SIGKILL);
  // Because this process is not the child's parent, it can only watch /proc for the child's end.
  const auto gone = [&] {
    std::string status;
    return serving == 0 || load("/proc/" + std::to_string(serving) + "/status", &status) != 0 ||
           (status.find("State:\tZ") != std::string::npos &&
            status.find("Threads:\t1\n") != std::string::npos);
  };
  if (wait_for_exit(kKillDeadline) >= 0 && eventually(gone, kKillDeadline)) return;
  // The child's thread that tells the kernel of a discard waits for a directory, which is held by a client
  // that waits for an answer. Neither wait is interruptible, and only the end of the connection ends it
  // (fs/fuse/dir.c).
  ::umount2(root_.c_str(), MNT_FORCE);
  wait_for_exit(kStopDeadline);
  eventually(gone, kStopDeadline);
}

void Mount::clean_up() {
  kill();
  unmount_below(root_);
  unmount_below(runtime_dir_);
  unmount_below(work_dir_);
  std::error_code ignored;
  // A mount that could not be removed is left alone, because remove_all would empty it.
  if (mounts_below(work_dir_).empty()) std::filesystem::remove_all(work_dir_, ignored);
}

std::map<std::string, std::string> Mount::stats(std::string_view pool) const {
  return parse_stats(read_file(control("stats", pool)));
}

int64_t Mount::stat_value(std::string_view name, std::string_view pool) const {
  const auto all = stats(pool);
  const auto found = all.find(std::string(name));
  if (found == all.end()) throw MountError("no `" + std::string(name) + "` in .pool/stats");
  return std::stoll(found->second);
}

PlainTmpfs::PlainTmpfs(std::string_view tmpfs_options) : path_(make_work_dir()) {
  mount_tmpfs(path_, std::string(tmpfs_options) + ",inode64,mode=1777");
}

PlainTmpfs::~PlainTmpfs() {
  ::umount2(path_.c_str(), MNT_DETACH);
  ::rmdir(path_.c_str());
}

void remove_content(const std::string& directory) {
  std::error_code error;
  std::vector<std::filesystem::path> entries;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error))
    entries.push_back(entry.path());
  for (const auto& entry : entries) std::filesystem::remove_all(entry, error);
}

void report_daemon_log(const Mount& mount) {
  constexpr size_t kTail = 8000;
  const std::string log = mount.log();
  const std::string tail = log.size() > kTail ? "…" + log.substr(log.size() - kTail) : log;
  std::fprintf(stderr, "--- log of kvcachefsd (%s) ---\n%s---\n", mode_name().data(), tail.c_str());
}

std::vector<MountPoint> mounts_below(const std::string& prefix) {
  std::vector<MountPoint> mounts = read_mounts().value();
  std::erase_if(mounts, [&](const MountPoint& mount) {
    return mount.directory != prefix && !mount.directory.starts_with(prefix + "/");
  });
  return mounts;
}

}  // namespace kvcachefs::test
