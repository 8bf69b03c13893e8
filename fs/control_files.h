// The virtual files as the kernel sees them: nodeids, attributes, opens. What they say and do is fs/control/.
// Any server thread; each handler answers its request, or has a worker answer it that looks at every entry
// for it (fs/control_reads.h). A write is one order and is carried out before it is answered; text that is no
// value of its file is EINVAL, with the reason in the log.
//
// What is in .kvcachefs/pools/NAME is for whoever has CAP_SYS_ADMIN on the host (fs/caller.h), whatever the
// file modes say, and is asked at each open and each write: EPERM. Only the process that opened such a file
// writes to it: neither a descriptor that was handed on nor a program that was started with it is an
// authority.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "fs/control/controlled_pool.h"
#include "fs/control/line_buffer.h"
#include "fs/control/server_files.h"
#include "fs/control_reads.h"
#include "fs/fuse.h"
#include "fs/nodeid.h"
#include "tier/pools.h"

namespace kvcachefs {

class ControlFiles {
 public:
  // Handles of another generation of the daemon are not taken for this one's. Over io_uring (libfuse 3.18)
  // only the thread that a request came to may answer it: at once, whatever it takes.
  ControlFiles(Pools& pools, Survivors& survivors, uint32_t generation, bool over_io_uring);

  // Once, when the kernel has been negotiated with, and before the mount is announced.
  void describe(const ServerInfo& info);

  // Directories have index 0, of pool number 0 the mount's own.
  void lookup_directory(fuse_req_t request, uint16_t pool);
  void lookup(fuse_req_t request, NodeId directory, std::string_view name);
  struct Named {
    std::string name;
    NodeId id;
    bool is_directory = false;
  };
  std::vector<Named> list(NodeId directory) const;
  void getattr(fuse_req_t request, NodeId id);
  void open(fuse_req_t request, NodeId id, fuse_file_info* file);
  void read(fuse_req_t request, NodeId id, size_t size, off_t offset, const fuse_file_info* file);
  void write(fuse_req_t request, NodeId id, std::string_view text, off_t offset, const fuse_file_info* file);
  void flush(fuse_req_t request, NodeId id, const fuse_file_info* file);
  void release(fuse_req_t request, NodeId id, const fuse_file_info* file);

  // Two workers' work: what gathers, and what surveys a pool's memory, which takes longest.
  void gather(std::chrono::milliseconds at_most);
  void survey(std::chrono::milliseconds at_most);
  void end_reads();  // when no request comes any more

 private:
  // What keeps an open file's target alive as long as its reader.
  struct OpenFile {
    NodeId id;
    std::unique_ptr<ControlledPool> pool;
    std::unique_ptr<ControlReader> reader;
    LineBuffer lines;
  };

  Result<struct stat> attributes_of(NodeId id) const;
  void reply_entry_of(fuse_req_t request, NodeId id);
  Result<std::shared_ptr<OpenFile>> open_file(NodeId id, bool for_reading);
  Result<uint64_t> handle_for(fuse_req_t request, NodeId id) EXCLUDES(mutex_);
  void open_now(fuse_req_t request, NodeId id, fuse_file_info* file) EXCLUDES(mutex_);
  std::shared_ptr<OpenFile> known_open(const fuse_file_info* file) EXCLUDES(mutex_);
  std::shared_ptr<OpenFile> find_open(NodeId id, const fuse_file_info* file) EXCLUDES(mutex_);
  // Where it keeps nobody waiting.
  void run(ReadCost cost, fuse_req_t request, ControlReads::Job job);
  Result<void> order(fuse_req_t request, NodeId id, std::string_view text, uint64_t handle, OpenFile& open);
  std::unique_ptr<ControlledPool> pool_of(NodeId id) const;

  Pools& pools_;
  Survivors& survivors_;
  const bool over_io_uring_;
  ControlReads gathering_;
  ControlReads surveying_;

  std::shared_ptr<const ControlledServer> server() const EXCLUDES(mutex_);

  mutable Mutex mutex_;
  std::shared_ptr<const ControlledServer> server_ GUARDED_BY(mutex_);  // replaced, never changed
  uint64_t next_handle_ GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, std::shared_ptr<OpenFile>> open_files_ GUARDED_BY(mutex_);
};

}  // namespace kvcachefs
