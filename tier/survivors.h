// Survivors keeps what outlives a serving process that dies, in one piece of shared memory that the
// supervisor made and every serving child maps. A child writes down here what the kernel holds for it and
// what cannot be found out again from the pools' memory: the connection, its INIT request, the pools, which
// request opened which handle, backing ids, and the numbers of the descriptors that keep nameless inodes
// alive. The descriptors themselves lie in the table that child and supervisor share (daemon/supervisor.h).
//
// Because a process may be killed between any two instructions, each fact is one record. Storing its key
// makes the record true, after all its other fields are written; clearing the key makes it false. Callers
// keep two orders:
//   - a handle is written down before the kernel is told of it, and taken out before the open it stands for
//     is given up; so open files are counted from the handles alone;
//   - an inode is kept before its last name goes.
//
// Any thread. Failure: ENFILE when a table is full. Without a supervisor nothing is kept and nothing fails.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "tier/descriptor_budget.h"

namespace kvcachefs {

// The place of an inode, numbered as in fs/nodeid.h.
struct PoolInode {
  uint16_t pool = 0;
  uint64_t ino = 0;
  bool operator==(const PoolInode&) const = default;
};

struct OpenHandle {
  PoolInode inode;
  uint64_t unique = 0;  // the request that opened the handle
  bool writer = false;
  bool from_disk = false;
};

struct KeptInode {
  PoolInode inode;
  uint32_t generation = 0;
  int fd = -1;
};

struct HeldBacking {
  PoolInode inode;
  int32_t id = -1;
};

// A table of records in shared memory. Each process keeps its own list of the free places.
template <class Record>
class SurvivorTable {
 public:
  // The table has as many places as the daemon may have descriptors. A record, some tens of bytes, takes
  // memory once used.
  static constexpr uint32_t kPlaces = 1 << 20;

  // `places` and `used` (how many places have ever been taken) lie in the shared memory.
  SurvivorTable(Record* places, std::atomic<uint32_t>& used) : places_(places, kPlaces), used_(used) {}

  // find_free() rebuilds the list of free places; places that an earlier process has filled stay taken.
  void find_free() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    free_.clear();
    for (uint32_t place = used_; place-- > 0;)
      if (places_[place].key == 0) free_.push_back(place);
  }
  // take() answers a free place; the caller fills it in and publishes it by storing its key.
  Result<uint32_t> take() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (free_.empty()) return used_ == kPlaces ? Result<uint32_t>(fail(ENFILE)) : used_++;
    const uint32_t place = free_.back();
    free_.pop_back();
    return place;
  }
  void free(uint32_t place) EXCLUDES(mutex_) {
    places_[place].key = 0;
    MutexLock lock(mutex_);
    free_.push_back(place);
  }
  Record& operator[](uint32_t place) { return places_[place]; }
  uint32_t used() const { return used_; }

 private:
  const std::span<Record> places_;
  std::atomic<uint32_t>& used_;
  Mutex mutex_;
  std::vector<uint32_t> free_ GUARDED_BY(mutex_);
};

class Survivors {
 public:
  static constexpr size_t kMostInitBytes = 4096;
  static constexpr size_t kMostPoolsBytes = size_t{16} << 20;

  Survivors();  // without a supervisor
  static Result<std::unique_ptr<Survivors>> create();
  // open() maps the memory that another program, of an older or newer version, has created. EPROTONOSUPPORT:
  // another format.
  static Result<std::unique_ptr<Survivors>> open(UniqueFd memory);
  static uint32_t format();  // the number of the layout's version
  ~Survivors();
  Survivors(const Survivors&) = delete;
  Survivors& operator=(const Survivors&) = delete;

  bool supervised() const { return layout_ != nullptr; }
  int memory_fd() const { return memory_.get(); }

  // The mount point, resolved at the start: to resolve it again would wait for the process that serves it.
  Result<void> set_mount_point(std::string_view path);
  std::string mount_point() const;

  // --- upgrades: the supervisor notes how one ended; the process that asked for it reads that ---
  struct Upgrades {
    uint32_t done = 0;
    uint32_t refused = 0;
    std::string reason;  // why the last refused upgrade was refused
  };
  void upgraded();
  void upgrade_refused(std::string_view reason);
  Upgrades upgrades() const;

