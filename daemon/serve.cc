#include "daemon/serve.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>

#include "alloc/numa_topology.h"
#include "base/clock.h"
#include "base/fault_point.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/risky_read.h"
#include "base/sys.h"
#include "base/sys_process.h"
#include "daemon/child.h"
#include "daemon/kept_settings.h"
#include "daemon/log_file.h"
#include "daemon/pool_list.h"
#include "daemon/stacks.h"
#include "daemon/supervisor.h"
#include "daemon/workers.h"
#include "fs/session.h"
#include "tier/pool/memory_watch.h"
#include "tier/pool/pools.h"

namespace kvcachefs {
namespace {

constexpr auto kNegotiationTime = std::chrono::seconds(10);
constexpr int kHastyNice = -10;
// A start waits this long for what the pools' disks have. So nothing is missing after the start of a pool
// whose names, some ten thousand, come back meanwhile.
constexpr auto kRestorePatience = std::chrono::milliseconds(500);

// The call returns if the file system was unmounted, or if no process follows. What is served is left as it
// is to a next process, which has another connection.
void give_way_if_aborted(const Session& session, pid_t supervisor) {
  if (!session.was_aborted()) return log_info("unmounted from outside");
  fault_point("aborted");
  if (supervisor > 0 && getppid() == supervisor) std::_Exit(kExitAborted);
  log_warning(
      "the connection was aborted, by umount -f or its abort file, and there is no supervisor: unmounting");
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
  give_way_if_aborted(session, supervisor);
}

// The list of pools that the process that died has left. Those that were removed, and their memory given
// back, are left out of the result.
Result<PoolList> begin_adopting(Pools& pools, const Survivors& survivors) {
  auto listed = parse_pool_list(survivors.pools(), pools.memory_bytes());
  if (!listed) return listed;
  PoolList there{{}, std::move(listed->notes)};
  for (ListedPool& pool : listed->pools) {
    auto begun = pools.begin_adopting(pool.number, pool.options);
    if (begun)
      there.pools.push_back(std::move(pool));
    else if (begun.error().code != ENOENT)
      return pass(begun);
  }
  return there;
}

Result<void> adopt_pools(Pools& pools, const std::vector<ListedPool>& there, Survivors& survivors,
                         const RuntimeDir& runtime, const KeptSettings& settings, Workers& workers) {
  fault_point("disks to come");
  for (const ListedPool& pool : there)
    if (auto its = pools.take_disk(pool.number, pool.options)) workers.read_before_use(its);
  fault_point("disks taken");
  for (const ListedPool& pool : there) {
    if (auto adopted = pools.adopt(pool.number, pool.options); !adopted) return adopted;
    const auto its = pools.find(pool.number);
    if (its->disk().exists()) its->recovery().disk().before_use().end();
  }
  if (auto served = workers.restore_disks(std::chrono::milliseconds(0)); !served) return served;
  for (const auto& pool : pools.all()) pool->recovery().disk().before_use().end();
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
  return survivors.set_pools(format_pool_list(pools, settings.notes()));
}

// Clients wait for a takeover, so it runs with a higher priority.
class Haste {
 public:
  Haste() : nice_(getpriority(PRIO_PROCESS, 0)) { (void)setpriority(PRIO_PROCESS, 0, kHastyNice); }
  ~Haste() { (void)setpriority(PRIO_PROCESS, 0, nice_); }
  Haste(const Haste&) = delete;
  Haste& operator=(const Haste&) = delete;

