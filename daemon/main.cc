// kvcachefsd: constructs, wires, serves, takes down in reverse.
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <thread>

#include "alloc/numa_topology.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/sys.h"
#include "daemon/command_line.h"
#include "daemon/mount_point.h"
#include "daemon/runtime_dir.h"
#include "daemon/workers.h"
#include "fs/session.h"
#include "tier/pools.h"

namespace kvcachefs {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;
constexpr auto kNegotiationTime = std::chrono::seconds(10);

uint64_t memory_bytes() {
  struct sysinfo info {};
  sysinfo(&info);
  return static_cast<uint64_t>(info.totalram) * info.mem_unit;
}

// Each removed directory or O_TMPFILE that the kernel still knows holds one, and in daemon I/O each open
// entry.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  constexpr rlim_t kWanted = 1 << 20;
  const rlimit raised{kWanted, std::max(limit.rlim_max, kWanted)};
  if (setrlimit(RLIMIT_NOFILE, &raised) == 0) return;
  limit.rlim_cur = limit.rlim_max;  // without the right to more
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

// Tells who waits for a daemonized start that it serves, and lets go of that one's terminal or pipes: whoever
// reads them to the end would wait for the daemon's.
class Announcement {
 public:
  explicit Announcement(int fd) : fd_(fd) {}
  void ready(const std::string& runtime_dir) {
    if (!fd_) return;
    const std::string log = runtime_dir + "/kvcachefsd.log";
    if (auto file = sys::open_at(AT_FDCWD, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0640))
      (void)dup2(file->get(), STDERR_FILENO);
    if (auto null = sys::open_at(AT_FDCWD, "/dev/null", O_RDWR)) {
      (void)dup2(null->get(), STDIN_FILENO);
      (void)dup2(null->get(), STDOUT_FILENO);
    }
    (void)!write(fd_.get(), "1", 1);
    fd_.reset();
  }

 private:
  UniqueFd fd_;
};

sigset_t ending_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// Until a signal asks for the end or the connection has ended by itself, by somebody's umount.
void wait_for_end(Session& session) {
  const sigset_t signals = ending_signals();
  const timespec pause{0, 200'000'000};
  while (!session.ended()) {
    const int signal = sigtimedwait(&signals, nullptr, &pause);
    if (signal > 0) {
      log_info("{}: unmounting", strsignal(signal));
      return;
    }
  }
  log_info("unmounted from outside");
}

int serve(const Config& config, Announcement& announcement) {
  auto runtime = RuntimeDir::claim(config.runtime_dir.string(), config.mountpoint.string());
  if (!runtime) {
    log_error("{}", runtime.error().message);
    return kExitFailure;
  }
  const auto topology = NumaTopology::detect();
  SessionBacking backing;
  Invalidator invalidator;
  Wakeup evictor_wakeup;
  Pools pools({.directory = runtime->pools_directory(),
               .memory_bytes = memory_bytes(),
               .topology = topology.get(),
               .backing_store = &backing,
               .listener = &invalidator,
               .evictor = &evictor_wakeup,
               .cores = std::max(1u, std::thread::hardware_concurrency()),
               .opens_may_wait = !config.io_uring});
  for (const PoolOptions& options : config.pools) {
    if (auto pool = pools.create(options); !pool) {
      log_error("{}", pool.error().message);
      return kExitFailure;
    }
  }
  // Over io_uring it is libfuse's own threads that wait.
  const unsigned poll_us =
      config.io_uring ? 0 : config.poll_us.value_or(default_poll_us(std::thread::hardware_concurrency()));
  Session session(pools, backing, invalidator,
                  {.mountpoint = config.mountpoint.string(),
                   .io_uring = config.io_uring,
                   .no_passthrough = config.no_passthrough,
                   .poll_us = poll_us});
  if (auto mounted = session.mount(); !mounted) {
    log_error("{}", mounted.error().message);
    return kExitFailure;
  }
  Workers workers(session, pools, evictor_wakeup);
  const unsigned by_cores = config.threads > 0 ? config.threads : Workers::default_server_threads();
  const unsigned threads = config.io_uring ? 1 : by_cores;
  workers.start(threads);
  const bool negotiated = session.wait_until_negotiated(kNegotiationTime);
  if (negotiated) {
    const ServerInfo info{.io_mode = session.passthrough() ? "passthrough" : "daemon",
                          .transport = session.over_io_uring() ? "io_uring" : "dev_fuse",
                          .threads = threads,
                          .poll_us = poll_us,
                          .memory_bytes = memory_bytes(),
                          .started_ns = now_ns(),
                          .pid = getpid()};
    session.control().describe(info);
    log_info("kvcachefs {} serves {}: {} I/O over {}, {} pools", KVCACHEFS_VERSION,
             config.mountpoint.string(), info.io_mode, info.transport, pools.list().size());
    announcement.ready(config.runtime_dir.string());
    wait_for_end(session);
  } else {
    log_error("{}", session.refusal().empty() ? "the kernel did not take up the mount" : session.refusal());
  }
  session.unmount();
  workers.stop();
  return negotiated ? 0 : kExitFailure;
}

// The parent's part of --daemonize: returns when the child serves, or has failed.
int wait_for_child(pid_t child, int ready_fd) {
  char byte = 0;
  if (read(ready_fd, &byte, 1) == 1) return 0;
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) != 0 ? WEXITSTATUS(status) : kExitFailure;
}

int run(int argc, char** argv) {
  auto command = parse_command_line(argc, argv, memory_bytes());
  if (!command) {
    std::fprintf(stderr, "kvcachefsd: %s\n", command.error().message.c_str());
    return kExitUsage;
  }
  std::fputs(command->output.c_str(), stdout);
  if (command->action != CommandLine::Action::kServe) return 0;
  Config& config = command->config;

  auto mountpoint = resolve_mount_point(config.mountpoint.native());
  if (!mountpoint) {
    std::fprintf(stderr, "kvcachefsd: %s\n", mountpoint.error().message.c_str());
    return kExitFailure;
  }
  config.mountpoint = std::move(*mountpoint);
  config.runtime_dir = std::filesystem::absolute(config.runtime_dir);
  // From here on threads inherit it: signals come to wait_for_end alone. SIGIO is what breaking a lease
  // sends.
  const sigset_t signals = ending_signals();
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGIO, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGHUP, SIG_IGN);
  umask(0);
  raise_descriptor_limit();

  if (!config.daemonize) {
    Announcement nobody(-1);
    return serve(config, nobody);
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
  return serve(config, announcement);
}

}  // namespace
}  // namespace kvcachefs

int main(int argc, char** argv) {
  return kvcachefs::run(argc, argv);
}
