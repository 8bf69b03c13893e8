// The open handles, each with the request that opened it, for a successor of the serving process. A handle is
// written down before the kernel is told of it, and taken out before the open it stands for is given up; so
// open files are counted from the handles alone. Any thread. Failure: ENFILE when the table is full. Without
// a supervisor nothing is kept and nothing fails.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>

#include "base/result.h"
#include "tier/survivors/survivor_table.h"

namespace kvcachefs {

struct OpenHandle {
  PoolInode inode;
  uint64_t unique = 0;  // the request that opened the handle
  bool writer = false;
  bool from_disk = false;
};

class OpenHandles {
 public:
  struct Record {
    std::atomic<uint64_t> key;
    uint64_t unique;
    uint32_t sequence;
    uint16_t writer;
    uint16_t from_disk;
  };
  using Shared = SurvivorTable<Record>::Shared;

  explicit OpenHandles(Shared* shared) : records_(shared) {}  // none: without a supervisor
  void begin_generation() { records_.find_free(); }

  // opened() answers the handle's number, 0 without a supervisor. A number recurs after 2^32 opens.
  Result<uint64_t> opened(const OpenHandle& handle);
  void closed(uint64_t handle);  // closing a closed handle changes nothing
  bool is_open(uint64_t handle);
  struct Opened {
    uint64_t handle = 0;
    PoolInode inode;
    bool from_disk = false;
  };
  std::optional<Opened> opened_by(uint64_t unique);  // `unique` 0 stands for no request: none
  void for_each(const std::function<void(const OpenHandle&)>& visit);

 private:
  SurvivorTable<Record> records_;
};

}  // namespace kvcachefs
