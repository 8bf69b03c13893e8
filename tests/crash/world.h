// A machine to crash: one pool in real memory, a disk that fails as disks do and a catalog, and the steps of
// the daemon's threads, in an order drawn from a seed. One thread. step() throws Crash when the power goes.
// Throws Violation if a state is wrong, std::exception if the machine cannot be made.
//
// The crash model: at the given write, flush or transaction the disk loses power (tests/support/faulty_disk.h
// says which bytes are left), and the catalog gets nothing more. The tests of the catalog cover crashes of
// LMDB: here a transaction is there as a whole or not at all.
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/faulty_disk.h"
#include "tests/support/files.h"
#include "tier/pool/pool.h"

namespace kvcachefs::test {

struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct Crash {};

struct Cut {
  enum class Kind : uint8_t { kNever, kDisk, kBeforeCommit, kAfterCommit };
  Kind kind = Kind::kNever;
  uint64_t at = 0;  // the number of that write, flush or transaction from now, counted from 1
};

struct Discarded {
  uint64_t parent_ino = 0;
  uint64_t ino = 0;
  std::string name;
};

class World {
 public:
  static constexpr uint64_t kUnitBytes = 4096;

  struct Options {
    uint64_t seed = 1;
    uint64_t pool_bytes = 0;
    uint64_t disk_units = 0;
    Durability durability = Durability::kWriteback;
    Admission admission = Admission::kAll;
    std::string policy = "lru";
    FaultOdds odds = {};
    bool writable_backing = false;
  };

  // `directory` has to be empty, and on a fast file system.
  World(const Options& options, const std::string& directory);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  void start();  // the pool comes up with the content of the disk and the catalog
  // The process dies and another takes over: memory, disk and catalog stay, the process's knowledge does not,
  // and a waiter gets no answer any more. Writes on their way to the disk get there first. False: they did
  // not in time, and nothing has happened.
  bool take_over();
  void cut(Cut cut);
  void lose_power();     // at once, if the power has not gone yet; the pool is gone afterwards
  void bring_to_disk();  // all closed entries, as when the daemon ends

  Pool& pool() { return *pool_; }
  Survivors& survivors() { return *survivors_; }
  FaultyDisk& disk() { return disk_; }
  Catalog& catalog();
  bool crashed() const;
  bool disk_failed() const;  // the disk gets nothing more
  uint64_t commits() const { return commits_; }

  void step();  // one round of one thread, and a little time
  // pump() steps until `until` is true; false if that takes more steps than `steps_max`.
  bool pump(const std::function<bool()>& until, int steps_max = 4000);
  // quiesce() steps until no work is left; then the catalog has to be whole and exactly its space taken.
  void quiesce();
  void check_space();
  std::vector<Discarded> take_discarded();

 private:
  class Device;
  class CuttableCatalog;
  class Backing;
  class Listener;
  Result<std::vector<Extent>> commit(std::span<const CatalogChange> changes);
  PoolOptions pool_options() const;
  Pool::Surroundings surroundings();

  const Options options_;
  const std::string directory_;
  Random random_;
  FaultyDisk disk_;
  std::unique_ptr<Catalog> catalog_;
  std::unique_ptr<NumaTopology> topology_;
  std::unique_ptr<Backing> backing_;
  std::unique_ptr<Listener> listener_;
  Wakeup evictor_;
  std::unique_ptr<Survivors> survivors_;
  std::vector<std::shared_ptr<Pool>> dead_;  // of processes that died: their destructors must not run yet
  std::shared_ptr<Pool> pool_;
  Cut cut_;
  bool frozen_ = false;
  uint64_t commits_ = 0;
};

}  // namespace kvcachefs::test
