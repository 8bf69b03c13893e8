// A pool: one budget of memory, one policy, one name tree. It knows its entries (EntryTable), what may leave
// (Candidates) and whose memory it is (MemoryArena); it knows nothing of FUSE. Any thread. Functions on
// inodes fail with ESTALE when the inode is gone, which is what an eviction looks like to who comes late.
//
// The order of things where they can meet:
//   - A name of an inode changes (unlink, rename, link, discard) only with the inode's shard held, so a
//   discard cannot remove a name that has just become another file's.
//   - An open counts itself under the shard before it opens; a discard checks the count and takes the F_WRLCK
//   lease under the shard. So no open of the daemon ever runs into a lease.
#pragma once

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "alloc/memory_arena.h"
#include "alloc/numa_topology.h"
#include "base/mutex.h"
#include "tier/away_disk.h"
#include "tier/candidates.h"
#include "tier/copy_mark.h"
#include "tier/counters.h"
#include "tier/disk_tier.h"
#include "tier/entry_size.h"
#include "tier/entry_table.h"
#include "tier/kernel_side.h"
#include "tier/numa_survey.h"
#include "tier/pool_options.h"
#include "tier/pool_reports.h"
#include "tier/residency.h"
#include "tier/room.h"
#include "tier/spill_orders.h"

namespace kvcachefs {

// A directory to work in: borrowed for the pool's root, which most clients' names are in, owned otherwise.
struct Directory {
  int fd = -1;
  UniqueFd owned;
};

class Pool final : private Residency {
 public:
  struct Surroundings {
    std::string arena_path;
    const NumaTopology* topology = nullptr;
    BackingStore* backing_store = nullptr;
    DiscardListener* listener = nullptr;
    Wakeup* evictor = nullptr;
    unsigned cores = 1;
    Survivors* survivors = nullptr;  // none: nothing outlives this process
    // Its options are others now: they are written down for a successor.
    std::function<Result<void>()> options_changed = [] { return Result<void>(); };
  };

  static Result<std::shared_ptr<Pool>> create(uint16_t number, const PoolOptions& options,
                                              const Surroundings& surroundings);
  // The pool whose memory a process that died has left, as its survivors tell of it (pool_adopt.cc). A disk
  // tier is attached afterwards (attach_adopted_disk).
  static Result<std::shared_ptr<Pool>> adopt(uint16_t number, const PoolOptions& options,
                                             const Surroundings& surroundings);
  Pool(uint16_t number, const PoolOptions& options, const Surroundings& surroundings, MemoryArena arena);
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() override;

  uint16_t number() const { return number_; }
  const std::string& name() const { return name_; }
  uint64_t root_ino() const { return arena_.tree().ino; }
  const std::string& arena_path() const { return arena_.path(); }
  PoolCounters& counters() { return counters_; }

  // --- settings (pool_settings.cc) ---
  PoolOptions options() const EXCLUDES(settings_mutex_);
  // Shrinking evicts what is over; EBUSY when what cannot be evicted is more, and the size is then as before.
  Result<void> set_size(uint64_t size_bytes);
  Result<void> set_size_max(uint64_t size_max_bytes);  // EINVAL below the size
  Result<void> set_policy(std::string_view name);
  Result<void> set_watermarks(Watermarks watermarks);
  Result<void> set_entry_size(uint64_t entry_size_bytes);
  Result<void> set_pinned_max(unsigned percent, Authority authority);  // an owner can only lower it: EPERM
  uint64_t expected_entry_bytes() const;
  uint64_t learned_entry_bytes() const;  // within what a guess may cost; 0: nothing yet

  // --- insight (pool_insight.cc) ---
  PoolUsage usage() const;
  NumaSurvey& numa_survey() { return numa_survey_; }
  ArenaUsage inode_usage() const { return arena_.usage(); }
  // Entries of one shard; shards are numbered from 0, and the answer is empty past the last.
  static constexpr size_t kListingShards = EntryTable::kShards;
  std::vector<EntryListing> list_entries(size_t shard);

