// The fixture of the unit tests of a pool's parts: a tmpfs of 16 MiB, no kernel, and the parts that
// tier/pool/pool.h has up to the one under test. attach_disk() adds a disk tier on a disk in memory; its
// threads are work_until() and commit(). What a test looks at of an entry, and what it changes of one without
// a verb, goes through this file. It needs root. One thread; failures are recorded with GoogleTest.
#pragma once

#include <fcntl.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/arena_test.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/idle_residency.h"
#include "tier/pool/disk_requests.h"
#include "tier/pool/evictor.h"
#include "tier/pool/inodes.h"
#include "tier/pool/insight.h"
#include "tier/pool/open_files.h"
#include "tier/pool/pool_observers.h"
#include "tier/pool/pool_residency.h"
#include "tier/pool/prefetcher.h"
#include "tier/pool/recovery.h"
#include "tier/pool/settings.h"
#include "tier/pool/tree.h"

namespace kvcachefs::test {

// It has a descriptor of each open file, as the kernel or daemon I/O would have.
struct HeldFiles final : BackingStore {
  Result<int32_t> acquire(int fd, PoolInode inode) override;
  void giving_back(int32_t backing) override { EXPECT_TRUE(held.contains(backing)); }
  void give_back(int32_t backing) override { EXPECT_EQ(held.erase(backing), 1u); }
  bool needs_write_access() const override { return daemon_io; }

  int error = 0;                                          // an errno: no open gets a backing
  bool daemon_io = false;                                 // else as with passthrough
  std::map<int32_t, std::pair<UniqueFd, uint64_t>> held;  // with the inode, by the backing
};

// It keeps what the kernel is told.
struct Heard final : DiscardListener {
  struct Name {
    uint64_t parent_ino = 0;
    uint64_t ino = 0;
    std::string name;
    bool operator==(const Name&) const = default;
  };
  void changed(uint16_t pool, uint64_t ino) override {
    changed_pools.insert(pool);
    changes.push_back(ino);
  }
  void discarded(uint16_t, uint64_t parent_ino, uint64_t ino, std::string name) override {
    gone.push_back({parent_ino, ino, std::move(name)});
  }
  void appeared(uint16_t, uint64_t parent_ino, std::string name) override {
    come.push_back({parent_ino, 0, std::move(name)});
  }
  void let_go(uint16_t, std::vector<uint64_t> inodes, Told its) override {
    to_let_go.insert(to_let_go.end(), inodes.begin(), inodes.end());
    told = std::move(its);
  }
  void drop_name(uint16_t, uint64_t parent_ino, uint64_t ino, std::string name, Told its) override {
    to_drop.push_back({parent_ino, ino, std::move(name)});
    told = std::move(its);
  }
  bool can_let_go() const override { return lets_go; }
  bool is_behind(uint16_t) override { return behind; }
  void wait_until_told(std::chrono::milliseconds) override { ++waits; }

  std::vector<uint64_t> changes;
  std::set<uint16_t> changed_pools;
  std::vector<Name> gone, come, to_drop;
  std::vector<uint64_t> to_let_go;
  Told told;  // of the last that asked
  bool lets_go = true;
  bool behind = false;  // the kernel has not heard of what was queued
  int waits = 0;
};

// While it lives, this thread cannot write or remove a mark: it has not the capability for trusted xattrs.
class NoMarks {
 public:
  NoMarks();
  ~NoMarks();
  NoMarks(const NoMarks&) = delete;
  NoMarks& operator=(const NoMarks&) = delete;
};

// What tests look at of an entry.
struct EntryState {
  bool exists = false;
  Entry::Stage stage = Entry::Stage::kOther;
  Entry::Tier tier = Entry::Tier::kDirty;
  uint32_t opens = 0;
  uint32_t writers = 0;
  uint32_t opens_from_disk = 0;
  uint64_t lookups = 0;
  uint64_t reserved_end = 0;
  uint64_t charged_bytes = 0;
  uint32_t version = 0;
  uint32_t first_version = 0;
  uint32_t epoch = 0;
  uint32_t hits = 0;
  uint64_t node_id = 0;
  bool removed = false;
  bool parked = false;
  bool pinned = false;
  bool promoting = false;
  bool spilling = false;
  bool spill_queued = false;
  bool spill_urgent = false;
  bool synced_nameless = false;
  bool emptied = false;
  bool missed_in = false;
  bool sought = false;
  bool prefetched = false;
  bool guessed = false;
};

// The errno of a call that failed; 0: it did not.
template <class T>
int code_of(const Result<T>& result) {
  return result ? 0 : result.error().code;
}

class PoolPartsTest : public ArenaTest {
 protected:
  static constexpr uint64_t kMiB = uint64_t{1} << 20;
  static constexpr uint64_t kBlock = 4096;
  static constexpr uint64_t kPoolBytes = 16 * kMiB;
  static constexpr uint64_t kUnitBytes = 8192;  // of the disk
  static constexpr uint16_t kPool = 3;

