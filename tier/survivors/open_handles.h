// The open handles, each with the request that opened it, for a successor of the serving process. A handle is
// written down before the kernel is told of it, and taken out before the open it stands for is given up; so
// open files are counted from the handles alone. Each user has a share of the table, so that a user who opens
// files without end leaves the other users theirs; handles from before a takeover count for no user. Any
// thread. Failure: EMFILE when the user's share is used up, ENFILE when the table is full. Without a
// supervisor nothing is kept and nothing fails.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "tier/survivors/survivor_table.h"

namespace kvcachefs {

struct OpenHandle {
  PoolInode inode;
  uint64_t unique = 0;  // the request that opened the handle
  bool writer = false;
  bool from_disk = false;
  uid_t user = 0;  // who opened it; not for a successor
  // Its number, if the handle is a writer's of a connection that has ended: no RELEASE comes, and the file's
  // lease alone tells when the client is done. 0: the handle is of this connection.
  uint64_t lost = 0;
};

class OpenHandles {
 public:
  struct Record {
    std::atomic<uint64_t> key;
    uint64_t unique;
    uint32_t sequence;
    uint16_t writer;  // 0 or one of Writer
    uint16_t from_disk;
  };
  using Shared = SurvivorTable<Record>::Shared;
  static constexpr uint32_t kShareOfUser = SurvivorTable<Record>::kPlaces / 4;

  explicit OpenHandles(Shared* shared) : records_(shared) {}  // none: without a supervisor
  void begin_generation() { records_.find_free(); }

  // opened() answers the handle's number, 0 without a supervisor. A number recurs after 2^32 opens.
  Result<uint64_t> opened(const OpenHandle& handle) EXCLUDES(mutex_);
  // Answers who opened it, if that was while this process served. Closing a closed handle changes nothing.
  std::optional<uid_t> closed(uint64_t handle) EXCLUDES(mutex_);
  bool is_open(uint64_t handle);
  struct Opened {
    uint64_t handle = 0;
    PoolInode inode;
    bool from_disk = false;
  };
  std::optional<Opened> opened_by(uint64_t unique);  // `unique` 0 stands for no request: none
  void for_each(const std::function<void(const OpenHandle&)>& visit);
  // The connection has ended, and so have the opens of readers. No process serves meanwhile.
  void connection_ended();

 private:
  enum Writer : uint16_t { kReader, kWriter, kLostWriter };
  bool charge(uid_t user) EXCLUDES(mutex_);
  void give_back(uid_t user) REQUIRES(mutex_);

  SurvivorTable<Record> records_;
  Mutex mutex_;
  std::unordered_map<uid_t, uint32_t> opens_of_user_ GUARDED_BY(mutex_);
  std::vector<std::optional<uid_t>> users_ GUARDED_BY(mutex_);  // by the place of the record
};

}  // namespace kvcachefs