  // --- inodes (pool_inodes.cc) ---
  Result<Directory> directory(uint64_t ino);
  Result<UniqueFd> open_inode(uint64_t ino, int flags);
  Result<struct stat> attributes(uint64_t ino);
  Result<void> set_times(uint64_t ino, const std::array<timespec, 2>& times);  // as utimensat(2) takes them
  // The kernel learns of an inode; `attributes` gets the daemon's own reservation taken out of its blocks.
  Result<void> looked_up(sys::Handle handle, struct stat& attributes);
  void forget(uint64_t ino, uint64_t lookups);
  uint32_t generation_of(uint64_t ino);  // 0 for an inode that is not known
  void looked_for_nothing() { count(counters_.lookups_missed); }

  // --- names (pool_names.cc): the system call and what follows from it for the entries ---
  Result<void> remove(int directory, const char* name, bool is_directory);
  Result<void> rename(int from, const char* old_name, int to, const char* new_name, unsigned flags);
  Result<void> link(uint64_t ino, int directory, const char* name);
  // A regular file that the caller has just made, open or (mknod) not.
  struct Created {
    int fd;
    uint64_t ino;
    uint32_t generation;
    bool open;
    bool writer;
    bool named;  // false: O_TMPFILE
    std::string_view name;
    uint64_t reserved_end;
    int node;
  };
  Result<int32_t> created(const Created& file);  // the backing when open
  // Removes an empty file, not open, that a process that died has made and that nobody was told of.
  void undo_create(int directory, const char* name);

  // A directory or other inode without content has been made: it is kept as entries are.
  void made(uint64_t ino, int directory, const char* name);
  void attributes_changed(uint64_t ino);                      // mode, owner, times or xattrs
  void look_again(uint64_t directory_ino, std::string name);  // the kernel is to: it may be wrong about it

  // --- open files (pool_files.cc) ---
  struct Opened {
    int32_t backing = -1;
    bool from_disk = false;  // read() serves it, from the disk while there is no memory for it
  };
  // kColdEntry: it has to be promoted first, or, for readers and if there was no memory for that, opened
  // from_disk. `client` tells one client's opens from another's.
  Result<Opened> begin_open(uint64_t ino, bool writer, uint64_t client, bool from_disk = false);
  // The answer to an open that a process that died has counted, and that the kernel was not told of.
  Result<Opened> adopted_open(uint64_t ino, bool from_disk);
  void end_open(uint64_t ino, bool writer, bool from_disk = false);
  // A writer closed a descriptor, perhaps not its last: what is stored may be whole.
  void flushed(uint64_t ino);
  // I/O that comes to the daemon. In a full pool a write waits for the evictor, as a create does.
  Result<size_t> read(uint64_t ino, std::span<char> bytes, uint64_t offset);
  Result<size_t> write(uint64_t ino, std::span<const char> bytes, uint64_t offset);
  // Into a file of this pool, in every mode; waits as a write does. Both by descriptor.
  Result<size_t> copy_range(int from, uint64_t from_offset, int to, uint64_t to_offset, size_t bytes);
  Result<void> truncate(uint64_t ino, uint64_t size_bytes);
  Result<void> allocate(uint64_t ino, int mode, uint64_t offset, uint64_t length);

  // --- the disk tier (pool_disk.cc, pool_spill.cc, pool_promote.cc, pool_scrub.cc, pool_restore.cc) ---
  // Once; what the catalog has comes back, cold. Without other users of the pool yet, or with entries that
  // then become the tier's too; meanwhile directories and what has come back can't be renamed or removed
  // (EBUSY).
  Result<void> attach_disk(std::unique_ptr<BlockDevice> device, std::unique_ptr<Catalog> catalog,
                           uint64_t unit_bytes, const PoolOptions& spill);
  // The same for one that was adopted: the marks of its files say what the disk has of them, and the catalog
  // is made to say so, too.
  Result<void> attach_adopted_disk(std::unique_ptr<BlockDevice> device, std::unique_ptr<Catalog> catalog,
                                   uint64_t unit_bytes, const PoolOptions& spill);
  // Instead, of one that was adopted and whose disk cannot be had (tier/away_disk.h).
  void go_on_without_disk(const PoolOptions& spill, const Error& why);
  AwayDisk* away() const { return away_.get(); }
  // Its catalog is being read while it serves: names appear.
  bool restoring() const { return restoring_; }
  DiskTier* disk() const { return disk_.load(std::memory_order_acquire); }
  Durability durability() const { return durability_.load(std::memory_order_relaxed); }
  // Waiters are called from a worker's thread, or from this call's if nothing has to be waited for or nobody
  // is left to wait for (ESHUTDOWN); with no lock held.
  void promote(uint64_t ino, Waiter waiter);
  void read_from_disk(uint64_t ino, uint64_t offset, size_t size, Promoter::ReadWaiter waiter);
  // When the entry, or all that is closed in the directory (the root: in the pool), is in the catalog.
  void sync(uint64_t ino, Waiter waiter);
  void sync_directory(uint64_t ino, Waiter waiter);
  // When what the name has become, by a rename, is durable with it.
  void sync_name(int directory, const char* name, Waiter waiter);
  void when_committed(Waiter waiter);
  void run_near_disk();  // the calling thread, where the disk is
  // EBUSY while one runs.
  Result<void> start_scrub(uint64_t rate_bytes_per_s);
  Result<void> stop_scrub();
  ScrubProgress scrub_progress() const;
  // Before the end: what is closed is asked to the disk, unless only pressure may send it there.
  void spill_all();
  SpillUsage spill_usage() const;
  Result<void> set_durability(Durability durability);
  Result<void> set_admission(Admission admission);
  Result<void> set_auto_prefetch(bool on);
  Result<void> prefetch(std::span<const PrefetchOrder> orders);
  PrefetchProgress prefetch_progress() const;