  // The last part that is made, in the order of tier/pool/pool.h.
  enum class Upto {
    kDisk,
    kMarks,
    kInsight,
    kInodes,
    kTree,
    kPrefetcher,
    kResidency,
    kRequests,
    kFiles,
    kEvictor,
    kSettings,
    kRecovery
  };
  explicit PoolPartsTest(Upto last) : last_(last) {}
  void SetUp() override;
  void TearDown() override;

  void supervise();  // a successor may come from now on; before attach_disk()
  void attach_disk(Durability durability = Durability::kNone, uint64_t units = 64);
  // The disk is away; a call that needs it waits as long as the patience.
  AwayDisk& lose_disk(std::chrono::milliseconds patience);

  // --- files, as clients make them past the daemon ---
  int root() const { return arena_->tree_fd(); }
  sys::Handle handle(const std::string& name) const;
  uint64_t ino(const std::string& name) const { return handle(name).ino; }
  struct stat status(const std::string& name) const;
  bool is_there(const std::string& name) const {
    return ::faccessat(root(), name.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0;
  }
  void write(const std::string& name, const std::string& bytes, uint64_t offset = 0) const;
  std::string content(const std::string& name) const;
  void await_later_ctime(const std::string& name) const;  // until a change now has a later one than the file
  // In place of the evictor's thread, for the next caller that waits for room: what fill_up() has taken goes,
  // or the caller is told that nothing can.
  std::thread answer_next(Room::Answer answer);
  uint64_t fill_up();  // takes all memory that is free; answers how much

  // --- entries ---
  // The entry of a new file that a client has open for writing. The kernel does not know it.
  uint64_t create(const std::string& name);
  // The same with no name (O_TMPFILE), as long as the descriptor is open.
  struct Nameless {
    uint64_t ino = 0;
    UniqueFd file;
  };
  Nameless create_nameless();
  // It was closed: not renamed yet, or a candidate for eviction.
  uint64_t store_fresh(const std::string& name, const std::string& bytes = std::string(kBlock, 'x'));
  uint64_t store(const std::string& name, const std::string& bytes = std::string(kBlock, 'x'));
  uint64_t make_known_directory(const std::string& name);  // the kernel knows it, by one lookup
  EntryState state(uint64_t ino);
  EntryTable::Shard& shard(uint64_t ino) { return entries_.shard(ino); }
  // Nobody else uses the entries, so that no shard is locked.
  Entry& entry(uint64_t ino) NO_THREAD_SAFETY_ANALYSIS;
  bool is_kept(uint64_t ino) NO_THREAD_SAFETY_ANALYSIS { return shard(ino).kept.contains(ino); }
  bool is_held(uint64_t ino) NO_THREAD_SAFETY_ANALYSIS { return entry(ino).disk.held() != nullptr; }
  std::optional<CatalogContent> copy(uint64_t ino) NO_THREAD_SAFETY_ANALYSIS;
  static Entry::Tier tier_of(const Entry& entry) { return entry.tier; }
  struct stat shown_status(const std::string& name);  // with the ctime that users see
  void set_lookups(uint64_t ino, uint64_t lookups);
  void set_looked_up(uint64_t ino, uint64_t ms_ago = 0);
  void set_adopted(uint64_t ino);  // how often the kernel looked it up is not known
  void set_first_version(uint64_t ino, uint32_t version);
  void set_node_id(uint64_t ino, uint64_t id);
  void set_synced_nameless(uint64_t ino);
  void set_wants_reservation(uint64_t ino);
  void set_flushed(uint64_t ino);
  void set_emptied(uint64_t ino);
  void set_spill_queued(uint64_t ino, bool queued);
  void keep_ctime_of(uint64_t ino);  // as before a change of the daemon's own
  // A client's open and close, as the entry sees them.
  void open_entry(uint64_t ino, OpenMode mode = {}) {
    entries_.opened(entry(ino), mode.writer, mode.from_disk);
  }
  void close_entry(uint64_t ino, OpenMode mode = {});
  void close_with_holes(uint64_t ino);  // its last writer's, of a file that has got more memory than it needs

  // --- the evictor ---
  // One round, or several if the machine was so busy that the evictor cut the first short.
  bool tidy();
  // A round for a caller that needs a block of a full pool, and what it is told, if anything.
  std::optional<Room::Answer> tidy_for(Room::Whose whose);
  bool more_to_tidy() const { return more_to_tidy_; }  // after the last such round

  // --- the disk ---
  DiskTier& tier() { return *disk_->tier(); }
  CatalogContent put(const std::string& bytes);  // a content on the disk
  void make_clean(uint64_t ino);
  void hold_on_disk(uint64_t ino);  // as for the first open that is served from there
  void make_cold(uint64_t ino);
  // The spiller, the promoter and the catalog's log work until this is so. False: it is not to be had.
  bool work_until(const std::function<bool()>& done);
  void commit() { tier().store->log().step(std::chrono::milliseconds(0)); }
  std::optional<CatalogNode> node(uint64_t id);
  // The number that the catalog has under a name in the root, after all that it was told; 0: none.
  uint64_t catalogued(const std::string& name);
  // What the last waiter was told, if not an errno.
  static constexpr int kToldWell = 0, kToldNothing = -1;
  Waiter waiter();
  int told() const { return *told_; }

  const Upto last_;
  PoolOptions options_;  // set before SetUp()
  HeldFiles backing_;
  Heard heard_;
  Wakeup wakeup_;
  NumaTopology topology_{{{.id = 0}}, [](int) { return uint64_t{1} << 40; }};
  std::unique_ptr<Survivors> survivors_;
  PoolSurroundings surroundings_{.arena_path = {},
                                 .topology = &topology_,
                                 .backing_store = &backing_,
                                 .listener = &heard_,
                                 .evictor = &wakeup_,
                                 .on_several_threads = &on_three_threads};
  PoolCounters counters_;
  CountingObserver counting_{counters_};
  Entries entries_{"lru"};
  NameLimits limits_{options_, entries_.sums()};
  const std::string name_ = "p";
  FaultyDisk* device_ = nullptr;

  std::optional<Capacity> capacity_;
  std::optional<Reservations> reservations_;
  std::optional<Parked> parked_;
  std::optional<PoolDisk> disk_;
  std::optional<CopyMarks> marks_;
  std::optional<Lifetimes> lifetimes_;
  std::optional<Insight> insight_;
  std::optional<Inodes> inodes_;
  std::optional<Tree> tree_;
  std::optional<Prefetcher> prefetcher_;
  IdleResidency idle_;  // the disk tier's, where there is no other
  std::optional<PoolResidency> residency_;
  std::optional<DiskRequests> requests_;
  std::optional<OpenFiles> files_;
  std::optional<Evictor> evictor_;
  std::optional<Settings> settings_;
  std::optional<Recovery> recovery_;

 private:
  bool more_to_tidy_ = false;
  std::shared_ptr<int> told_ = std::make_shared<int>(kToldNothing);
};

}  // namespace kvcachefs::test