 private:
  const int nice_;
};

// Over io_uring libfuse's own threads wait for requests, so none polls.
unsigned poll_us_of(const Config& config) {
  return config.io_uring ? 0 : config.poll_us.value_or(default_poll_us(std::thread::hardware_concurrency()));
}

unsigned server_threads_of(const Config& config) {
  if (config.io_uring) return 1;
  return config.threads > 0 ? config.threads : Workers::default_server_threads();
}

// From resume() on clients that read what is in memory are served, while the pools are walked.
Result<void> take_over(const Config& config, const RuntimeDir& runtime, Pools& pools, KeptSettings& settings,
                       Session& session, Workers& workers, Survivors& survivors) {
  std::optional<Haste> haste(std::in_place);
  if (auto taken = session.take_over(); !taken) return taken;
  fault_point("taken over");
  auto there = begin_adopting(pools, survivors);
  if (!there) return pass(there);
  settings.took_over(pools, std::move(there->notes));
  // Over io_uring libfuse takes the requests, and hands over each.
  const bool in_part = !config.io_uring;
  const auto serve = [&] {
    session.resume(in_part);
    fault_point("resumed");
    haste.reset();  // what threads start with
    workers.start_servers(server_threads_of(config));
    haste.emplace();
  };
  if (in_part) serve();
  auto adopted = adopt_pools(pools, there->pools, survivors, runtime, settings, workers);
  if (!adopted) return adopted;
  fault_point("pools adopted");
  session.all_found();
  if (!in_part) serve();
  return {};
}

Result<void> begin(const Config& config, Pools& pools, KeptSettings& settings, Session& session,
                   Workers& workers, Survivors& survivors) {
  auto served = settings.served_pools();
  if (!served) return pass(served);
  for (const PoolOptions& options : *served)
    if (auto pool = pools.create(options, Attaching::kBehind); !pool) return pass(pool);
  if (auto restored = workers.restore_disks(kRestorePatience); !restored) return restored;
  settings.began(pools);
  if (auto kept = survivors.set_pools(format_pool_list(pools, settings.notes())); !kept) return kept;
  if (auto mounted = session.mount(config.seal.value_or(false)); !mounted) return mounted;
  workers.start_servers(server_threads_of(config));
  return {};
}

// A takeover does not depend on what was kept: if it cannot be read it stays as it is, and orders are
// refused.
std::unique_ptr<KeptSettings> keep_settings(const Config& config, uint32_t generation,
                                            uint64_t memory_bytes) {
  const std::string file = KeptSettings::file_of(config);
  auto kept = KeptSettings::read(file, memory_bytes);
  if (!kept) log_error("{}", kept.error().message);
  if (!kept && generation == 0) return nullptr;
  if (kept && generation == 0) KeptSettings::tell(config, *kept);
  return std::make_unique<KeptSettings>(file, config, std::move(kept), memory_bytes);
}

// The list of pools notes what is in the settings file, so it is written after the file.
Result<void> write_changes(KeptSettings& settings, const Pools& pools,
                           const std::function<Result<void>()>& list_pools) {
  fault_point("order in effect");
  auto written = settings.changed(pools);
  if (auto kept = list_pools(); !kept) log_error("{}", kept.error().message);
  return written;
}

ServerInfo describe(const Config& config, const Survivors& survivors, uint32_t generation,
                    uint64_t memory_bytes) {
  return {.threads = server_threads_of(config),
          .poll_us = poll_us_of(config),
          .memory_bytes = memory_bytes,
          .memory_reserve_bytes = memory_reserve_of(config, memory_bytes),
          .started_ns = now_ns(),
          .pid = getpid(),
          .supervisor_pid = survivors.supervised() ? getppid() : 0,
          .generation = generation};
}

// A successor leaves memory, mounts and descriptors to the next process, so no destructor may run.
int could_not_begin(const Error& why, uint32_t generation) {
  log_error("{}", why.message);
  if (generation > 0) std::_Exit(kExitFailure);
  return kExitFailure;
}

void serve_clients(const Config& config, Session& session, const Pools& pools, const Workers& workers,
                   Survivors& survivors, const Audience& audience) {
  log_info("kvcachefs {} serves {}: {} I/O over {}, {} pools", KVCACHEFS_VERSION, config.mountpoint.string(),
           session.passthrough() ? "passthrough" : "daemon",
           session.over_io_uring() ? "io_uring" : "dev_fuse", pools.list().size());
  survivors.children().serving(now_ns());
  const std::string log = log_path(config.runtime_dir.string(), config.mountpoint.string());
  audience.announcement.ready(log);
  audience.served();
  const auto gets_on = [&audience, &log] {
    keep_log_bounded(log);
    audience.gets_on();
  };
  wait_for_end(session, workers, survivors, audience.supervisor, gets_on);
}

}  // namespace

sigset_t ending_signals() {
  return sys::signal_set({SIGTERM, SIGINT});
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
  const HostMemoryReader host_memory;
  const uint64_t memory_bytes = host_memory.read().total_bytes;
  const MemoryRules memory_rules = {memory_reserve_of(config, memory_bytes), config.shrink_floor.value};
  const auto settings = keep_settings(config, generation, memory_bytes);
  if (!settings) return kExitFailure;
  Pools pools({.directory = runtime.pools_directory(),
               .memory_bytes = memory_bytes,
               .reserve_bytes = memory_rules.reserve_bytes,
               .opens_may_wait = !config.io_uring,
               .pool = {.topology = topology.get(),
                        .backing_store = &backing,
                        .listener = &invalidator,
                        .evictor = &evictor_wakeup,
                        .cores = std::max(1u, std::thread::hardware_concurrency()),
                        .on_several_threads = &Workers::on_several_threads,
                        .survivors = &survivors,
                        .options_changed = [&] { return list_pools(); }}});
  list_pools = [&] {
    MutexLock lock(listing);
    return survivors.set_pools(format_pool_list(pools, settings->notes()));
  };
  const auto pools_changed = [&] { return write_changes(*settings, pools, list_pools); };
  Session session(pools, backing, survivors, invalidator,
                  {.mountpoint = config.mountpoint.string(),
                   .io_uring = config.io_uring,
                   .no_passthrough = config.no_passthrough,
                   .no_page_cache = config.no_page_cache,
                   .poll_us = poll_us_of(config),
                   .generation = generation,
                   .control_group = config.control_group,
                   .info = describe(config, survivors, generation, memory_bytes),
                   .may_change_pools = [&] { return settings->may_change(); },
                   .pools_changed = pools_changed,
                   .origins = settings.get()});
  Workers workers(session, pools, evictor_wakeup);
  const auto begun = generation > 0
                         ? take_over(config, runtime, pools, *settings, session, workers, survivors)
                         : begin(config, pools, *settings, session, workers, survivors);
  if (!begun) return could_not_begin(begun.error(), generation);
  AwayDisks away_disks(pools, audience.handovers);
  MemoryWatch memory_watch(pools, memory_rules, host_memory);
  workers.start(server_threads_of(config));
  // What the process before has changed and not written down, and no client orders again.
  if (!settings->is_written()) workers.do_behind([&] { (void)pools_changed(); });
  workers.watch(away_disks);
  if (memory_rules.exist()) workers.watch(memory_watch);
  const bool negotiated = session.wait_until_negotiated(kNegotiationTime);
  if (negotiated) {
    serve_clients(config, session, pools, workers, survivors, audience);
    survivors.children().ending();
  } else if (generation > 0) {
    give_way_if_aborted(session, audience.supervisor);
  } else {
    log_error("{}", session.refusal().empty() ? "the kernel did not take up the mount" : session.refusal());
  }
  session.unmount();
  workers.stop();
  return negotiated || generation > 0 ? 0 : kExitFailure;
}

}  // namespace kvcachefs