  // --- facts of an entry that xattrs show (pool_facts.cc) ---
  struct Facts {
    bool is_file = false;
    std::string tier;
    std::string checksum;  // hexadecimal; empty: the disk has no true copy
    int node = 0;
    uint64_t hits = 0;
    uint64_t version = 0;
    bool pinned = false;
  };
  Result<Facts> facts(uint64_t ino);
  Result<void> set_pinned(uint64_t ino, bool pinned);  // ENOSPC beyond pinned_max
  void set_priority(uint64_t ino, int priority);

  // --- capacity (pool_space.cc) ---
  struct Reservation {
    uint64_t end = 0;
    int node = 0;
  };
  // Claims the expected size of a new entry on the caller's node, waiting for the evictor at most
  // kReserveWait. Without room for it the file stays unreserved; ENOSPC only if nothing at all is free. Holds
  // no lock while it waits.
  Result<Reservation> reserve(int fd, int caller_thread);
  // One round of background work; true when it should come again at once or within a millisecond.
  bool tidy();
  // Changes whenever bytes have come or gone: tells writers at work from files that are merely open.
  uint64_t activity() const;
  EvictResult evict_now(EvictOrder order);
  EvictResult last_evict() const EXCLUDES(settings_mutex_);

  // --- life ---
  Result<void> retire();  // takes the empty tree away: ENOTEMPTY if it is not
  bool retired() const { return retired_.load(std::memory_order_acquire); }
  bool forgotten();  // no inode of it is known to the kernel any more

 private:
  static constexpr int kAheadPriority = -1000;  // below all that is ordered
  enum class Attempt { kFreed, kSpilling, kBusy, kNothing };
  struct Effort {
    bool even_fresh = false;
    bool even_recent = false;
    bool even_unspilled = false;  // discards what the disk is too slow for
    bool disk_is_busy = false;    // and is asked for nothing more
    bool clean_alone = false;     // for the disk's sake
  };

  // Keeps the sums over entries true across a change of one: takes what it contributed before, adds what it
  // does after. Not to be nested for one entry.
  class Accounted {
   public:
    Accounted(Pool& pool, const Entry& entry);
    ~Accounted();
    Accounted(const Accounted&) = delete;
    Accounted& operator=(const Accounted&) = delete;
    void count_pin();  // at once

   private:
    Pool& pool_;
    const Entry& entry_;
    uint64_t evictable_, pinned_, bytes_;
    size_t tier_;
    bool counted_;
  };

