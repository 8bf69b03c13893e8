// A machine to crash: one pool of real memory, a disk that fails as disks do and a catalog, and the steps
// that the daemon's threads would make, in an order drawn by a seed. One thread. Throws Crash out of step()
// when the power goes, Violation where something is not as it must be, std::exception where the machine
// cannot be made.
//
// The crash model: at the given write, flush or transaction the disk loses power (tests/support/faulty_disk.h
// says what is left) and nothing more gets into the catalog. LMDB's own crashes are the catalog's tests'
// affair: here a transaction is in as a whole or not at all.
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/faulty_disk.h"
#include "tests/support/files.h"
#include "tier/pool.h"

namespace kvcachefs::test {

struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct Crash {};

struct Cut {
  enum class Kind : uint8_t { kNever, kDisk, kBeforeCommit, kAfterCommit };
  Kind kind = Kind::kNever;
  uint64_t at = 0;  // the how-manieth from now, counted from 1
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

  // `directory` is empty, and on a file system that is quick.
  World(const Options& options, const std::string& directory);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  void start();  // the pool comes up with what the disk and the catalog have
  // The process dies and another takes over: what is in memory, on the disk and in the catalog stays, what it
  // knew does not, and whoever waits hears nothing any more. What was on its way to the disk gets there
  // first. False: it did not in time, and nothing has happened.
  bool take_over();
  void cut(Cut cut);
  void lose_power();     // at once, if it has not gone yet; the pool is gone after it
  void bring_to_disk();  // all that is closed, as when the daemon ends

  Pool& pool() { return *pool_; }
  Survivors& survivors() { return *survivors_; }
  FaultyDisk& disk() { return disk_; }
  Catalog& catalog();
  bool crashed() const;
  bool disk_failed() const;  // and gets nothing more
  uint64_t commits() const { return commits_; }

  void step();  // one of the threads' rounds, and a little time
  // Steps until that is so, or until patience ends: false.
  bool pump(const std::function<bool()>& until, int steps_max = 4000);
  // Until nothing is left to do; then the catalog has to be whole and the space to be what it takes.
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
  std::vector<std::shared_ptr<Pool>> dead_;  // of processes that died: what they had is not taken apart
  std::shared_ptr<Pool> pool_;
  Cut cut_;
  bool frozen_ = false;
  uint64_t commits_ = 0;
};

}  // namespace kvcachefs::test
