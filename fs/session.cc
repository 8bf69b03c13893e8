#include "fs/session.h"

#include <linux/fuse.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/mapping.h"
#include "base/sys_disk.h"
#include "fs/mounts.h"
#include "fs/operations.h"

namespace kvcachefs {
namespace {

// Bulk bytes do not come here unless there is no passthrough; then a larger request saves round trips. A ring
// of io_uring costs this much for each of its entries on every processor (fuse-facts A7).
constexpr unsigned kSmallWriteBytes = 128 << 10;
constexpr unsigned kLargeWriteBytes = 1 << 20;
constexpr unsigned kRequestHeaderBytes = 64 << 10;  // a SETXATTR has a value of 64 KiB after its header
constexpr size_t kReceivedBytes = kLargeWriteBytes + kRequestHeaderBytes;
constexpr auto kMemoryPause = std::chrono::milliseconds(500);

// RELEASE is a background request: with the kernel's twelve, a burst of closes would wait for itself.
constexpr unsigned kBackground = 256;

// Of an INIT request; Debian 12's linux/fuse.h is older. From include/uapi/linux/fuse.h of Linux 6.9.
constexpr uint32_t kInitExtended = 1u << 30;
constexpr uint32_t kHasResend = 1u << (39 - 32);  // in flags2

constexpr auto kNoticeWait = std::chrono::milliseconds(100);

fuse_lowlevel_ops operation_table() {
  fuse_lowlevel_ops table{};
  table.init = [](void* server, fuse_conn_info* connection) {
    static_cast<Server*>(server)->negotiate(connection);
  };
  table.lookup = operations::lookup;
  table.forget = operations::forget;
  table.forget_multi = operations::forget_multi;
  table.getattr = operations::getattr;
  table.setattr = operations::setattr;
  table.readlink = operations::readlink;
  table.statfs = operations::statfs;
  table.mknod = operations::mknod;
  table.mkdir = operations::mkdir;
  table.symlink = operations::symlink;
  table.create = operations::create;
  table.tmpfile = operations::tmpfile;
  table.unlink = operations::unlink;
  table.rmdir = operations::rmdir;
  table.rename = operations::rename;
  table.link = operations::link;
  table.open = operations::open;
  table.flush = operations::flush;
  table.release = operations::release;
  table.fsync = operations::fsync;
  table.read = operations::read;
  table.write = operations::write;
  table.fallocate = operations::fallocate;
  table.lseek = operations::lseek;
  table.copy_file_range = operations::copy_file_range;
  table.opendir = operations::opendir;
  table.readdir = operations::readdir;
  table.readdirplus = operations::readdirplus;
  table.releasedir = operations::releasedir;
  table.fsyncdir = operations::fsyncdir;
  table.setxattr = operations::setxattr;
  table.getxattr = operations::getxattr;
  table.listxattr = operations::listxattr;
  table.removexattr = operations::removexattr;
  return table;
}

// CAP_SYS_ADMIN (21) in the effective set of proc(5)'s status: what registering a backing file needs.
bool may_pass_through() {
  auto status = sys::read_text("/proc/self/status");
  if (!status) return false;
  std::istringstream lines(*status);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("CapEff:")) return (std::strtoull(line.c_str() + 7, nullptr, 16) >> 21 & 1) != 0;
  return false;
}

// Whether the kernel is to move the bytes; why not is what whoever wonders about the speed looks for in the
// log.
bool take_passthrough(fuse_conn_info* connection, bool wanted) {
  if (!wanted) {
    log_info("no passthrough: no_passthrough asks for none");
    return false;
  }
  if (!may_pass_through()) {
    log_warning("no passthrough: it needs CAP_SYS_ADMIN; the daemon moves all bytes, more slowly");
    return false;
  }
  if (!fuse_set_feature_flag(connection, FUSE_CAP_PASSTHROUGH)) {
    log_warning(
        "no passthrough: the kernel does not offer it (Linux 6.9, CONFIG_FUSE_PASSTHROUGH); the daemon "
        "moves all bytes, more slowly");
    return false;
  }
  return true;
}

bool io_uring_enabled() {
  auto value = sys::read_text("/sys/module/fuse/parameters/enable_uring");
  return value && (value->starts_with("Y") || value->starts_with("1"));
}

void log_from_libfuse(fuse_log_level level, const char* format, va_list arguments) {
  char line[512];
  const int length = std::vsnprintf(line, sizeof line, format, arguments);
  if (length <= 0) return;
  line[std::strcspn(line, "\n")] = '\0';
  log_line(level <= FUSE_LOG_ERR       ? LogLevel::kError
           : level == FUSE_LOG_WARNING ? LogLevel::kWarning
                                       : LogLevel::kDebug,
           line);
}

}  // namespace