  // What users see of a file, from what the tmpfs says.
  static void show(EntryTable::Shard& shard, const Entry& entry, struct stat& attributes)
      REQUIRES(shard.mutex);
  // The daemon has just changed the file: users go on to see the ctime of before.
  static void hide_ctime(Entry& entry, const timespec& before, int fd);
  Result<void> back(Entry& entry);  // gives it a backing if it has none
  void count_direct(EntryTable::Shard& shard, Entry& entry) REQUIRES(shard.mutex);
  sys::Handle handle_of(const Entry& entry) const { return {entry.policy.ino, entry.generation}; }
  // The descriptor that daemon I/O on an open file goes through.
  Result<int> io_descriptor(uint64_t ino);
  void io_done(uint64_t ino);                       // orders the I/O before the close of its descriptor
  void settle(Entry& entry, Accounted& accounted);  // its last writer has closed it
  // Gives back the reservation, returns the size. While nobody can write: what comes between its look at the
  // size and its punch would be lost. (The kernel has no write on its way while it asks for an fallocate.)
  uint64_t trim(Entry& entry, int fd);
  // EDQUOT where its owner or the pool has as many already (tier/descriptor_budget.h).
  Result<KeptByDescriptor> keep_inode(sys::Handle handle, UniqueFd fd);
  // Before the last name goes: nothing if nobody would miss it.
  Result<KeptByDescriptor> keep_nameless(const Entry* entry, sys::Handle handle, int directory,
                                         const char* name);
  class Adopter;
  void gone(EntryTable::Shard& shard, Entry& entry, KeptByDescriptor keep)
      REQUIRES(shard.mutex);  // its last name went
  Attempt evict_one(Effort effort, EvictResult& result);
  Attempt discard(EntryTable::Shard& shard, Entry& entry, EvictResult& result) REQUIRES(shard.mutex);
  Attempt drop_memory(EntryTable::Shard& shard, Entry& entry, EvictResult& result)
      REQUIRES(shard.mutex);  // of a clean one
  bool discard_cold(EntryTable::Shard& shard, Entry& entry) REQUIRES(shard.mutex);
  class Restorer;
  class Reconciler;
  using KnownNodes = std::unordered_map<uint64_t, sys::Handle>;  // by the catalog's number
  Result<void> make_disk(std::unique_ptr<BlockDevice> device, std::unique_ptr<Catalog> catalog,
                         uint64_t unit_bytes, const PoolOptions& spill);
  void use_disk(const PoolOptions& spill);
  void adopt_mark(uint64_t ino, const std::string& name, CopyMark mark);
  void name_disk(const PoolOptions& spill);
  Result<void> begin_restoring(const PoolOptions& spill);
  Result<void> restore(DiskTier& tier, const KnownNodes& there);
  // `unfinished`: what the catalog has and the tree does not is still to be restored. The nodes that the tree
  // has.
  Result<KnownNodes> reconcile(DiskTier& tier, bool unfinished);
  bool root_is_known();  // to the kernel
  // With its shard held: what the catalog has, or has several names, while the catalog cannot be told of any.
  bool keeps_its_names(const Entry* entry, nlink_t names) const;
  // Of what was there before the disk tier. `with_links`: a file's several names too, which only then nobody
  // has told of.
  void tell_names(bool with_links);
  std::unordered_set<uint64_t> end_restoring() EXCLUDES(settings_mutex_);
  bool goes_to_disk_first(Entry& entry, Effort effort);
  void make_disk_room();
  void publish(Entry& entry);
  bool is_supervised() const {
    return surroundings_.survivors != nullptr && surroundings_.survivors->supervised();
  }
  // Writes down what is true of its copy on the disk, for a successor; nothing where there can be none.
  Result<void> mark_copy(const Entry& entry, int fd, CopyMark::State state, const CatalogContent* content);
  void mark_dirty(const Entry& entry);
  void became_dirty(Entry& entry);  // somebody may write it now; the caller has it Accounted
  void queue_spill(Entry& entry, bool urgent = false);
  // Its size if the disk lacks it. Who waits for the copy then asks the spiller for it when he has given up
  // the shard, since he may be answered at once.
  std::optional<uint64_t> claim_copy(Entry& entry);
  bool disk_takes_more() const;
  bool wants_spill(Entry& entry);
  bool is_admitted(Entry& entry);
  void open_ahead(uint64_t ino, uint64_t client);

