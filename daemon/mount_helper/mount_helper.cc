#include "daemon/mount_helper/mount_helper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <thread>

#include "base/host_memory.h"
#include "base/mount_seal.h"
#include "base/sys.h"
#include "base/sys_disk.h"
#include "daemon/mount_helper/scope.h"
#include "daemon/running_daemon.h"
#include "daemon/runtime_dir.h"
#include "tier/blocks.h"
#include "tier/pool_options.h"

namespace kvcachefs {
namespace {

// A connection that was aborted is followed by another in less than half a second, on a busy machine later.
constexpr auto kReconnectPatience = std::chrono::seconds(10);
constexpr auto kLookPause = std::chrono::milliseconds(50);
constexpr int kOomScoreAdj = -900;  // as packaging/systemd/kvcachefs.service has it

enum ExitCode { kMounted = 0, kWrongUsage = 1, kSystem = 2, kMountFailed = 32 };

void say(std::string_view message) {
  fmt::print(stderr, "mount.kvcachefs: {}\n", message);
}

// The lock is held until the process ends. The next helper then finds the daemon, the pool and the mount as
// this one leaves them.
Result<UniqueFd> take_lock(const MountArguments& arguments) {
  Result<void> made = sys::make_directories(arguments.runtime_dir.native(), 0755);
  if (!made) return pass(made);
  const std::filesystem::path path = arguments.runtime_dir / "mount.lock";
  Result<UniqueFd> file = sys::open_at(AT_FDCWD, path.c_str(), O_RDWR | O_CREAT, 0600);
  if (!file)
    return fail(file.error().code, fmt::format("{}: {}", path.native(), sys::error_text(file.error().code)));
  while (::flock(file->get(), LOCK_EX) != 0) {
    Error error = sys::last_error("lock " + path.native());
    if (error.code != EINTR) return std::unexpected(std::move(error));
  }
  return file;
}

// The daemon writes to this log, not to the helper's output: a program that waits for the end of the helper's
// output must not wait for the daemon.
struct DaemonLog {
  std::filesystem::path path;
  uint64_t start_bytes = 0;  // where the lines of this start begin

  explicit DaemonLog(const MountArguments& arguments) : path(arguments.runtime_dir / "mount.log") {
    if (const auto there = sys::stat_at(AT_FDCWD, path.c_str())) start_bytes = size_of(*there);
  }
  void show() const {
    const std::string text = sys::read_text(path.c_str()).value_or("");
    if (text.size() > start_bytes) fmt::print(stderr, "{}", text.substr(start_bytes));
  }
};

// The daemon that was installed beside this helper is started, else the one that the search path has.
std::string daemon_program(const std::string& name) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path sibling = self.parent_path() / name;
  return !error && std::filesystem::exists(sibling, error) ? sibling.native() : name;
}

Result<pid_t> start_process(const std::vector<std::string>& command, const DaemonLog& log) {
  std::vector<char*> argv;
  for (const std::string& argument : command) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.path.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                     0600);
  ::posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  pid_t pid = 0;
  const int code = ::posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (code != 0)
    return fail(code, fmt::format("{} cannot be started: {}", command.front(), sys::error_text(code)));
  return pid;
}