  // --- the connection ---
  // A successor can take over from here on: the device is open in the shared table of descriptors, and `init`
  // is the kernel's INIT request.
  void connected(int device_fd, std::span<const std::byte> init);
  std::optional<int> device_fd() const;  // none: no connection to take over
  // The device has another descriptor, and the descriptors that kept nameless inodes are gone: the supervisor
  // that held them died.
  void moved(int device_fd);
  std::span<const std::byte> init() const;
  void beginning() {  // the next child is about to be started
    ending();
    beat(kBeatToCome);
  }
  bool is_beginning() const {  // a child was started and neither serves yet nor ends
    return serving_since_ns() == 0 && last_beat_ns() == kBeatToCome;
  }
  void serving(uint64_t since_ns);    // the child has taken over and serves
  uint64_t serving_since_ns() const;  // 0: the child does not serve yet, or serves no more
  void ending();                      // the child has been asked to end, which may take long
  void beat(uint64_t at_ns);          // at this time all threads of the child were making progress
  uint64_t last_beat_ns() const;
  // Each child calls this first of all; the answer is how many children came before it.
  uint32_t begin_generation() EXCLUDES(mutex_);
  // A child that dies from now on is not replaced: its successor would lack something (a disk tier, a copy's
  // mark).
  void forbid_succession();
  bool may_succeed() const;

  // --- pools: their numbers and options, as text that the caller understands ---
  Result<void> set_pools(std::string_view text);
  std::string pools() const;

  // --- requests in hand ---
  // The calling thread begins a request. `attempted`: an earlier process attempted it; that stays recorded.
  void begin_request(uint64_t unique, bool attempted);
  void end_request();  // the thread waits for its next request
  // The thread made progress, or waits with a bound of its own for other threads: its request's age begins
  // anew.
  void still_at_it();
  // The calling thread is about to make the change that its request asks for, and has just checked that the
  // change is possible. (The kernel sends one change of a directory's names or an inode's attributes at a
  // time.) A successor that gets the same request again may find the change done. A thread without a request
  // records nothing.
  void attempt();
  bool was_attempted(uint64_t unique) const;
  // The same for a rename, which may be answered after its thread has had other requests. first_ino is the
  // inode of the old name, second_ino that of the new name; 0: the new name was free.
  struct Rename {
    uint64_t unique = 0, first_ino = 0, second_ino = 0;
  };
  void attempt_rename(uint64_t first_ino, uint64_t second_ino);
  std::optional<Rename> attempted_rename(uint64_t unique) const;
  // told_stale() records that a client's thread was told ESTALE for the first time in a call
  // (fs/stale_callers.h); told_stale_lately() lists the threads of the last two seconds.
  void told_stale(int32_t thread);
  std::vector<int32_t> told_stale_lately() const;
  // The time when the oldest request in hand of this generation's threads began; 0: no thread has one in
  // hand.
  uint64_t oldest_request_ns() const;

  // --- open handles ---
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
  void for_each_handle(const std::function<void(const OpenHandle&)>& visit);

  // --- backing ids ---
  Result<void> backed(const HeldBacking& backing) EXCLUDES(mutex_);
  void giving_back(int32_t id) EXCLUDES(mutex_);  // the id is about to be closed
  void given_back(int32_t id) EXCLUDES(mutex_);
  // `closing`: the id is about to be closed, or is closed already.
  void for_each_backing(const std::function<void(const HeldBacking&, bool closing)>& visit);
  int32_t highest_backing() const;

  // --- inodes without a name ---
  Result<uint32_t> keep(const KeptInode& kept);
  void let_go(uint32_t place);
  std::vector<std::pair<uint32_t, KeptInode>> kept();
  // The budget of this process; a successor charges the descriptors that it takes over anew.
  DescriptorBudget& descriptors() { return descriptors_; }

 private:
  static constexpr uint64_t kBeatToCome = UINT64_MAX;
  struct Layout;
  struct HandleRecord;
  struct BackingRecord;
  struct KeptRecord;
  Survivors(UniqueFd memory, Layout* layout);
  static Result<Layout*> map(int memory);

  UniqueFd memory_;
  DescriptorBudget descriptors_;
  Layout* layout_ = nullptr;
  std::unique_ptr<SurvivorTable<HandleRecord>> handles_;
  std::unique_ptr<SurvivorTable<BackingRecord>> backings_;
  std::unique_ptr<SurvivorTable<KeptRecord>> kept_;
  Mutex mutex_;
  std::unordered_map<int32_t, uint32_t> place_of_backing_ GUARDED_BY(mutex_);
};

}  // namespace kvcachefs