  std::expected<SpillTask, Refusal> begin_spill(uint64_t ino, bool urgent) override;
  bool end_spill(const SpillTask& task, Result<CatalogContent> content, bool written) override;
  bool take_copy(EntryTable::Shard& shard, Entry& entry, const SpillTask& task, CatalogContent content,
                 bool written) REQUIRES(shard.mutex);
  void want_disk_room(uint64_t bytes) override;
  std::expected<PromoteTask, Refusal> begin_promote(uint64_t ino) override;
  void end_promote(const PromoteTask& task, const Result<void>& outcome, bool asked_for) override;
  std::vector<uint64_t> copied_entries() override;
  std::optional<CatalogContent> begin_verify(uint64_t ino) override;
  bool end_verify(uint64_t ino, const CatalogContent& content, int error) override;
  void report_bad_copy(const CatalogContent& content, int code, const char* remedy);
  void report_refusal(const Error& error);
  Room& memory_room() override { return room_; }
  uint64_t memory_bytes() const override { return size_bytes_; }
  void wake_evictor() override { surroundings_.evictor->wake(); }
  bool remove_names(const Entry& entry, int fd);
  bool disk_is_busy(uint64_t pressure_bytes);
  bool make_room();           // true: there is more to do
  uint64_t pressure_bytes();  // how much must go now; 0: nothing
  void publish_grown();
  void retry_parked(bool even_recent);
  bool claim(int fd, uint64_t bytes);  // waits for the evictor, with no lock held
  void reserve_again(uint64_t ino, uint64_t bytes);
  bool extend_reservations();
  uint64_t extend_reservation(
      uint64_t ino);  // bytes it may grow by before the next round; 0: it keeps within
  void add_writer(uint64_t ino) EXCLUDES(writers_mutex_);
  void drop_writer(uint64_t ino) EXCLUDES(writers_mutex_);

  const uint16_t number_;
  const std::string name_;
  const Surroundings surroundings_;
  MemoryArena arena_;
  EntryTable table_;
  Candidates candidates_;
  EntrySizeLearner learner_;
  PoolCounters counters_;
  Room room_;

  std::atomic<uint64_t> size_bytes_;
  std::atomic<uint64_t> evictable_bytes_{0};
  std::atomic<uint64_t> pinned_bytes_{0};
  std::atomic<uint64_t> files_{0};
  std::atomic<uint64_t> open_files_{0};
  std::atomic<bool> retired_{false};
  std::atomic<bool> evicting_{false};  // between the high and the low watermark
  // What writers that outgrew their reservation may write before the evictor looks again.
  std::atomic<uint64_t> growth_bytes_{0};

  // Of the disk tier.
  std::unique_ptr<AwayDisk> away_;  // set before anybody else uses the pool
  std::unique_ptr<DiskTier> owned_disk_;
  std::atomic<DiskTier*> disk_{nullptr};
  std::atomic<bool> restoring_{false};  // ends after disk_ is there
  std::atomic<Durability> durability_{Durability::kNone};
  std::atomic<bool> auto_prefetch_{true};
  std::atomic<uint64_t> disk_wanted_bytes_{0};
  std::array<std::atomic<uint64_t>, 3> tier_entries_{};
  std::array<std::atomic<uint64_t>, 3> tier_bytes_{};
  struct PrefetchCounters {
    std::atomic<uint64_t> queued{0}, done{0}, failed{0}, dropped{0}, bytes{0};
  };
  const std::shared_ptr<PrefetchCounters> prefetches_ = std::make_shared<PrefetchCounters>();

  std::vector<NodeUsage> numa_usage();  // looks at every entry
  NumaSurvey numa_survey_{[this] { return numa_usage(); }};

  mutable Mutex settings_mutex_;
  PoolOptions options_ GUARDED_BY(settings_mutex_);
  EvictResult last_evict_ GUARDED_BY(settings_mutex_);
  // Inodes whose mode, owner, times or xattrs have changed while restoring_.
  std::unordered_set<uint64_t> changed_meanwhile_ GUARDED_BY(settings_mutex_);

  Mutex pins_mutex_;  // held from the look at pinned_bytes_ until a new pin is in it

  Mutex writers_mutex_;
  std::unordered_set<uint64_t> writers_ GUARDED_BY(writers_mutex_);

  // Victims found mapped or just looked up, to be tried again a little later.
  struct Parked {
    uint64_t ino;
    uint64_t until_ms;
    bool recent;   // only because it has just been looked up
    bool closing;  // whoever has it may have closed it already
  };
  void park(Entry& entry, bool recent) EXCLUDES(parked_mutex_);
  bool more_to_come() EXCLUDES(parked_mutex_);
  Mutex parked_mutex_;
  std::deque<Parked> parked_ GUARDED_BY(parked_mutex_);
  int unparking_ GUARDED_BY(parked_mutex_) =
      0;  // threads that have taken some out and not given them back yet
};

}  // namespace kvcachefs
