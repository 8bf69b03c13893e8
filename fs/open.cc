#include <cerrno>

#include "base/clock.h"
#include "fs/control_files.h"
#include "fs/operations.h"
#include "fs/server.h"

namespace kvcachefs::operations {
namespace {

void reply_open(const Request& request, const Node& node, fuse_file_info* file) {
  Server& server = server_of(request);
  about_to_answer(request);
  // The call was interrupted: the kernel will never release an open that it did not get.
  if (fuse_reply_open(request, file) == -ENOENT) close_handle(server, node, *file);
}

struct Opening {
  uint64_t begun_ns;
  bool from_disk = false;  // a reader accepts that
  bool promoted = false;   // it was cold when it was asked for
};

// The call answers the request, except for a cold entry, which gets no answer: false.
bool try_open(const Request& request, const Node& node, fuse_file_info* file, Opening opening) {
  const bool writer = writes(file);
  if (writer) drop_set_id_bits_at_open(request, node);
  auto answer = node.pool->open_files().begin_open(
      node.ino, {.writer = writer, .from_disk = opening.from_disk}, client_of(request, *node.pool));
  if (answer && answer->presence == Presence::kCold) return false;
  if (!answer || answer->presence != Presence::kHere) {
    Error error = answer ? error_of(answer->presence) : std::move(answer.error());
    // A writer gets ESTALE each time, because ENOENT would be a failure to it and not a miss. The kernel may
    // look again in any case.
    if (writer && error.code == ESTALE) {
      // The mark stays, so that a later request of the same call (a CREATE in a pool that has gone too)
      // counts as its second try.
      if (!server_of(request).stale_callers.again(fuse_req_ctx(request)->pid))
        server_of(request).survivors.requests().told_stale(fuse_req_ctx(request)->pid);
      (void)fuse_reply_err(request, ESTALE);
    } else {
      reply_error(request, std::move(error));
    }
    return true;
  }
  if (auto answered = answer_open(request, node, answer->opened, file); !answered) {
    reply_error(request, std::move(answered.error()));
    return true;
  }
  if (opening.promoted) answer->opened.tier = Entry::Tier::kCold;
  log_access(request, node, AccessRecord::Event::kOpen, answer->opened, opening.begun_ns);
  reply_open(request, node, file);
  return true;
}

// Each round promotes the entry and tries the open. Another round follows if the entry was evicted between
// its promotion and the open, or if its copy on the disk was not verified. A reader is served from the disk
// only after the checksum was found right.
void open_cold(const Request& request, Node node, fuse_file_info file, uint64_t begun_ns, int tries) {
  Pool& pool = *node.pool;
  const uint64_t ino = node.ino;
  const uint64_t patience_ends_ms = begun_ns / 1'000'000 + kWriterPatienceMs;
  auto reopen = [request, node = std::move(node), file, begun_ns, patience_ends_ms,
                 tries](const PromoteOutcome& outcome) mutable {
    using Kind = PromoteOutcome::Kind;
    // A disk that fails before it is in use ends without the daemon.
    const bool is_ending = outcome.kind == Kind::kEnding && !node.pool->disk().before_use().lasts();
    const bool over = is_ending || outcome.finding.kind == Finding::Kind::kUnreadable;
    if (over) return reply_error(request, error_of(outcome));
    const bool intact = outcome.kind == Kind::kIntactOnDisk;
    if (try_open(request, node, &file, {.begun_ns = begun_ns, .from_disk = intact, .promoted = true}))
      return node.pool->counters().open_ns.record(now_ns() - begun_ns);
    // The memory is not enough: many opens compete for the last pages, or a writer finds none at all.
    if (tries == kPromotions || (writes(&file) && now_ns() / 1'000'000 > patience_ends_ms)) {
      node.pool->insight().report_full(true);
      return reply_error(request, {ENOSPC, {}});
    }
    open_cold(request, std::move(node), file, begun_ns, tries + 1);
  };
  DiskRequests& disk = pool.disk_requests();
  if (writes(&file))
    disk.promote(ino, std::move(reopen), Room::Whose::kWriter, patience_ends_ms);
  else
    disk.promote(ino, std::move(reopen));
}

// The call answers an OPEN that a process that died has carried out and not answered.
bool open_again(const Request& request, const Node& node, fuse_file_info* file) {
  if (!request.resent) return false;
  Server& server = server_of(request);
  const auto opened = server.survivors.handles().opened_by(request.unique);
  if (!opened || opened->inode != PoolInode{node.pool->number(), node.ino}) return false;
  const auto adopted = node.pool->open_files().adopted_open(node.ino, opened->from_disk);
  if (!adopted) {
    close_first(server, node, *opened, *file);
    return false;
  }
  fill_in(request, *node.pool, *adopted, opened->handle, server.page_cache.bypasses(node.nodeid()), file);
  reply_open(request, node, file);
  return true;
}

void open(const Request& request, const Node& node, fuse_file_info* file) {
  const uint64_t begun_ns = now_ns();
  if (open_again(request, node, file)) return;
  if (!try_open(request, node, file, {.begun_ns = begun_ns}))
    return open_cold(request, node, *file, begun_ns, 1);
  node.pool->counters().open_ns.record(now_ns() - begun_ns);
}

void flush(const Request& request, const Node& node, fuse_file_info* file) {
  const bool writer = (file->fh & kForWriting) != 0;
  if (writer) node.pool->open_files().flushed(node.ino);
  if (!writer || node.pool->disk().durability() != Durability::kSync) return reply_done(request);
  node.pool->disk_requests().sync(node.ino, answer(request), false);
}

void release(const Request& request, fuse_ino_t ino, fuse_file_info* file) {
  Server& server = server_of(request);
  if (NodeId{ino}.is_control()) return server.control.release(request, file);
  auto node = find_node(server, ino);
  if (node)
    close_handle(server, *node, *file);
  else
    server.survivors.handles().closed(file->fh >> kHandleShift),
        server.page_cache.closed(ino);  // the pool is gone
  (void)fuse_reply_err(request, 0);
}

void fsync(const Request& request, fuse_ino_t ino, int, fuse_file_info*) {
  auto node = find_node(server_of(request), ino);
  if (!node) return reply_done(request);  // the inode of a control file
  node->pool->disk_requests().sync(node->ino, answer(request));
}

void fsyncdir(const Request& request, fuse_ino_t ino, int, fuse_file_info*) {
  auto node = find_node(server_of(request), ino);
  if (!node) return reply_done(request);
  node->pool->disk_requests().sync_directory(node->ino, answer(request));
}

}  // namespace

void log_access(const Request& request, const Node& node, AccessRecord::Event event, const Opened& opened,
                uint64_t begun_ns) {
  AccessLog* const log = node.pool->insight().read_log();
  if (log == nullptr) return;
  const fuse_ctx* const caller = fuse_req_ctx(request);
  log->add({.event = event,
            .tier = opened.tier,
            .pool = node.pool->number(),
            .uid = user_of(request),
            .thread = caller->pid,
            .ino = node.ino,
            .bytes = opened.bytes,
            .took_ns = now_ns() - begun_ns});
}

Error error_of(Presence presence) {
  return {presence == Presence::kAway ? EIO : ESTALE, {}};
}

Error error_of(const PromoteOutcome& outcome) {
  if (outcome.kind == PromoteOutcome::Kind::kEnding) return {ENOTCONN, {}};
  if (outcome.kind != PromoteOutcome::Kind::kFailed) return {ENOSPC, {}};
  // A damaged entry is discarded by now, as the kernel's next lookup will show. For one that could not be
  // read the error is not ENOENT, because the entry exists and storing it anew may be wasted work.
  return {outcome.finding.is_damage() ? ESTALE : EIO, {}};
}

void fill_in(const Request& request, const Pool& pool, const Opened& opened, uint64_t handle,
             bool bypasses_page_cache, fuse_file_info* file) {
  Server& server = server_of(request);
  const bool reader = !writes(file);
  file->fh = handle << kHandleShift | (opened.from_disk ? kFromDisk : 0) | (reader ? 0 : kForWriting);
  // A writer's close is the one sign that its content is whole; a reader's close needs no round trip.
  file->noflush = reader;
  if (opened.from_disk) {
    file->direct_io = 1;
  } else if (server.backing.passthrough()) {
    file->backing_id = opened.backing;
    // With direct I/O, writes through this open come to the daemon, to wait for room or to be answered when
    // they are durable. Mappings and the I/O of other opens do not come here.
    const bool durable = !reader && (file->flags & O_DSYNC) != 0 && pool.disk().exists();
    file->direct_io = durable || opened.through_daemon ? 1 : 0;
  } else if (bypasses_page_cache) {
    file->direct_io = 1;
    file->parallel_direct_writes = 1;  // the tmpfs orders the writes
  } else {
    file->keep_cache = 1;  // all changes go through this kernel's cache
  }
}

Result<void> answer_open(const Request& request, const Node& node, const Opened& opened,
                         fuse_file_info* file) {
  Server& server = server_of(request);
  auto handle = server.survivors.handles().opened({.inode = {node.pool->number(), node.ino},
                                                   .unique = request.unique,
                                                   .writer = writes(file),
                                                   .from_disk = opened.from_disk,
                                                   .user = user_of(request)});
  if (!handle) {
    node.pool->open_files().end_open(node.ino, {.writer = writes(file), .from_disk = opened.from_disk});
    return pass(handle);
  }
  if (*handle != 0) node.pool->open_files().held_by(node.ino, user_of(request));
  settle(request);  // not before the open is written down: a successor may find that the entry has gone
  fill_in(request, *node.pool, opened, *handle, server.page_cache.opened(node.nodeid()), file);
  fault_point("open written down");
  return {};
}

void close_handle(Server& server, const Node& node, const fuse_file_info& file) {
  const uint64_t handle = file.fh >> kHandleShift;
  // A process that died may have closed the handle already, and its counts went with that process.
  if (!server.survivors.handles().is_open(handle)) return;
  const auto user = server.survivors.handles().closed(handle);
  server.page_cache.closed(node.nodeid());
  node.pool->open_files().end_open(
      node.ino, {.writer = writes(&file), .from_disk = (file.fh & kFromDisk) != 0, .user = user});
}

void close_first(Server& server, const Node& node, const OpenHandles::Opened& opened, fuse_file_info file) {
  file.fh = opened.handle << kHandleShift | (opened.from_disk ? kFromDisk : 0);
  close_handle(server, node, file);
}

void add_open(fuse_lowlevel_ops& table) {
  table.open = on_node_or_control<open, &ControlFiles::open>;
  table.flush = on_node_or_control<flush, &ControlFiles::flush>;
  table.release = on_request<release>;
  table.fsync = on_request<fsync>;
  table.fsyncdir = on_request<fsyncdir>;
}

}  // namespace kvcachefs::operations
