// What outlives a serving process that dies: one piece of shared memory that the supervisor has made and
// every serving child maps. A child writes down here what the kernel holds of it and what cannot be found out
// again from the pools' memory: the connection, its INIT request, the pools, which request opened which
// handle, backing ids, and the descriptors that keep nameless inodes alive (the descriptors themselves lie in
// the table that child and supervisor share, daemon/supervisor.h).
//
// A process may be killed between any two instructions, so each fact is one record that becomes true with one
// store of its key, made when all else of it is there, and false with another. Orders that callers keep:
//   - a handle is written down before the kernel is told of it, and taken out before the open it stands for
//     is given up; so open files are counted from the handles alone;
//   - an inode is kept before its last name goes.
// Any thread. Failure: ENFILE when a table is full; where nobody supervises, nothing is kept and nothing
// fails.
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

// Where an inode is, as fs/nodeid.h numbers it.
struct PoolInode {
  uint16_t pool = 0;
  uint64_t ino = 0;
  bool operator==(const PoolInode&) const = default;
};

struct OpenHandle {
  PoolInode inode;
  uint64_t unique = 0;  // of the request that opened it
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

// A table of records in shared memory: the places that are free are this process's own knowledge.
template <class Record>
class SurvivorTable {
 public:
  // As many as the daemon may have descriptors; one is some tens of bytes, and takes memory once it is used.
  static constexpr uint32_t kPlaces = 1 << 20;

  // `places` and `used` (how many have ever been taken) are of the shared memory.
  SurvivorTable(Record* places, std::atomic<uint32_t>& used) : places_(places, kPlaces), used_(used) {}

  // What others have left there stays taken.
  void find_free() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    free_.clear();
    for (uint32_t place = used_; place-- > 0;)
      if (places_[place].key == 0) free_.push_back(place);
  }
  // A free place, to be filled in and then published by storing its key.
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

  Survivors();  // nobody supervises
  static Result<std::unique_ptr<Survivors>> create();
  // What another program, of an older or newer version, has created. EPROTONOSUPPORT for another format.
  static Result<std::unique_ptr<Survivors>> open(UniqueFd memory);
  static uint32_t format();  // changes with the layout
  ~Survivors();
  Survivors(const Survivors&) = delete;
  Survivors& operator=(const Survivors&) = delete;

  bool supervised() const { return layout_ != nullptr; }
  int memory_fd() const { return memory_.get(); }

  // Where it is mounted, as it was found: to look at that again would wait for who is to serve it.
  Result<void> set_mount_point(std::string_view path);
  std::string mount_point() const;

  // --- upgrades: the supervisor notes how one ended, whoever asked for it reads that ---
  struct Upgrades {
    uint32_t done = 0;
    uint32_t refused = 0;
    std::string reason;  // of the last that was refused
  };
  void upgraded();
  void upgrade_refused(std::string_view reason);
  Upgrades upgrades() const;

  // --- the connection ---
  // From here on a successor can take over: the device is open in the table of descriptors, and the kernel's
  // INIT request was this.
  void connected(int device_fd, std::span<const std::byte> init);
  std::optional<int> device_fd() const;  // none: nothing to take over
  // All descriptors are others, and of those that kept nameless inodes none is left: a supervisor that died
  // had them.
  void moved(int device_fd);
  std::span<const std::byte> init() const;
  void serving(uint64_t since_ns);    // it has taken over, and serves
  uint64_t serving_since_ns() const;  // 0: not yet
  void ending();                      // it has been asked to, and may take long over it
  void beat(uint64_t at_ns);          // then all its threads got on
  uint64_t last_beat_ns() const;
  // By each child first of all; how many there were before it.
  uint32_t begin_generation() EXCLUDES(mutex_);
  // What is served lacks what a successor needs (a disk tier): who dies now is not replaced.
  void forbid_succession();
  bool may_succeed() const;

  // --- pools: their numbers and options, as text that the caller understands ---
  Result<void> set_pools(std::string_view text);
  std::string pools() const;

  // --- requests in hand ---
  // The calling thread begins with one; whether somebody before it has attempted it stays to be known.
  void begin_request(uint64_t unique, bool attempted);
  void end_request();  // it waits for the next
  void still_at_it();  // it gets on, or waits, with a bound of its own, for what others have to do first
  // What it asks for is possible, as was just looked at (the kernel has one change of a directory's names or
  // an inode's attributes at a time come here), and comes next: whoever is asked the same again may find it
  // done. By a thread that has no request, nothing.
  void attempt();
  bool was_attempted(uint64_t unique) const;
  // The same of a rename, which may be answered after its thread has had other requests: what the old name
  // and, for an exchange, the new one stand for.
  struct Rename {
    uint64_t unique = 0, first_ino = 0, second_ino = 0;
  };
  void attempt_rename(uint64_t first_ino, uint64_t second_ino);
  std::optional<Rename> attempted_rename(uint64_t unique) const;
  // A client's thread has been told ESTALE for the first time in a call (fs/stale_callers.h); those of
  // lately.
  void told_stale(int32_t thread);
  std::vector<int32_t> told_stale_lately() const;
  // When the one that a thread of this generation has had in hand for longest began; 0: none has any.
  uint64_t oldest_request_ns() const;

  // --- open handles ---
  // 0 where nobody supervises. A number is not used again for another open before 2^32 others.
  Result<uint64_t> opened(const OpenHandle& handle);
  void closed(uint64_t handle);  // one that is closed already stays so
  bool is_open(uint64_t handle);
  struct Opened {
    uint64_t handle = 0;
    PoolInode inode;
    bool from_disk = false;
  };
  std::optional<Opened> opened_by(uint64_t unique);  // never 0, which is nobody's
  void for_each_handle(const std::function<void(const OpenHandle&)>& visit);

  // --- backing ids ---
  Result<void> backed(const HeldBacking& backing) EXCLUDES(mutex_);
  void giving_back(int32_t id) EXCLUDES(mutex_);  // it is about to be closed
  void given_back(int32_t id) EXCLUDES(mutex_);
  // Those that are about to be closed come first.
  void for_each_backing(const std::function<void(const HeldBacking&, bool closing)>& visit);
  int32_t highest_backing() const;

  // --- inodes without a name ---
  Result<uint32_t> keep(const KeptInode& kept);
  void let_go(uint32_t place);
  std::vector<std::pair<uint32_t, KeptInode>> kept();
  // This process' own: a successor charges what it takes over anew.
  DescriptorBudget& descriptors() { return descriptors_; }

 private:
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
