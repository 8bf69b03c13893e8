// kvcachefsd: main constructs, wires, serves, and takes down in reverse.
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "alloc/numa_topology.h"
#include "base/clock.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/risky_read.h"
#include "base/sys.h"
#include "daemon/announcement.h"
#include "daemon/child.h"
#include "daemon/command_line.h"
#include "daemon/handovers.h"
#include "daemon/log_file.h"
#include "daemon/mount_point.h"
#include "daemon/pool_list.h"
#include "daemon/runtime_dir.h"
#include "daemon/second_start.h"
#include "daemon/service_manager.h"
#include "daemon/stacks.h"
#include "daemon/succession.h"
#include "daemon/supervisor.h"
#include "daemon/workers.h"
#include "fs/mounts.h"
#include "fs/session.h"
#include "tier/pool/pools.h"

namespace kvcachefs {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;
constexpr auto kNegotiationTime = std::chrono::seconds(10);
constexpr int kHastyNice = -10;

uint64_t memory_bytes() {
  struct sysinfo info {};
  sysinfo(&info);
  return static_cast<uint64_t>(info.totalram) * info.mem_unit;
}

sigset_t ending_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// The call returns when a signal asks for the end, or when the connection has ended by an umount from
// outside.
void wait_for_end(Session& session, const Workers& workers, Survivors& survivors, pid_t supervisor,
                  const std::function<void()>& gets_on) {
  const sigset_t signals = ending_signals();
  const timespec pause{0, 200'000'000};
  while (!session.ended()) {
    survivors.children().beat(std::min(now_ns(), workers.last_turn_ns()));
    gets_on();
    const int signal = sigtimedwait(&signals, nullptr, &pause);
    if (signal > 0) {
      log_info("{}: unmounting", strsignal(signal));
      return;
    }
    // Clients do not notice this, as with an upgrade. Without a supervisor no process would follow.
    if (workers.found_disk() && supervisor > 0 && getppid() == supervisor) {
      log_info("ends, and another takes over, with the disk");
      fault_point("handing over");
      std::_Exit(kExitToBeFollowed);
    }
  }
  log_info("unmounted from outside");
}

Result<void> adopt_pools(Pools& pools, Survivors& survivors, const RuntimeDir& runtime) {
  auto listed = parse_pool_list(survivors.pools(), memory_bytes());
  if (!listed) return pass(listed);
  for (const ListedPool& pool : *listed) {
    auto adopted = pools.adopt(pool.number, pool.options);
    // The error means that the pool was removed and its memory given back.
    if (!adopted && adopted.error().code != ENOENT) return adopted;
  }
  runtime.note_pools_without_disk(names_without_disk(pools));
  // These kept inodes belong to pools that are gone, or that were about to be created.
  for (const auto& [place, kept] : survivors.kept_inodes().list())
    if (pools.find(kept.inode.pool) == nullptr) {
      survivors.kept_inodes().let_go(place);
      UniqueFd(kept.fd).reset();
    }
  std::vector<std::string> arenas;
  for (const auto& pool : pools.all()) arenas.push_back(pool->arena_path());
  runtime.clean_up(arenas);
  return survivors.set_pools(format_pool_list(pools));
}

// All clients wait for a takeover, so it runs with a higher priority.
class Haste {
 public:
  Haste() : nice_(getpriority(PRIO_PROCESS, 0)) { (void)setpriority(PRIO_PROCESS, 0, kHastyNice); }
  ~Haste() { (void)setpriority(PRIO_PROCESS, 0, nice_); }
  Haste(const Haste&) = delete;
  Haste& operator=(const Haste&) = delete;

