// The handlers of FUSE's operations, one file for each group, which puts them into libfuse's table
// (fuse_lowlevel.h says what their arguments mean). Any server thread; fs/server.h says how handlers answer.
#pragma once

#include <functional>

#include "base/clock.h"
#include "base/result.h"
#include "fs/fuse.h"
#include "fs/server.h"
#include "fs/waiting.h"
#include "tier/entries/access_log.h"

namespace kvcachefs::operations {

// An entry of the table for a handler: what libfuse calls.
template <auto kHandler, class... Arguments>
void on_request(fuse_req_t handle, Arguments... arguments) {
  kHandler(received_request(handle), arguments...);
}
// The same for a handler that gets the Node of the request's nodeid.
template <auto kHandler, class... Arguments>
void on_node(fuse_req_t handle, fuse_ino_t ino, Arguments... arguments) {
  const Request request = received_request(handle);
  auto node = find_node(server_of(request), ino);
  if (!node) return reply_error(request, std::move(node.error()));
  kHandler(request, *node, arguments...);
}
// The same for a handler that may wait for the pool's room.
template <auto kHandler, class... Arguments>
void on_node_with_patience(fuse_req_t handle, fuse_ino_t ino, Arguments... arguments) {
  const Request request = received_request(handle);
  auto node = find_node(server_of(request), ino);
  if (!node) return reply_error(request, std::move(node.error()));
  with_patience<kHandler>(request, *node, arguments...);
}
// The same, but a member function of ControlFiles answers for a control file.
template <auto kHandler, auto kControl, class... Arguments>
void on_node_or_control(fuse_req_t handle, fuse_ino_t ino, Arguments... arguments) {
  const NodeId id{ino};
  const Request request = received_request(handle);
  if (id.is_control()) return (server_of(request).control.*kControl)(request, id, arguments...);
  on_node<kHandler>(handle, ino, arguments...);
}

void add_lookup(fuse_lowlevel_ops& table);
void add_attributes(fuse_lowlevel_ops& table);
void add_create(fuse_lowlevel_ops& table);
void add_names(fuse_lowlevel_ops& table);
void add_open(fuse_lowlevel_ops& table);
void add_data(fuse_lowlevel_ops& table);
void add_directory(fuse_lowlevel_ops& table);
void add_xattr(fuse_lowlevel_ops& table);

// lookup.cc
void lookup(const Request& request, fuse_ino_t parent, const char* name);

// attributes.cc
// The call clears the set-id bits that the caller's own write or truncation would clear (fs/attr.c,
// setattr_should_drop_suidgid), because a daemon with CAP_FSETID keeps the bits in its own calls.
Result<void> drop_set_id_bits(const Request& request, const Node& node);
// The same at an open for writing, because a passthrough write does not come to the daemon. A file that has a
// writer already keeps its bits: see Inodes::change_mode_unless_written().
void drop_set_id_bits_at_open(const Request& request, const Node& node);
// A handler calls this before it changes something of a node that the disk's catalog must record. `then` runs
// at once, or from a worker's thread when the catalog has taken what waits for it. Otherwise a client that
// changes names and attributes again and again would fill the memory with changes; one of xattrs is as large
// as all of an inode's. While the catalog's disk hangs, the request is answered EIO instead. `then` must not
// wait for room on the worker's thread, because others wait for that.
void when_catalog_takes_more(const Request& request, const Node& node, std::move_only_function<void()> then,
                             unsigned full_times = 1);
// For a change of names: `full_times`. Such a change is small, and the kernel holds the directory while it
// waits, so it waits only where the disk has stood still for long: for 256 MiB, half a million names.
inline constexpr unsigned kFullForNames = 4;

// As on_node_with_patience(), for a handler that makes a name without a content.
template <auto kHandler, class... Arguments>
void on_node_for_a_name(fuse_req_t handle, fuse_ino_t ino, Arguments... arguments) {
  const Request request = received_request(handle);
  auto node = find_node(server_of(request), ino);
  if (!node) return reply_error(request, std::move(node.error()));
  when_catalog_takes_more(
      request, *node,
      [request, node = *node, its = std::tuple(kept(arguments)...)]() mutable {
        std::apply([&](auto&... each) { with_patience<kHandler>(request, node, lent(each)...); }, its);
      },
      kFullForNames);
}

// create.cc
// The name that a request is about to make, with its place within the pool's limit of such names until the
// name itself counts.
struct NewName {
  int directory;
  const char* name;            // empty: the file has none
  uid_t uid;                   // its owner
  NameLimit* limit = nullptr;  // none: it is neither an entry nor a directory
  std::optional<NameLimit::Claim> place = {};

