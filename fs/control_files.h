// The virtual files as the kernel sees them: nodeids, attributes, opens. Their content and effect are in
// fs/control/. Any server thread. Each handler answers its request, or has a worker answer it if the file
// needs a look at every entry (fs/control_reads.h). A write is one order, which is carried out before the
// write is answered. Text that is no value of its file is EINVAL, with the reason in the log.
//
// The files in .kvcachefs/pools/NAME, configure and access_log are for a caller with CAP_SYS_ADMIN on the
// host (fs/caller.h), whatever the file modes say. This is checked at each open and each write: EPERM. Only
// the process that opened such a file may write to it: neither a descriptor that was passed to another
// process nor a program that was started with the descriptor gives that right.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "fs/control/controlled_pool.h"
#include "fs/control/index_records.h"
#include "fs/control/line_buffer.h"
#include "fs/control/queries.h"
#include "fs/control/server_files.h"
#include "fs/control_reads.h"
#include "fs/log_reads.h"
#include "fs/nodeid.h"
#include "fs/request.h"
#include "tier/pool/pools.h"

namespace kvcachefs {

class ControlFiles {
 public:
  // Handles of another generation of the daemon are not taken for handles of this one. Over io_uring (libfuse
  // 3.18) only the thread that a request came to may answer it, so there each read is answered at once,
  // whatever it costs.
  // The members of `control_group`, if there is one, may do with a pool's files what the pool's owner may.
  ControlFiles(Pools& pools, Survivors& survivors, uint32_t generation, bool over_io_uring,
               std::optional<gid_t> control_group, SettingOrigins* origins);

  // The call comes once, when the kernel has been negotiated with, and before the mount is announced.
  void describe(const ServerInfo& info);

  void reply_entry_of(const Request& request, NodeId id);
  void lookup(const Request& request, NodeId directory, std::string_view name);
  struct Named {
    std::string name;
    NodeId id;
    bool is_directory = false;
  };
  std::vector<Named> list(NodeId directory) const;
  void getattr(const Request& request, NodeId id);
  void open(const Request& request, NodeId id, fuse_file_info* file);
  void read(const Request& request, NodeId id, size_t size, off_t offset, const fuse_file_info* file);
  void write(const Request& request, NodeId id, const char* bytes, size_t size, off_t offset,
             const fuse_file_info* file);
  void flush(const Request& request, NodeId id, const fuse_file_info* file);
  void release(const Request& request, const fuse_file_info* file);

  // The work of a worker: does the next read that looks at entries.
  void gather(std::chrono::milliseconds at_most) { gathering_.step(survivors_, at_most); }
  void end_queries() { queries_end_ = true; }  // called first: queries under way end with ENOTCONN
  void end_reads() { gathering_.end(); }       // called when no request comes any more
  // The work of another worker: answers reads of the access log, which wait for events.
  void answer_log_reads(std::chrono::milliseconds at_most) { logs_.step(survivors_, at_most); }
  void end_log_reads() { logs_.end(); }  // called before the mount goes

 private:
  static constexpr uid_t kUnknownUser = static_cast<uid_t>(-1);
  // An OpenFile keeps the target alive as long as the reader on it.
  struct OpenFile {
    OpenFile(NodeId its_id, QueryBudget& budget, QueryBudget::Payer payer)
        : id(its_id), query(budget, payer), records(budget, payer) {}
    ~OpenFile() {
      if (pool != nullptr) pool->pool->insight().lifetimes().end_leases(pool->holder);
    }
    OpenFile(const OpenFile&) = delete;
    OpenFile& operator=(const OpenFile&) = delete;

    NodeId id;
    std::unique_ptr<ControlledPool> pool;
    std::unique_ptr<ControlReader> reader;
    LineBuffer lines;
    OpenQuery query;
    OpenRecords records;
    std::optional<uid_t> user;  // that the open counts for; none: a process that died opened it
  };

  Result<struct stat> attributes_of(NodeId id) const;
  Result<std::shared_ptr<OpenFile>> open_file(NodeId id, uint64_t handle, bool for_reading,
                                              QueryBudget::Payer payer = kUnknownUser);
  void forget_open(uint64_t handle) EXCLUDES(mutex_);
  void give_back_open(uid_t user) EXCLUDES(mutex_);
  Result<uint64_t> handle_for(const Request& request, NodeId id) EXCLUDES(mutex_);
  void open_now(const Request& request, NodeId id, fuse_file_info* file) EXCLUDES(mutex_);
  std::shared_ptr<OpenFile> known_open(const fuse_file_info* file) EXCLUDES(mutex_);
  std::shared_ptr<OpenFile> find_open(NodeId id, const fuse_file_info* file) EXCLUDES(mutex_);
  // The job runs at once or, `elsewhere`, on a worker, so that it keeps no other caller waiting.
  void run(bool elsewhere, const Request& request, ControlReads::Job job);
  // `rights`: the caller's, if the file answers queries; otherwise null.
  static Result<std::string> read_some(const Rights* rights, OpenFile& open, uint64_t offset, size_t size);
  Result<void> order(const Request& request, NodeId id, std::string_view text, uint64_t handle,
                     OpenFile& open);
  // Returns how many of the bytes were taken.
  static Result<size_t> record(const Rights& rights, std::string_view text, OpenFile& open, bool is_first);
  // Checks that the caller is the administrator, and that the caller's process opened the file.
  Result<void> check_administrator(const Request& request, std::string_view name, uint64_t handle) const;

  Pools& pools_;
  Survivors& survivors_;
  SettingOrigins* const origins_;
  const bool over_io_uring_;
  const std::optional<gid_t> control_group_;
  QueryBudget query_budget_;
  std::atomic<bool> queries_end_{false};
  ControlReads gathering_;
  LogReads logs_;

  std::shared_ptr<const ControlledServer> server() const EXCLUDES(mutex_);

  mutable Mutex mutex_;
  std::shared_ptr<const ControlledServer> server_ GUARDED_BY(mutex_);  // replaced, never changed
  uint64_t next_handle_ GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, std::shared_ptr<OpenFile>> open_files_ GUARDED_BY(mutex_);
  std::unordered_map<uid_t, uint32_t> opens_of_user_ GUARDED_BY(mutex_);
};

}  // namespace kvcachefs