 private:
  const int nice_;
};

Result<void> begin(const Config& config, const RuntimeDir& runtime, Pools& pools, Session& session,
                   Survivors& survivors, bool successor) {
  if (successor) {
    const Haste haste;
    if (auto taken = session.take_over(); !taken) return taken;
    fault_point("taken over");
    if (auto adopted = adopt_pools(pools, survivors, runtime); !adopted) return adopted;
    fault_point("pools adopted");
    session.resume();
    fault_point("resumed");
    return {};
  }
  for (const PoolOptions& options : config.pools)
    if (auto pool = pools.create(options); !pool) return pass(pool);
  if (auto kept = survivors.set_pools(format_pool_list(pools)); !kept) return kept;
  return session.mount();
}

// Serving tells its progress to these. Without a supervisor the service manager hears of this process itself.
struct Audience {
  Announcement& announcement;
  pid_t supervisor = 0;
  unsigned handovers = 0;  // how many there were lately for a disk
  std::function<void()> served = [] {};
  std::function<void()> gets_on = [] {};
};

// Over io_uring libfuse's own threads wait for requests, so none polls.
unsigned poll_us_of(const Config& config) {
  return config.io_uring ? 0 : config.poll_us.value_or(default_poll_us(std::thread::hardware_concurrency()));
}

unsigned server_threads_of(const Config& config) {
  if (config.io_uring) return 1;
  return config.threads > 0 ? config.threads : Workers::default_server_threads();
}

ServerInfo describe(const Config& config, const Survivors& survivors, uint32_t generation) {
  return {.threads = server_threads_of(config),
          .poll_us = poll_us_of(config),
          .memory_bytes = memory_bytes(),
          .started_ns = now_ns(),
          .pid = getpid(),
          .supervisor_pid = survivors.supervised() ? getppid() : 0,
          .generation = generation};
}

int serve(const Config& config, const RuntimeDir& runtime, Survivors& survivors, uint32_t generation,
          const Audience& audience) {
  let_stacks_be_printed();
  RiskyRead::note_deaths_in(runtime.deadly_reads(), generation == 0);
  survivors.descriptors().limit(descriptor_limit());
  const auto topology = NumaTopology::detect();
  SessionBacking backing(survivors);
  Invalidator invalidator;
  Wakeup evictor_wakeup;
  // The lock keeps two threads apart, so that the older list is not written down last.
  Mutex listing;
  std::function<Result<void>()> list_pools;
  Pools pools({.directory = runtime.pools_directory(),
               .memory_bytes = memory_bytes(),
               .topology = topology.get(),
               .backing_store = &backing,
               .listener = &invalidator,
               .evictor = &evictor_wakeup,
               .cores = std::max(1u, std::thread::hardware_concurrency()),
               .opens_may_wait = !config.io_uring,
               .survivors = &survivors,
               .options_changed = [&] { return list_pools(); }});
  list_pools = [&] {
    MutexLock lock(listing);
    return survivors.set_pools(format_pool_list(pools));
  };
  Session session(pools, backing, survivors, invalidator,
                  {.mountpoint = config.mountpoint.string(),
                   .io_uring = config.io_uring,
                   .no_passthrough = config.no_passthrough,
                   .no_page_cache = config.no_page_cache,
                   .poll_us = poll_us_of(config),
                   .generation = generation,
                   .info = describe(config, survivors, generation),
                   .pools_changed = [&] {
                     if (auto kept = list_pools(); !kept) log_error("{}", kept.error().message);
                   }});
  if (auto begun = begin(config, runtime, pools, session, survivors, generation > 0); !begun) {
    log_error("{}", begun.error().message);
    // A successor leaves memory, mounts and descriptors to the next process, so no destructor may run.
    if (generation > 0) std::_Exit(kExitFailure);
    return kExitFailure;
  }
  AwayDisks away_disks(pools, audience.handovers);
  Workers workers(session, pools, evictor_wakeup);
  workers.start(server_threads_of(config));
  workers.watch(away_disks);
  const bool negotiated = session.wait_until_negotiated(kNegotiationTime);
  if (negotiated) {
    log_info("kvcachefs {} serves {}: {} I/O over {}, {} pools", KVCACHEFS_VERSION,
             config.mountpoint.string(), session.passthrough() ? "passthrough" : "daemon",
             session.over_io_uring() ? "io_uring" : "dev_fuse", pools.list().size());
    survivors.children().serving(now_ns());
    audience.announcement.ready(config.runtime_dir.string());
    audience.served();
    const auto gets_on = [&audience, log = log_path(config.runtime_dir.string())] {
      keep_log_bounded(log);
      audience.gets_on();
    };
    wait_for_end(session, workers, survivors, audience.supervisor, gets_on);
    survivors.children().ending();
  } else {
    log_error("{}", session.refusal().empty() ? "the kernel did not take up the mount" : session.refusal());
  }
  session.unmount();
  workers.stop();
  return negotiated ? 0 : kExitFailure;
}

// The requests in the rings of a process that died are lost, so io_uring excludes a supervisor.
bool may_be_supervised(const Config& config) {
  return !config.no_supervisor && !config.io_uring;
}

Result<int> serve_alone(const Config& config, ServiceManager& manager, Announcement& announcement) {
  auto runtime = RuntimeDir::claim(config.runtime_dir.string(), config.mountpoint.string());
  if (!runtime) return pass(runtime);
  Survivors nothing;
  return serve(config, *runtime, nothing, 0,
               {.announcement = announcement,
                .served = [&] { manager.serving(config.mountpoint.string()); },
                .gets_on = [&] { manager.alive(); }});
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

Result<int> serve_supervised(const Config& config, const Succession& succession, ServiceManager& manager,
                             std::unique_ptr<Survivors> survivors, const RuntimeDir& runtime,
                             Announcement& announcement) {
  Announcement nobody(-1);
  Handovers handovers;
  return supervise(*survivors,
                   {.own_descriptors = {runtime.lock_fd()},
                    .hang_after = std::chrono::seconds(config.hang_after_s),
                    .give_up_after = std::chrono::seconds(config.give_up_after_s),
                    .serve =
                        [&, supervisor = getpid()] {
                          const uint32_t generation = survivors->begin_generation();
                          return serve(config, runtime, *survivors, generation,
                                       {.announcement = generation > 0 ? nobody : announcement,
                                        .supervisor = supervisor,
                                        .handovers = handovers.lately()});
                        },
                    .served =
                        [&] {
                          keep_inheritance(manager, *survivors, runtime.lock_fd());
                          manager.serving(config.mountpoint.string());
                        },
                    .gets_on = [&] { manager.alive(); },
                    .handed_over = [&] { handovers.another(); },
                    .give_up =
                        [&](const std::string& reason) {
                          log_error("{}: unmounting", reason);
                          unmount_everywhere(config.mountpoint.string());
                          runtime.clean_up();
                        },
                    .can_upgrade = [&]() -> Result<void> {
                      if (auto able = succession.check(); !able) return able;
                      return check_disks(survivors->pools(), memory_bytes(), runtime.pools_without_disk());
                    },
                    .upgrade =
                        [&](const std::vector<int>& descriptors) {
                          return succession.execute(survivors->memory_fd(), runtime.lock_fd(), descriptors);
                        }});
}

Result<int> serve_as_configured(const Config& config, const Succession& succession, ServiceManager& manager,
                                std::unique_ptr<Survivors> survivors, UniqueFd lock,
                                Announcement& announcement) {
  if (!survivors && !may_be_supervised(config)) return serve_alone(config, manager, announcement);
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
  auto ended = serve_supervised(config, succession, manager, std::move(survivors), *runtime, announcement);
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
};

Result<Start> find_start(const Config& config, ServiceManager& manager) {
  if (auto left = inheritance(manager)) {
    const bool of_a_dead_one = static_cast<bool>(left->device);
    auto survivors = inherit(*left);
    if (survivors)
      return Start{(*survivors)->connection().mount_point(), std::move(*survivors), std::move(left->lock)};
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
  return Start{std::move(*mountpoint), nullptr, {}};
}

int serve_from(Start start, Config& config, const Succession& succession, ServiceManager& manager,
               Announcement& announcement) {
  config.mountpoint = std::move(start.mountpoint);
  const auto ended = serve_as_configured(config, succession, manager, std::move(start.survivors),
                                         std::move(start.lock), announcement);
  if (ended) return *ended;
  std::string why = ended.error().message;
  if (ended.error().code == EBUSY) {
    auto again = mount_again(config);
    if (again) announcement.ready(config.runtime_dir.string());
    if (again) return 0;
    why = std::move(again.error().message);
  }
  log_error("{}", why);
  return kExitFailure;
}

int run(int argc, char** argv) {
  const Succession succession(argc, argv);
  auto command = parse_command_line(argc, argv, memory_bytes());
  if (!command) {
    std::fprintf(stderr, "kvcachefsd: %s\n", command.error().message.c_str());
    return kExitUsage;
  }
  std::fputs(command->output.c_str(), stdout);
  if (command->action == CommandLine::Action::kCanSucceed) {
    const std::string objection = objection_to(command->formats);
    if (!objection.empty()) std::fprintf(stderr, "kvcachefsd: %s\n", objection.c_str());
    return objection.empty() ? 0 : kExitFailure;
  }
  if (command->action != CommandLine::Action::kServe) return 0;
  Config& config = command->config;

  ServiceManager manager;
  auto start = find_start(config, manager);
  if (!start) {
    std::fprintf(stderr, "kvcachefsd: %s\n", start.error().message.c_str());
    return kExitFailure;
  }
  // Names below it are compared with what the kernel tells of descriptors, which has no symbolic link in it.
  std::error_code unresolved;
  const auto runtime_dir = std::filesystem::weakly_canonical(config.runtime_dir, unresolved);
  config.runtime_dir = unresolved ? std::filesystem::absolute(config.runtime_dir) : runtime_dir;
  // Threads inherit this mask: the signals come to wait_for_end() alone. The kernel sends SIGIO when a lease
  // is broken.
  const sigset_t signals = ending_signals();
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGIO, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGHUP, SIG_IGN);
  umask(0);
  raise_descriptor_limit();

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