Session::Session(Pools& pools, SessionBacking& backing, Survivors& survivors, Invalidator& invalidator,
                 Options options)
    : options_(std::move(options)),
      control_(pools, survivors, options_.generation, options_.io_uring),
      server_{.pools = pools,
              .backing = backing,
              .survivors = survivors,
              .control = control_,
              .stale_callers = {},
              .thread_groups = {},
              .negotiate = [this](fuse_conn_info* connection) { negotiate(connection); },
              .pools_changed = options_.pools_changed},
      invalidator_(invalidator),
      poll_time_(uint64_t{options_.poll_us} * 1000) {}

Session::~Session() {
  if (session_ != nullptr) fuse_session_destroy(session_);
}

Result<void> Session::make_session() {
  fuse_set_log_func(log_from_libfuse);
  std::string program = "kvcachefsd";
  std::string flag = "-o";
  // Two entries a queue: handlers answer at once, and every entry costs its payload on every processor.
  std::string transport = "io_uring,io_uring_q_depth=2";
  std::array<char*, 4> arguments = {program.data(), flag.data(), transport.data(), nullptr};
  fuse_args args = FUSE_ARGS_INIT(options_.io_uring ? 3 : 1, arguments.data());
  const fuse_lowlevel_ops table = operation_table();
  session_ = fuse_session_new(&args, &table, sizeof table, &server_);
  fuse_opt_free_args(&args);
  if (session_ == nullptr) return fail(EINVAL, "libfuse refused to make a session");
  return {};
}

Result<void> Session::mount() {
  if (options_.io_uring && !io_uring_enabled())
    return fail(ENOTSUP,
                "io_uring: the kernel does not offer it (echo Y > /sys/module/fuse/parameters/enable_uring, "
                "Linux 6.14)");
  if (auto made = make_session(); !made) return made;
  if (auto cleaned = clean_dead_mount(options_.mountpoint); !cleaned) return cleaned;
  auto device = sys::open_at(AT_FDCWD, "/dev/fuse", O_RDWR);
  if (!device)
    return fail(device.error().code, std::string("/dev/fuse: ") + std::strerror(device.error().code));
  device_ = std::move(*device);
  const std::string data = "fd=" + std::to_string(device_.get()) +
                           ",rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other";
  if (auto mounted = sys::mount("kvcachefs", options_.mountpoint.c_str(), "fuse.kvcachefs",
                                MS_NOSUID | MS_NODEV, data.c_str());
      !mounted)
    return mounted;
  mounted_device_ = device_at(options_.mountpoint);
  if (auto given = give_device(device_.get()); !given) {
    (void)sys::unmount(options_.mountpoint.c_str(), MNT_DETACH);
    return given;
  }
  (void)device_.release();  // libfuse closes it
  return {};
}

// libfuse takes over a connection that is mounted already.
Result<void> Session::give_device(int fd) {
  const std::string taken = "/dev/fd/" + std::to_string(fd);
  if (fuse_session_mount(session_, taken.c_str()) != 0) return fail(EIO, "libfuse refused the connection");
  return {};
}