  bool exists() const { return name[0] != '\0' && sys::stat_at(directory, name).has_value(); }
};
// The call makes a name, once there is a place and an inode for it: in a pool without one it waits as a write
// waits for room, if it may wait.
template <class Make>
Result<Tried> with_inode(Pool& pool, Patience patience, NewName& wanted, Make make) {
  Evictor& evictor = pool.evictor();
  if (evictor.would_overtake(patience)) return Tried::kWouldWait;
  for (;;) {
    if (wanted.limit != nullptr && !wanted.place)
      wanted.place = evictor.claim(*wanted.limit, patience, wanted.uid);
    const bool lacks_place = wanted.limit != nullptr && !wanted.place;
    const bool refused = lacks_place || evictor.gives_way(wanted.uid, wanted.limit);
    if (refused && wanted.exists()) return fail(EEXIST);
    Result<Tried> made = refused ? fail(ENOSPC) : make();
    if (made || made.error().code != ENOSPC) return made;
    const Waited waited = evictor.wait_to_make(patience, wanted.uid, wanted.limit, lacks_place);
    if (waited == Waited::kWouldWait) return Tried::kWouldWait;
    if (waited == Waited::kRoom) continue;
    pool.insight().report_full(true);
    return made;
  }
}

// open.cc
// The error that a client gets for an entry that is not Presence::kHere. At ESTALE the kernel looks the name
// up again, and may find the entry; it then opens a cold one with an OPEN, which can promote it.
Error error_of(Presence presence);
Error error_of(const PromoteOutcome& outcome);  // of an entry that was not promoted
// The call fills in `file` and does not reply. After it, close_handle() must end the open. Failure: ENFILE.
Result<void> answer_open(const Request& request, const Node& node, const Opened& opened,
                         fuse_file_info* file);
inline bool writes(const fuse_file_info* file) {
  return (file->flags & O_ACCMODE) != O_RDONLY;
}
// The access log gets an open or create that is about to be answered: a line about what its client does next
// comes after it.
void log_access(const Request& request, const Node& node, AccessRecord::Event event, const Opened& opened,
                uint64_t begun_ns);
// The call ends an open that the kernel has released, or whose reply the kernel did not take.
void close_handle(Server& server, const Node& node, const fuse_file_info& file);
// The call closes what a request that is begun anew has opened its first time: otherwise that handle, which
// is written down, would stay open for ever.
void close_first(Server& server, const Node& node, const OpenHandles::Opened& opened, fuse_file_info file);
// The call fills in what the kernel is told of an open under the number `handle`.
void fill_in(const Request& request, const Pool& pool, const Opened& opened, uint64_t handle,
             bool bypasses_page_cache, fuse_file_info* file);
// A handle of the kernel's has Survivors' number of the open above these bits. This bit: the file is served
// from the disk.
inline constexpr uint64_t kFromDisk = 1;
// This bit: the file was opened for writing, which the kernel does not tell at a FLUSH.
inline constexpr uint64_t kForWriting = 2;
inline constexpr int kHandleShift = 2;
// The limit of promotions for one request. An entry may be evicted again before its open is retried; if that
// happens more often, it is no chance, and the entry cannot be opened.
inline constexpr int kPromotions = 4;
// Because the disk cannot serve an open for writing, it waits for memory as long as a write does in a pool
// that loses nothing. Entries that are not on the disk yet leave no sooner.
inline constexpr uint64_t kWriterPatienceMs = 30'000;
// During a SETATTR the kernel holds the file's lock, and a removal of the file holds the directory's while it
// waits for that.
inline constexpr uint64_t kTruncationPatienceMs = 2'000;

}  // namespace kvcachefs::operations