// Returns true if the command exited with 0.
Result<bool> run(const std::vector<std::string>& command, const DaemonLog& log) {
  Result<pid_t> pid = start_process(command, log);
  if (!pid) return pass(pid);
  int status = 0;
  while (::waitpid(*pid, &status, 0) < 0) {
    Error error = sys::last_error("waiting for " + command.front());
    if (error.code != EINTR) return std::unexpected(std::move(error));
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// The mount point may be one that an earlier daemon left dead: the new daemon clears it.
Result<void> start_daemon(const MountArguments& arguments) {
  const std::string& base = arguments.base.native();
  if (Result<void> made = sys::make_directories(base, 0755); !made) return made;
  std::vector<std::string> command = daemon_command(arguments);
  command.front() = daemon_program(command.front());
  if (has_scopes()) {
    const std::vector<std::string> words = scope_words(arguments);
    command.insert(command.begin(), words.begin(), words.end());
  }
  // The daemon has this from the helper, and changes it if it has an option for that.
  if (auto set = set_oom_score_adj(kOomScoreAdj); !set) say("warning: " + set.error().message);
  if (arguments.verbose) say(fmt::format("starting {}", fmt::join(command, " ")));
  const DaemonLog log(arguments);
  Result<bool> started = run(command, log);
  if (!started) return pass(started);
  if (!*started) {
    log.show();
    return fail(EIO, fmt::format("kvcachefsd did not start on {}", base));
  }
  return {};
}

// A daemon whose connection was aborted (umount -f) mounts another there.
Result<bool> is_served(const MountArguments& arguments, const MountTree& tree) {
  const std::string& base = arguments.base.native();
  for (auto waited = kLookPause * 0; waited < kReconnectPatience; waited += kLookPause) {
    Result<std::vector<MountPoint>> mounts = read_mounts();
    if (!mounts) return pass(mounts);
    const MountPoint* mounted = find_mount(*mounts, base);
    if (mounted == nullptr || mounted->type != kFileSystemType) return false;
    if (tree.check()) return true;
    if (!find_daemon(RuntimeDir::directory_of(arguments.runtime_dir.native(), base))) return false;
    std::this_thread::sleep_for(kLookPause);
  }
  return false;
}

// Starts a unit that has systemd end the daemon before it unmounts the disks of this pool. For the pool that
// the daemon was started for, the daemon's scope does that. Returns the unit's name, which is empty if the
// pool needs no unit or the unit cannot be started. Fails if the disks cannot be mounted.
Result<std::string> bind_disks(const MountArguments& arguments) {
  const auto daemon =
      find_daemon(RuntimeDir::directory_of(arguments.runtime_dir.native(), arguments.base.native()));
  const std::string daemon_unit = has_scopes() && daemon ? unit_of(daemon->pid) : "";
  const std::string disk_unit = fmt::format("kvcachefs-disks-{}.service", ::getpid());
  const std::vector<std::string> command = disk_unit_command(arguments, daemon_unit, disk_unit);
  if (daemon_unit.empty() || command.empty()) return "";
  if (arguments.verbose) say(fmt::format("starting {}", fmt::join(command, " ")));
  const DaemonLog log(arguments);
  if (!run(command, log).value_or(false)) {
    log.show();
    say(fmt::format(
        "warning: pool {}: systemd may unmount the pool's disk while {} uses it: {} cannot be started",
        arguments.pool, daemon_unit, disk_unit));
    return "";
  }
  if (run({"systemctl", "--quiet", "--no-ask-password", "start", disk_unit}, log).value_or(false))
    return disk_unit;
  log.show();
  return fail(EIO, fmt::format("pool {}: the file system of its disk cannot be mounted", arguments.pool));
}

// A pool that is written to `configure` counts as configured, not as created while the daemon serves. An
// older daemon has no such file.
Result<void> configure_pool(const MountTree& tree, const MountArguments& arguments) {
  if (arguments.verbose) say(fmt::format("creating pool {}", arguments.pool));
  auto configured = tree.write_daemon_file("configure", pool_spec(arguments));
  if (configured || configured.error().code != ENOENT) return configured;
  return tree.create_pool(arguments.pool, arguments.settings);
}

Result<void> add_pool(const MountTree& tree, const MountArguments& arguments) {
  Result<std::string> disk_unit = bind_disks(arguments);
  if (!disk_unit) return pass(disk_unit);
  Result<void> configured = configure_pool(tree, arguments);
  // The daemon goes on without the pool, so the end of this unit must not stop it.
  if (!configured && !disk_unit->empty())
    (void)run({"systemctl", "--quiet", "--job-mode=ignore-dependencies", "stop", *disk_unit},
              DaemonLog(arguments));
  return configured;
}

Result<void> provide_pool(const MountArguments& arguments, uint64_t memory_bytes) {
  const MountTree tree(arguments.base);
  Result<bool> serves = is_served(arguments, tree);
  if (!serves) return pass(serves);
  if (!*serves) {
    if (Result<void> started = start_daemon(arguments); !started) return started;
    if (Result<void> good = tree.check(); !good) return good;
    if (tree.has_pool(arguments.pool)) return {};
  }
  if (!tree.has_pool(arguments.pool)) return add_pool(tree, arguments);
  for (const std::string& difference : differing_settings(tree, arguments, memory_bytes)) {
    say(fmt::format("warning: pool {} is left as it is: {}", arguments.pool, difference));
  }
  return {};
}

// A mount has its own flags from when it exists on; they replace those that it has from the base.
Result<void> set_flags(const MountArguments& arguments) {
  unsigned long flags = MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV;
  if (arguments.read_only) flags |= MS_RDONLY;
  if (arguments.no_exec) flags |= MS_NOEXEC;
  if (arguments.no_symbolic_links) flags |= MS_NOSYMFOLLOW;
  return sys::mount("none", arguments.directory.c_str(), "", flags, nullptr);
}

// A server that finds no mount there would write to the file system below.
void seal(const MountArguments& arguments) {
  if (!arguments.seals) return;
  const std::string& directory = arguments.directory.native();
  const auto sealed = seal_mount_point(directory);
  if (!sealed)
    say("warning: " + sealed.error().message);
  else if (!*sealed)
    say(
        fmt::format("warning: {} is not empty: it takes writes while it is not mounted, and the mount hides "
                    "them",
                    directory));
}

Result<void> bind_pool(const MountArguments& arguments) {
  Result<std::vector<MountPoint>> mounts = read_mounts();
  if (!mounts) return pass(mounts);
  const std::string& directory = arguments.directory.native();
  if (is_bound(*mounts, arguments)) {
    if (arguments.verbose) say(fmt::format("{} is pool {} already", directory, arguments.pool));
    return {};
  }
  const MountPoint* there = find_mount(*mounts, directory);
  // A mount that an earlier daemon has left here may be dead.
  if (there != nullptr && there->type == kFileSystemType && is_dead_mount(directory))
    if (Result<void> gone = sys::unmount(directory.c_str(), MNT_DETACH); !gone) return gone;
  seal(arguments);
  const std::filesystem::path source = arguments.base / arguments.pool;
  if (arguments.verbose) say(fmt::format("binding {} at {}", source.native(), directory));
  Result<void> bound = sys::mount(source.c_str(), directory.c_str(), "", MS_BIND, nullptr);
  if (!bound || (!arguments.read_only && !arguments.no_exec && !arguments.no_symbolic_links)) return bound;
  Result<void> changed = set_flags(arguments);
  if (!changed) (void)sys::unmount(directory.c_str(), MNT_DETACH);
  return changed;
}

// Without this helper mount(8) would make the whole file system read-only, and so all pools of the daemon.
Result<void> remount(MountArguments arguments, uint64_t memory_bytes) {
  Result<std::vector<MountPoint>> mounts = read_mounts();
  if (!mounts) return pass(mounts);
  const std::string& directory = arguments.directory.native();
  const MountPoint* const mount = find_mount(*mounts, directory);
  if (mount == nullptr || mount->type != kFileSystemType)
    return fail(EINVAL, directory + ": no pool is mounted there");
  if (mount->root == "/" && arguments.read_only)
    return fail(EINVAL, directory +
                            ": is the mount of all pools, which all would be read-only: `mount -o "
                            "remount,ro DIR` takes the directory of a pool");
  if (!arguments.read_only && is_read_only_everywhere(*mount))
    if (auto made = sys::mount("none", directory.c_str(), "", MS_REMOUNT | MS_NOSUID | MS_NODEV, nullptr);
        !made)
      return made;
  arguments.pool = mount->root.substr(1);
  const auto base = std::ranges::find_if(
      *mounts, [&](const MountPoint& each) { return each.device == mount->device && each.root == "/"; });
  if (base != mounts->end() && !arguments.pool.empty() && !arguments.settings.empty())
    for (const std::string& difference :
         differing_settings(MountTree(base->directory), arguments, memory_bytes))
      say(fmt::format("warning: pool {} is left as it is: {}", arguments.pool, difference));
  return set_flags(arguments);
}

}  // namespace

std::string pool_spec(const MountArguments& arguments) {
  std::string spec = arguments.pool;
  for (const auto& [key, value] : arguments.settings) {
    spec += fmt::format("{}{}={}", &key == &arguments.settings.front().first ? ":" : ",", key, value);
  }
  return spec;
}

std::vector<std::string> daemon_command(const MountArguments& arguments) {
  std::vector<std::string> command{"kvcachefsd", "--daemonize"};
  if (!arguments.config_file.empty()) command.insert(command.end(), {"--config", arguments.config_file});
  command.insert(command.end(), {"--pool", pool_spec(arguments)});
  std::string options = "runtime_dir=" + arguments.runtime_dir.native();
  for (const std::string& option : arguments.daemon_options) options += "," + option;
  command.insert(command.end(), {"-o", options, arguments.base.native()});
  return command;
}

std::vector<std::string> differing_settings(const MountTree& tree, const MountArguments& arguments,
                                            uint64_t memory_bytes) {
  std::vector<std::string> differences;
  struct stat attributes {};
  if (const auto read = sys::stat_at(AT_FDCWD, tree.pool_path(arguments.pool).c_str())) attributes = *read;
  for (const auto& [key, value] : arguments.settings) {
    PoolOptions wanted;
    PoolOptions present;
    if (!set_pool_option(wanted, key, value, memory_bytes)) continue;
    present.mode = attributes.st_mode & 07777;
    present.uid = attributes.st_uid;
    present.gid = attributes.st_gid;
    if (find_pool_setting(key)->is_live()) {
      Result<std::string> text = tree.read_setting(arguments.pool, key);
      if (!text || !set_pool_option(present, key, *text, memory_bytes)) continue;
    }
    const std::string is = pool_option_text(present, key);
    const std::string asked = pool_option_text(wanted, key);
    if (is != asked) differences.push_back(fmt::format("{} is {}, not {}", key, is, asked));
  }
  return differences;
}

bool is_bound(const std::vector<MountPoint>& mounts, const MountArguments& arguments) {
  const MountPoint* base = find_mount(mounts, arguments.base.native());
  const MountPoint* there = find_mount(mounts, arguments.directory.native());
  return base != nullptr && there != nullptr && base->type == kFileSystemType &&
         there->device == base->device && there->root == "/" + arguments.pool;
}

int run_mount_helper(int argc, const char* const* argv) {
  const uint64_t memory_bytes = usable_memory_bytes();
  Result<MountArguments> arguments = parse_mount_arguments(argc, argv, memory_bytes);
  const auto failed = [](const Error& error, int exit_code) {
    say(error.message);
    return exit_code;
  };
  if (!arguments)
    return failed(arguments.error(), arguments.error().code == EINVAL ? kWrongUsage : kMountFailed);
  if (arguments->fake) return kMounted;
  if (arguments->remount) {
    const Result<void> done = remount(std::move(*arguments), memory_bytes);
    return done ? static_cast<int>(kMounted) : failed(done.error(), kMountFailed);
  }
  Result<UniqueFd> lock = take_lock(*arguments);
  if (!lock) return failed(lock.error(), kSystem);
  Result<void> done = provide_pool(*arguments, memory_bytes);
  if (done) done = bind_pool(*arguments);
  return done ? static_cast<int>(kMounted) : failed(done.error(), kMountFailed);
}

}  // namespace kvcachefs