Result<void> Session::take_over() {
  if (auto made = make_session(); !made) return made;
  if (auto given = give_device(*server_.survivors.device_fd()); !given) return given;
  mounted_device_ = device_at(options_.mountpoint);
  // The kernel says INIT once; its answer to this one finds nobody who asked.
  const auto init = server_.survivors.init();
  std::vector<std::byte> request(init.begin(), init.end());
  fuse_buf buffer{};
  buffer.mem = request.data();
  buffer.size = request.size();
  fuse_session_process_buf(session_, &buffer);
  if (fuse_session_exited(session_) != 0) return fail(EPROTO, "the connection's INIT is not understood");
  server_.backing.take_over();
  for (const int32_t thread : server_.survivors.told_stale_lately())
    (void)server_.stale_callers.again(thread);
  return {};
}

void Session::resume() {
  // Linux 6.9 and 6.16; from include/uapi/linux/fuse.h. Names that the other removed or brought without
  // having told the kernel are looked up again; without the second, as soon as somebody asks for them in
  // vain.
  constexpr int32_t kNotifyResend = 7, kNotifyIncreaseEpoch = 8;
  for (const int32_t code : {kNotifyIncreaseEpoch, kNotifyResend}) {
    const fuse_out_header notice{.len = sizeof notice, .error = code, .unique = 0};
    if (write(fuse_session_fd(session_), &notice, sizeof notice) < 0 && code == kNotifyResend)
      log_error("the kernel did not take the order to send the requests of before again");
  }
}

void Session::negotiate(fuse_conn_info* connection) {
  const bool passthrough = take_passthrough(connection, !options_.no_passthrough);
  if (passthrough) {
    connection->max_backing_stack_depth = 0;  // a tmpfs lies on nothing
    (void)fuse_set_feature_flag(connection, FUSE_CAP_HANDLE_KILLPRIV_V2);
  } else {
    // libfuse 3.18 does not hand on which writes have to clear set-user-ID bits: the kernel does it itself
    // then.
    fuse_unset_feature_flag(connection, FUSE_CAP_HANDLE_KILLPRIV_V2);
    (void)fuse_set_feature_flag(connection, FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
  }
  fuse_unset_feature_flag(connection, FUSE_CAP_HANDLE_KILLPRIV);
  // Truncation comes as its own request, which is where reservations are kept.
  fuse_unset_feature_flag(connection, FUSE_CAP_ATOMIC_O_TRUNC);
  // All changes of content pass through this kernel.
  fuse_unset_feature_flag(connection, FUSE_CAP_AUTO_INVAL_DATA);
  fuse_unset_feature_flag(connection, FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE);
  (void)fuse_set_feature_flag(connection, FUSE_CAP_CACHE_SYMLINKS);
  (void)fuse_set_feature_flag(connection, FUSE_CAP_NO_EXPORT_SUPPORT);
  (void)fuse_set_feature_flag(connection, FUSE_CAP_READDIRPLUS);
  (void)fuse_set_feature_flag(connection, FUSE_CAP_PARALLEL_DIROPS);
  connection->no_interrupt = 1;
  connection->max_background = kBackground;
  connection->max_write = passthrough || options_.io_uring ? kSmallWriteBytes : kLargeWriteBytes;
  over_io_uring_ = options_.io_uring && (connection->capable_ext & FUSE_CAP_OVER_IO_URING) != 0;
  if (options_.io_uring && !over_io_uring_)
    refusal_ = "io_uring: the kernel's FUSE connection does not offer it";
  server_.backing.decide(passthrough, fuse_session_fd(session_));
  {
    MutexLock lock(mutex_);
    negotiated_ = true;
  }
  condition_.notify_all();
}

bool Session::wait_until_negotiated(std::chrono::seconds at_most) {
  const uint64_t deadline_ns =
      now_ns() + static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(at_most).count());
  MutexLock lock(mutex_);
  while (!negotiated_ && !ended_ && now_ns() < deadline_ns) condition_.wait_for(mutex_, kNoticeWait);
  return negotiated_ && !ended_ && refusal_.empty();
}

void Session::poll_for_request(uint64_t until_ns) {
  pollfd device{fuse_session_fd(session_), POLLIN, 0};
  while (poll(&device, 1, 0) == 0 && now_ns() < until_ns) continue;
}

