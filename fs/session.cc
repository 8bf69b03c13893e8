#include "fs/session.h"

#include <linux/fuse.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "base/mapping.h"
#include "base/sys_disk.h"
#include "fs/caller.h"
#include "fs/kernel_offer.h"
#include "fs/mapped_ids.h"
#include "fs/mounts.h"
#include "fs/newer_fuse.h"
#include "fs/operations.h"

namespace kvcachefs {
namespace {

// The largest WRITE. Bulk bytes come to the daemon where there is no passthrough, or where no room is kept
// for a writer; there a larger request saves round trips. Over io_uring the smaller value holds, because each
// entry of a ring costs as much memory on every processor (docs/facts.md "A ring entry's memory").
constexpr unsigned kSmallWriteBytes = 128 << 10;
constexpr unsigned kLargeWriteBytes = 1 << 20;
// A SETXATTR has a value of up to 64 KiB after its header.
constexpr unsigned kRequestHeaderBytes = 64 << 10;
constexpr size_t kReceivedBytes = kLargeWriteBytes + kRequestHeaderBytes;
constexpr unsigned kReadAheadKb = 512;
constexpr auto kMemoryPause = std::chrono::milliseconds(500);

// Because RELEASE is a background request, a burst of closes would wait for itself with the kernel's default
// of twelve.
constexpr unsigned kBackground = 256;

constexpr auto kNoticeWait = std::chrono::milliseconds(100);

fuse_lowlevel_ops operation_table() {
  fuse_lowlevel_ops table{};
  table.init = [](void* server, fuse_conn_info* connection) {
    static_cast<Server*>(server)->negotiate(connection);
  };
  for (const auto add :
       {operations::add_lookup, operations::add_attributes, operations::add_create, operations::add_names,
        operations::add_open, operations::add_data, operations::add_directory, operations::add_xattr})
    add(table);
  return table;
}

// The result says whether the kernel is to move the bytes. The log says why not, for an administrator who
// wonders about the speed.
bool take_passthrough(fuse_conn_info* connection, bool wanted) {
  if (!wanted) {
    log_info("no passthrough: no_passthrough asks for none");
    return false;
  }
  // Only a thread with CAP_SYS_ADMIN may register a backing file.
  if (const auto self = Caller::of(gettid()); !self || !self->is_administrator()) {
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

// The read-ahead is that of the kernel's page cache, above all for mappings. The kernel's default of 128 KiB
// is meant for disks, but a request costs as much as copying 300 KiB. With 512 KiB, mapping and first reading
// 32 MiB runs at 0.77 of a tmpfs (0.52 with 128, 0.85 with 1024), 2 MiB at 0.37 (0.40, 0.34). INIT cannot ask
// for more than the kernel's default.
void raise_read_ahead(const std::string& device) {
  const std::string path = "/sys/class/bdi/" + device + "/read_ahead_kb";
  std::ofstream(path) << kReadAheadKb << std::flush;  // a failure only makes the mount slower
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
      control_(pools, survivors, options_.generation, options_.io_uring, options_.control_group,
               options_.origins),
      server_{.pools = pools,
              .backing = backing,
              .survivors = survivors,
              .control = control_,
              .stale_callers = {},
              .thread_groups = {},
              .page_cache = {},
              .pages_in_use = {},
              .copies = WaitingCopies(options_.info.memory_bytes),
              .listings = Listings(),
              .negotiate = [this](fuse_conn_info* connection) { negotiate(connection); },
              .may_change_pools = options_.may_change_pools,
              .pools_changed = options_.pools_changed,
              .start_helper = {}},
      in_part_(pools),
      invalidator_(invalidator),
      poll_time_(uint64_t{options_.poll_us} * 1000) {}

Session::~Session() {
  if (session_ != nullptr) fuse_session_destroy(session_);
}

Result<void> Session::make_session() {
  fuse_set_log_func(log_from_libfuse);
  std::string program = "kvcachefsd";
  std::string flag = "-o";
  // A queue has two entries, because handlers answer at once and every entry costs its payload on every
  // processor.
  std::string transport = "io_uring,io_uring_q_depth=2";
  std::array<char*, 4> arguments = {program.data(), flag.data(), transport.data(), nullptr};
  fuse_args args = FUSE_ARGS_INIT(options_.io_uring ? 3 : 1, arguments.data());
  const fuse_lowlevel_ops table = operation_table();
  session_ = fuse_session_new(&args, &table, sizeof table, &server_);
  fuse_opt_free_args(&args);
  if (session_ == nullptr) return fail(EINVAL, "libfuse refused to make a session");
  return {};
}

Result<void> Session::mount(bool seals) {
  if (options_.io_uring && !fuse_over_uring_enabled().value_or(false))
    return fail(ENOTSUP,
                "io_uring: the kernel does not offer it (echo Y > /sys/module/fuse/parameters/enable_uring, "
                "Linux 6.14)");
  if (auto made = make_session(); !made) return made;
  if (auto cleaned = clean_dead_mount(options_.mountpoint); !cleaned) return cleaned;
  if (seals) seal_below(options_.mountpoint);
  auto device = open_fuse_device();
  if (!device) return pass(device);
  device_ = std::move(*device);
  if (auto mounted = mount_connection(device_.get(), options_.mountpoint); !mounted) return mounted;
  mounted_device_ = device_at(options_.mountpoint);
  if (auto given = give_device(device_.get()); !given) {
    (void)sys::unmount(options_.mountpoint.c_str(), MNT_DETACH);
    return given;
  }
  (void)device_.release();  // libfuse closes it from here on
  return {};
}

// The call makes libfuse take over a connection that is mounted already.
Result<void> Session::give_device(int fd) {
  const std::string taken = "/dev/fd/" + std::to_string(fd);
  if (fuse_session_mount(session_, taken.c_str()) != 0) return fail(EIO, "libfuse refused the connection");
  return {};
}

Result<void> Session::take_over() {
  if (auto made = make_session(); !made) return made;
  if (auto given = give_device(*server_.survivors.connection().device_fd()); !given) return given;
  mounted_device_ = device_at(options_.mountpoint);
  has_requests_of_before_ = server_.survivors.connection().has_init();
  return has_requests_of_before_ ? replay_init() : receive_init();
}

// The kernel sends INIT only once, so the saved one is replayed; the kernel ignores the answer to it.
Result<void> Session::replay_init() {
  const auto init = server_.survivors.connection().init();
  std::vector<std::byte> request(init.begin(), init.end());
  fuse_buf buffer{};
  buffer.mem = request.data();
  buffer.size = request.size();
  fuse_session_process_buf(session_, &buffer);
  if (fuse_session_exited(session_) != 0) return fail(EPROTO, "the connection's INIT is not understood");
  server_.backing.take_over();
  told_stale_ = server_.survivors.requests().told_stale_lately();
  for (const int32_t thread : told_stale_) (void)server_.stale_callers.again(thread);
  return {};
}

void Session::resume(bool in_part) {
  if (in_part)
    in_part_.begin(std::exchange(told_stale_, {}), server_.survivors.requests().lost_stale_lately());
  if (has_requests_of_before_ && !tell_kernel(kNotifyResend))
    log_error("the kernel refuses to send the earlier process's unanswered requests again");
}

void Session::all_found() {
  // It comes only now, because the next use of a directory drops all that the kernel knows in it, 5 us for
  // each name.
  (void)tell_kernel(kNotifyIncreaseEpoch);
  in_part_.end();
}

bool Session::tell_kernel(int32_t code, uint64_t unique) const {
  const fuse_out_header header{.len = sizeof header, .error = code, .unique = unique};
  return write(fuse_session_fd(session_), &header, sizeof header) == sizeof header;
}

void Session::negotiate(fuse_conn_info* connection) {
  const bool passthrough = take_passthrough(connection, !options_.no_passthrough);
  if (passthrough) {
    connection->max_backing_stack_depth = 0;  // a tmpfs lies on no other file system
    // For an asynchronous write with O_DIRECT the kernel releases the inode's lock before the daemon gets the
    // request. By then a passthrough write that waits for its source may hold the tmpfs's lock, for which the
    // daemon would wait.
    fuse_unset_feature_flag(connection, FUSE_CAP_ASYNC_DIO);
    (void)fuse_set_feature_flag(connection, FUSE_CAP_HANDLE_KILLPRIV_V2);
    // The flag is for files that are served from the disk. OpenFiles::begin_open() gives no passthrough to
    // a file while any open of it is served so.
    (void)fuse_set_feature_flag(connection, FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
  } else {
    // Because libfuse 3.18 does not pass on which writes must clear set-user-ID bits, the kernel keeps doing
    // that itself.
    fuse_unset_feature_flag(connection, FUSE_CAP_HANDLE_KILLPRIV_V2);
    const bool maps = fuse_set_feature_flag(connection, FUSE_CAP_DIRECT_IO_ALLOW_MMAP) &&
                      injected_error("map what bypasses the page cache") == 0;
    server_.page_cache.decide(maps || options_.no_page_cache);
  }
  allow_mapped_ids();
  fuse_unset_feature_flag(connection, FUSE_CAP_HANDLE_KILLPRIV);
  // A truncation comes as a request of its own, in which reservations are made.
  fuse_unset_feature_flag(connection, FUSE_CAP_ATOMIC_O_TRUNC);
  // All changes of content pass through this kernel.
  fuse_unset_feature_flag(connection, FUSE_CAP_AUTO_INVAL_DATA);
  fuse_unset_feature_flag(connection, FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE);
  for (const uint64_t wanted :
       {FUSE_CAP_CACHE_SYMLINKS, FUSE_CAP_NO_EXPORT_SUPPORT, FUSE_CAP_READDIRPLUS, FUSE_CAP_PARALLEL_DIROPS})
    (void)fuse_set_feature_flag(connection, wanted);
  connection->no_interrupt = 1;
  connection->max_background = kBackground;
  connection->max_write = options_.io_uring ? kSmallWriteBytes : kLargeWriteBytes;
  over_io_uring_ = options_.io_uring && (connection->capable_ext & FUSE_CAP_OVER_IO_URING) != 0;
  if (options_.io_uring && !over_io_uring_)
    refusal_ = "io_uring: the kernel's FUSE connection does not offer it";
  server_.backing.decide(passthrough, fuse_session_fd(session_));
  ServerInfo info = options_.info;
  info.io_mode = passthrough ? "passthrough" : "daemon";
  info.transport = over_io_uring_ ? "io_uring" : "dev_fuse";
  control_.describe(info);
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

void Session::help_with(std::function<bool(const std::shared_ptr<Pool>&, WaitingLane&)> start_helper) {
  if (!options_.io_uring) server_.start_helper = std::move(start_helper);
}

void Session::serve() {
  if (options_.io_uring)
    // Requests come to libfuse's own threads, and only libfuse's loop ends those threads.
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
  const auto header = header_of({static_cast<const std::byte*>(request.mem), request.size});
  if (header.opcode != FUSE_INIT) return;
  server_.survivors.connection().connected(fuse_session_fd(session_),
                                           {static_cast<const std::byte*>(request.mem), request.size});
  fuse_init_in init{};
  std::memcpy(&init, static_cast<const std::byte*>(request.mem) + sizeof header,
              std::min(request.size - sizeof header, sizeof init));
  const bool resends = (init.flags & kInitExtended) != 0 && (init.flags2 & kInitResend) != 0;
  if (resends && injected_error("keep requests") == 0) return;
  // A client that waits for an answer when this process dies would wait for ever.
  log_warning(
      "the kernel keeps no requests for a successor (Linux 6.9): calls that wait, and open files, end with "
      "this process");
  server_.survivors.children().forbid_resending();
}

void Session::serve_device() {
  // The receive buffer consists of pages that are present and stay: the kernel copies a request into them in
  // the midst of a read(2). If this process were killed while such a page had to be fetched, the client would
  // get an EIO (fs/fuse/dev.c, fuse_copy_fill: GUP gives up for a fatal signal).
  auto memory = Mapping::of_memory(kReceivedBytes);
  // The other threads serve meanwhile, so a lack of memory does not end the mount.
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
      // The error ENOENT means that the request was interrupted before it came here.
      if (code == EINTR || code == EAGAIN || code == ENOENT) continue;
      // The error ENODEV means that the file system was unmounted.
      if (code != ENODEV) log_error("requests cannot be received: {}", sys::error_text(code));
      break;
    }
    if (poll_time_.is_on()) poll_time_.arrived(now_ns());
    const auto request = memory->bytes().first(*received);
    const auto way = in_part_.way_of(request);
    if (way == ServedInPart::Way::kLookedUpAgain) have_looked_up_again(request);
    if (way != ServedInPart::Way::kServed || awaits_names(request)) continue;
    handle(request);
    // Most of an open's cost is waking up this thread, so one thread at a time looks for the next request
    // while the others sleep. If one of those takes the request that is seen here, the next receive of this
    // thread sleeps as usual.
    if (poll_time_.is_on() && !polling_.exchange(true)) {
      const uint64_t start_ns = now_ns();
      poll_time_.started(start_ns);
      const uint64_t until_ns = start_ns + poll_time_.present_ns();
      pollfd device{fuse_session_fd(session_), POLLIN, 0};
      while (poll(&device, 1, 0) == 0 && now_ns() < until_ns) continue;
      polling_ = false;
    }
  }
  // The session ends as libfuse's own loop would end it.
  fuse_session_exit(session_);
}

void Session::handle(std::span<std::byte> bytes) {
  fuse_buf received{};
  received.mem = bytes.data();
  received.size = bytes.size();
  const Request request = begin_request(server_.survivors, received);
  if (request.opcode == FUSE_INIT && server_.survivors.supervised() &&
      !server_.survivors.connection().has_init())
    save_init(received);
  fuse_session_process_buf(session_, &received);
  if (request.opcode == FUSE_INIT && !passthrough()) raise_read_ahead(mounted_device_);
  fault_point("request answered", request.opcode);
  server_.survivors.requests().end();
}

void Session::notify() {
  while (!stopping_) invalidator_.step(session_, kNoticeWait);
}

void Session::stop_notifying() {
  stopping_ = true;
  invalidator_.wake();
}

void Session::unmount() {
  control_.end_log_reads();
  control_.end_queries();
  // The mount may have been missing when this process took over, and exist again (daemon/second_start.h).
  if (mounted_device_.empty()) mounted_device_ = device_at(options_.mountpoint);
  for (const std::string& target : mount_points_of(mounted_device_, fuse_session_fd(session_))) {
    if (sys::unmount(target.c_str(), 0)) continue;
    // The unmount fails because files are open. MNT_FORCE ends the connection, which answers all waiting
    // requests; the mount goes when the last file is closed.
    (void)sys::unmount(target.c_str(), MNT_FORCE);
    (void)sys::unmount(target.c_str(), MNT_DETACH);
  }
  fuse_session_exit(session_);
  server_.survivors.connection().disconnected();
}

}  // namespace kvcachefs
