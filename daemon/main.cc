// kvcachefsd: the command line, what an earlier process has left, the supervisor, and --daemonize. What
// serves is daemon/serve.
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/fstab.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "base/mountinfo.h"
#include "base/sys.h"
#include "daemon/announcement.h"
#include "daemon/child.h"
#include "daemon/command_line.h"
#include "daemon/handovers.h"
#include "daemon/kept_settings.h"
#include "daemon/log_file.h"
#include "daemon/read_only_watch.h"
#include "daemon/reconnection.h"
#include "daemon/runtime_dir.h"
#include "daemon/second_start.h"
#include "daemon/serve.h"
#include "daemon/service_manager.h"
#include "daemon/stand_in.h"
#include "daemon/succession.h"
#include "daemon/supervisor.h"
#include "daemon/system_check/gather.h"
#include "daemon/system_check/table.h"
#include "fs/mounts.h"

namespace kvcachefs {
namespace {

constexpr int kExitUsage = 2;

Result<int> serve_alone(const Config& config, ServiceManager& manager, Announcement& announcement) {
  auto runtime = RuntimeDir::claim(config.runtime_dir.string(), config.mountpoint.string());
  if (!runtime) return pass(runtime);
  Survivors nothing;
  ReadOnlyWatch read_only(config.mountpoint);
  return serve(config, *runtime, nothing, 0,
               {.announcement = announcement,
                .served = [&] { manager.serving(config.mountpoint.string()); },
                .gets_on =
                    [&] {
                      manager.alive();
                      read_only.look();
                    }});
}

// The state that another program has left, made ready to go on with.
Result<std::unique_ptr<Survivors>> inherit(Inheritance& left) {
  auto survivors = Survivors::open(std::move(left.memory));
  if (!survivors) return survivors;
  if (left.device)
    (*survivors)->moved(left.device.release());
  else
    (*survivors)->children().upgraded();
  return survivors;
}

void unmount(const Connection& connection) {
  const std::string device = device_at(connection.mount_point());
  for (const std::string& target : mount_points_of(device, connection.device_fd().value_or(-1)))
    (void)sys::unmount(target.c_str(), MNT_DETACH);
}

Result<int> serve_supervised(const Config& config, const Succession& succession, ServiceManager& manager,
                             std::unique_ptr<Survivors> survivors, const RuntimeDir& runtime,
                             StandIn& stand_in, Announcement& announcement) {
  if (survivors->copied()) {
    // The program from before could not go on with the copy, nor without what changes there from now on.
    log_info("what the program from before has left is laid out in another way: a copy goes on");
    keep_inheritance(manager, *survivors, runtime.lock_fd());
    stand_in.dismiss();
  }
  Announcement nobody(-1);
  Handovers handovers;
  Reconnection reconnection(*survivors, runtime);
  ReadOnlyWatch read_only(config.mountpoint);
  const auto followed = [&](bool on_purpose) { handovers.ended(runtime.pools_without_disk(), on_purpose); };
  return supervise(*survivors, {.own_descriptors = {runtime.lock_fd()},
                                .hang_after = std::chrono::seconds(config.hang_after_s),
                                .give_up_after = std::chrono::seconds(config.give_up_after_s),
                                .stand_in = stand_in,
                                .serve =
                                    [&](pid_t supervisor) {
                                      const uint32_t generation = survivors->begin_generation();
                                      return serve(config, runtime, *survivors, generation,
                                                   {.announcement = generation > 0 ? nobody : announcement,
                                                    .supervisor = supervisor,
                                                    .handovers = handovers.lately()});
                                    },
                                .served =
                                    [&] {
                                      stand_in.dismiss();
                                      keep_inheritance(manager, *survivors, runtime.lock_fd());
                                      manager.serving(config.mountpoint.string());
                                    },
                                .gets_on =
                                    [&] {
                                      manager.alive();
                                      read_only.look();
                                    },
                                .followed = followed,
                                .needs_connection = [&] { return reconnection.is_needed(); },
                                .connect =
                                    [&] {
                                      auto connected = reconnection.connect();
                                      if (connected && *connected) keep_other_connection(manager, *survivors);
                                      return connected;
                                    },
                                .outlives_connection = [&] { return reconnection.is_outlived(); },
                                .bind_mounts = [&] { reconnection.bind_mounts(); },
                                .stop_binding = [&] { reconnection.stop_binding(); },
                                .give_up =
                                    [&](const std::string& reason) {
                                      stand_in.dismiss();
                                      log_error("{}: unmounting", reason);
                                      unmount(survivors->connection());
                                      runtime.clean_up();
                                    },
                                .can_upgrade = [&](const Interrupted& interrupted) -> Result<void> {
                                  auto able = succession.check(survivors->memory_fd(), interrupted);
                                  if (!able) return able;
                                  return check_disks(survivors->pools(), usable_memory_bytes(),
                                                     runtime.pools_without_disk(), interrupted);
                                },
                                .upgrade =
                                    [&](const std::vector<int>& descriptors, int stand_in_fd) {
                                      return succession.execute(survivors->memory_fd(), runtime.lock_fd(),
                                                                stand_in_fd, descriptors);
                                    }});
}

// Called at a first start only. The disks of a process that takes over serve already.
Result<void> check_disks_of_pools(const Config& config) {
  for (const PoolOptions& pool : config.pools)
    if (auto mounted = check_disks_are_mounted(pool.name, pool.spill_path, pool.catalog_path); !mounted)
      return mounted;
  return {};
}

Result<int> serve_as_configured(const Config& config, const Succession& succession, ServiceManager& manager,
                                std::unique_ptr<Survivors> survivors, UniqueFd lock, StandIn stand_in,
                                Announcement& announcement) {
  if (auto mounted = survivors ? Result<void>() : check_disks_of_pools(config); !mounted)
    return pass(mounted);
  // The requests in the rings of a process that died are lost, so io_uring excludes a supervisor.
  if (!survivors && (config.no_supervisor || config.io_uring))
    return serve_alone(config, manager, announcement);
  auto runtime =
      survivors ? RuntimeDir::keep(config.runtime_dir.string(), config.mountpoint.string(), lock.release())
                : RuntimeDir::claim(config.runtime_dir.string(), config.mountpoint.string());
  if (!runtime) return pass(runtime);
  if (!survivors) {
    auto created = Survivors::create();
    if (!created) return pass(created);
    survivors = std::move(*created);
    if (auto set = survivors->connection().set_mount_point(config.mountpoint.native()); !set)
      return pass(set);
  }
  auto ended =
      serve_supervised(config, succession, manager, std::move(survivors), *runtime, stand_in, announcement);
  manager.ending();
  drop_inheritance(manager);
  return ended;
}

// The parent's part of --daemonize: the call returns when the child serves or has failed.
int wait_for_child(pid_t child, int ready_fd) {
  char byte = 0;
  if (read(ready_fd, &byte, 1) == 1) return 0;
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) != 0 ? WEXITSTATUS(status) : kExitFailure;
}

// The mount point, and the state to go on with, if there is any.
struct Start {
  std::filesystem::path mountpoint;
  std::unique_ptr<Survivors> survivors;
  UniqueFd lock;
  StandIn stand_in;
};

Result<Start> find_start(const Config& config, ServiceManager& manager) {
  if (auto left = inheritance(manager)) {
    const bool of_a_dead_one = static_cast<bool>(left->device);
    auto survivors = inherit(*left);
    if (survivors)
      return Start{(*survivors)->connection().mount_point(), std::move(*survivors), std::move(left->lock),
                   std::move(left->stand_in)};
    if (!of_a_dead_one) return pass(survivors);
    // The connection to the kernel ends with its descriptor here, and the mount becomes a stale mount like
    // any other.
    log_warning("{}: starting anew", survivors.error().message);
    drop_inheritance(manager);
    // The lock is released explicitly, because another process may still have that descriptor.
    (void)flock(left->lock.get(), LOCK_UN);
  }
  auto mountpoint = resolve_mount_point(config.mountpoint.native());
  if (!mountpoint) return pass(mountpoint);
  if (auto good = check_mount_place(*mountpoint); !good) return pass(good);
  return Start{std::move(*mountpoint), nullptr, {}, {}};
}

int serve_from(Start start, Config& config, const Succession& succession, ServiceManager& manager,
               Announcement& announcement) {
  config.mountpoint = std::move(start.mountpoint);
  // The pools of another are where that one had them, whatever is configured by now.
  if (start.survivors)
    config.runtime_dir = RuntimeDir::runtime_dir_of(start.lock.get(), config.runtime_dir.string());
  const auto ended = serve_as_configured(config, succession, manager, std::move(start.survivors),
                                         std::move(start.lock), std::move(start.stand_in), announcement);
  if (ended) return *ended;
  std::string why = ended.error().message;
  if (ended.error().code == EBUSY) {
    auto again = mount_again(config);
    if (again) announcement.ready(log_path(config.runtime_dir.string(), config.mountpoint.string()));
    if (again) return 0;
    why = std::move(again.error().message);
  }
  log_error("{}", why);
  return kExitFailure;
}

int check_system(const std::optional<std::string>& disk_path) {
  const SystemFacts facts = gather_system_facts(disk_path);
  const std::vector<SystemRow> rows = judge_system(facts);
  std::fputs(format_system(rows, facts.release).c_str(), stdout);
  return can_serve(rows) ? 0 : kExitFailure;
}

int refuse(const std::string& why, int exit_code) {
  std::fprintf(stderr, "kvcachefsd: %s\n", why.c_str());
  return exit_code;
}

int run(int argc, char** argv) {
  const Succession succession(argc, argv);
  auto command = parse_command_line(argc, argv, usable_memory_bytes());
  if (!command) return refuse(command.error().message, kExitUsage);
  std::fputs(command->output.c_str(), stdout);
  if (command->action == CommandLine::Action::kCanSucceed) {
    const auto able = could_adopt(command->formats, usable_memory_bytes());
    return able ? 0 : refuse(able.error().message, kExitFailure);
  }
  if (command->action == CommandLine::Action::kCheckSystem) return check_system(command->disk_path);
  if (command->action != CommandLine::Action::kServe) return 0;
  Config& config = command->config;

  ServiceManager manager;
  // A daemon that a person tries out must not leave a sealed directory behind.
  if (!config.seal) config.seal = manager.is_there();
  auto start = find_start(config, manager);
  if (!start) return refuse(start.error().message, kExitFailure);
  if (!start->survivors) {
    config.mountpoint = start->mountpoint;
    const auto served = KeptSettings::served(config, command->origins, usable_memory_bytes());
    if (!served) return refuse(served.error().message, kExitUsage);
  }
  // Names below it are compared with what the kernel tells of descriptors, which has no symbolic link in it.
  std::error_code unresolved;
  const auto runtime_dir = std::filesystem::weakly_canonical(config.runtime_dir, unresolved);
  config.runtime_dir = unresolved ? std::filesystem::absolute(config.runtime_dir) : runtime_dir;
  if (config.daemonize && !start->survivors)
    if (auto good = check_log_path(log_path(config.runtime_dir, start->mountpoint)); !good)
      return refuse(good.error().message, kExitFailure);
  // Threads inherit this mask: the signals come to wait_for_end() alone. The kernel sends SIGIO when a lease
  // is broken.
  const sigset_t signals = ending_signals();
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGIO, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGHUP, SIG_IGN);
  // A limit on the size of files, which the shell that starts the daemon may have, would hold for entries and
  // the disk.
  const rlimit any_size{RLIM_INFINITY, RLIM_INFINITY};
  (void)setrlimit(RLIMIT_FSIZE, &any_size);
  std::signal(SIGXFSZ, SIG_IGN);
  umask(0);
  raise_descriptor_limit();
  if (config.oom_score_adj)
    if (auto set = set_oom_score_adj(*config.oom_score_adj); !set) log_warning("{}", set.error().message);

  // An upgrade comes back to the directory that the command line is meant for (Succession).
  if (config.daemonize && start->survivors) (void)!chdir("/");
  if (!config.daemonize || start->survivors) {
    Announcement nobody(-1);
    return serve_from(std::move(*start), config, succession, manager, nobody);
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return kExitFailure;
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const pid_t child = fork();
  if (child < 0) return kExitFailure;
  if (child > 0) {
    write_end.reset();
    return wait_for_child(child, read_end.get());
  }
  read_end.reset();
  setsid();
  (void)!chdir("/");
  Announcement announcement(write_end.release());
  return serve_from(std::move(*start), config, succession, manager, announcement);
}

}  // namespace
}  // namespace kvcachefs

int main(int argc, char** argv) {
  return kvcachefs::run(argc, argv);
}