void Session::serve() {
  if (options_.io_uring)
    // Requests come to libfuse's own threads, which only its own loop takes down again at the end.
    (void)fuse_session_loop(session_);
  else
    serve_device();
  {
    MutexLock lock(mutex_);
    ended_ = true;
  }
  condition_.notify_all();
}

void Session::save_init(const fuse_buf& request) {
  fuse_in_header header{};
  std::memcpy(&header, request.mem, std::min(request.size, sizeof header));
  if (header.opcode != FUSE_INIT) return;
  server_.survivors.connected(fuse_session_fd(session_),
                              {static_cast<const std::byte*>(request.mem), request.size});
  fuse_init_in init{};
  std::memcpy(&init, static_cast<const std::byte*>(request.mem) + sizeof header,
              std::min(request.size - sizeof header, sizeof init));
  if ((init.flags & kInitExtended) != 0 && (init.flags2 & kHasResend) != 0) return;
  // Who waits for an answer then would wait for ever.
  log_warning("the kernel keeps no requests for a successor (Linux 6.9): the mount ends with who serves it");
  server_.survivors.forbid_succession();
}

void Session::serve_device() {
  // Of pages that are there and stay: the kernel copies a request into them in the midst of a read(2), and
  // should this process be killed while a page has to be fetched, the client would get an EIO
  // (fs/fuse/dev.c, fuse_copy_fill: GUP gives up for a fatal signal).
  auto memory = Mapping::of_memory(kReceivedBytes);
  // The other threads serve meanwhile; for want of memory a mount does not end.
  for (; !memory && fuse_session_exited(session_) == 0; memory = Mapping::of_memory(kReceivedBytes)) {
    log_error("no memory to receive requests in: {}", memory.error().message);
    std::this_thread::sleep_for(kMemoryPause);
  }
  if (!memory) return;
  std::ranges::fill(memory->bytes(), std::byte{1});
  (void)mlock(memory->bytes().data(), memory->bytes().size());
  while (fuse_session_exited(session_) == 0) {
    auto received = sys::read_some(fuse_session_fd(session_), memory->bytes());
    if (!received) {
      const int code = received.error().code;
      // ENOENT: it was interrupted before it came here.
      if (code == EINTR || code == EAGAIN || code == ENOENT) continue;
      // ENODEV: unmounted.
      if (code != ENODEV) log_error("requests cannot be received: {}", sys::error_text(code));
      break;
    }
    if (poll_time_.is_on()) poll_time_.arrived(now_ns());
    fuse_buf buffer{};
    buffer.mem = memory->bytes().data();
    buffer.size = *received;
    begin_request(server_.survivors, buffer);
    if (server_.survivors.supervised() && !server_.survivors.device_fd()) save_init(buffer);
    fuse_session_process_buf(session_, &buffer);
    fault_point("request answered", request_identity().opcode);
    server_.survivors.end_request();
    // Most of an open's cost is this thread's waking up. One thread at a time looks for the next request, the
    // others sleep: should one of them take what is seen here, the next receive sleeps as it would have.
    if (poll_time_.is_on() && !polling_.exchange(true)) {
      const uint64_t start_ns = now_ns();
      poll_time_.started(start_ns);
      poll_for_request(start_ns + poll_time_.present_ns());
      polling_ = false;
    }
  }
  // As libfuse's own loop leaves it.
  fuse_session_exit(session_);
}

void Session::notify() {
  while (!stopping_) invalidator_.step(session_, kNoticeWait);
}

void Session::stop_notifying() {
  stopping_ = true;
  invalidator_.wake();
}

void Session::unmount() {
  for (const std::string& target : mount_points_of(mounted_device_)) {
    if (sys::unmount(target.c_str(), 0)) continue;
    // Busy: files are open. Ending the connection answers whoever waits; the mount goes when the last one
    // closes.
    (void)sys::unmount(target.c_str(), MNT_FORCE);
    (void)sys::unmount(target.c_str(), MNT_DETACH);
  }
  fuse_session_exit(session_);
}

}  // namespace kvcachefs
