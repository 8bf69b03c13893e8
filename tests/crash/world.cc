#include "tests/crash/world.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <set>

#include "tests/crash/virtual_clock.h"
#include "tier/catalog/catalog_check.h"

namespace kvcachefs::test {
namespace {

constexpr auto kNoWait = std::chrono::milliseconds(0);
constexpr int kLastSteps = 400;

}  // namespace

// The Device belongs to the pool, and the disk outlives it.
class World::Device final : public BlockDevice {
 public:
  explicit Device(FaultyDisk& disk) : disk_(disk) {}
  Result<std::unique_ptr<BlockChannel>> channel(unsigned depth) override { return disk_.channel(depth); }
  Result<void> flush() override { return disk_.flush(); }
  uint64_t size_bytes() const override { return disk_.size_bytes(); }
  uint32_t alignment_bytes() const override { return disk_.alignment_bytes(); }
  int node() const override { return disk_.node(); }

 private:
  FaultyDisk& disk_;
};

class World::CuttableCatalog final : public Catalog {
 public:
  explicit CuttableCatalog(World& world) : world_(world) {}
  Result<std::vector<Extent>> commit(std::span<const CatalogChange> changes) override {
    return world_.commit(changes);
  }
  Result<void> load(CatalogVisitor& visitor, Losses losses) override {
    return world_.catalog_->load(visitor, losses);
  }
  uint64_t highest_id() override { return world_.catalog_->highest_id(); }
  Result<uint64_t> names() override { return world_.catalog_->names(); }
  Result<std::optional<std::string>> setting(std::string_view name) override {
    return world_.catalog_->setting(name);
  }
  Result<void> put_setting(std::string_view name, std::string_view value) override {
    return world_.catalog_->put_setting(name, value);
  }
  Result<void> clear() override { return world_.catalog_->clear(); }

 private:
  World& world_;
};

// The backing of daemon I/O is a copy of the descriptor.
class World::Backing final : public BackingStore {
 public:
  explicit Backing(bool writable) : writable_(writable) {}
  Result<int32_t> acquire(int fd, PoolInode) override {
    auto copy = sys::duplicate(fd);
    if (!copy) return pass(copy);
    return *given_.insert(copy->release()).first;
  }
  void give_back(int32_t backing) override {
    if (given_.erase(backing) > 0) ::close(backing);
  }
  void give_back_all() {
    while (!given_.empty()) give_back(*given_.begin());
  }
  bool needs_write_access() const override { return writable_; }

 private:
  const bool writable_;
  std::set<int32_t> given_;
};

class World::Listener final : public DiscardListener {
 public:
  void changed(uint16_t, uint64_t) override {}
  void discarded(uint16_t, uint64_t parent_ino, uint64_t ino, std::string name) override {
    discarded_.push_back({parent_ino, ino, std::move(name)});
  }
  void appeared(uint16_t, uint64_t, std::string) override {}
  void wait_until_told(std::chrono::milliseconds) override {}
  std::vector<Discarded> take() { return std::exchange(discarded_, {}); }

 private:
  std::vector<Discarded> discarded_;
};

World::World(const Options& options, const std::string& directory)
    : options_(options),
      directory_(directory),
      random_(options.seed * 0x9e3779b97f4a7c15u + 1),
      disk_({.size_bytes = options.disk_units * kUnitBytes, .seed = options.seed}),
      topology_(std::make_unique<NumaTopology>(std::vector<NumaNode>{{.id = 0}},
                                               [](int) { return uint64_t{1} << 40; })),
      backing_(std::make_unique<Backing>(options.writable_backing)),
      listener_(std::make_unique<Listener>()) {
  reset_clock();
}

World::~World() {
  if (pool_) lose_power();
}

Catalog& World::catalog() {
  return *catalog_;
}

bool World::crashed() const {
  return frozen_ || disk_.crashed();
}

bool World::disk_failed() const {
  return pool_->disk().tier()->store->log().frozen();
}

Result<std::vector<Extent>> World::commit(std::span<const CatalogChange> changes) {
  if (crashed()) return fail(EIO, "no power");
  ++commits_;
  const bool of_commits = cut_.kind == Cut::Kind::kBeforeCommit || cut_.kind == Cut::Kind::kAfterCommit;
  if (!of_commits || --cut_.at > 0) return catalog_->commit(changes);
  if (cut_.kind == Cut::Kind::kAfterCommit)
    if (auto done = catalog_->commit(changes); !done) return done;
  frozen_ = true;
  disk_.crash(0);
  return fail(EIO, "no power");
}

void World::start() {
  auto opened = Catalog::open(directory_ + "/catalog", {.create = true, .map_bytes = 4u << 20});
  if (!opened) throw std::runtime_error("catalog: " + opened.error().message);
  catalog_ = std::move(*opened);
  auto survivors = Survivors::create();
  if (!survivors) throw std::runtime_error("survivors: " + survivors.error().message);
  survivors_ = std::move(*survivors);
  (void)survivors_->begin_generation();
  auto made = Pool::create(1, pool_options(), surroundings());
  if (!made) throw std::runtime_error("pool: " + made.error().message);
  pool_ = std::move(*made);
  auto attached = pool_->recovery().attach_disk(
      std::make_unique<Device>(disk_), std::make_unique<CuttableCatalog>(*this), kUnitBytes, pool_options());
  if (!attached) throw Violation("the pool cannot be attached: " + attached.error().message);
  disk_.set_odds(options_.odds);
}

PoolOptions World::pool_options() const {
  PoolOptions options;
  options.name = "p";
  options.size_bytes = options_.pool_bytes;
  options.policy = options_.policy;
  options.durability = options_.durability;
  options.admission = options_.admission;
  options.spill_path = "disk";
  return options;
}

Pool::Surroundings World::surroundings() {
  return {.arena_path = directory_ + "/arena",
          .topology = topology_.get(),
          .backing_store = backing_.get(),
          .listener = listener_.get(),
          .evictor = &evictor_,
          .cores = 1,
          .survivors = survivors_.get()};
}

bool World::take_over() {
  DiskTier* const tier = pool_->disk().tier();
  for (int steps = 0; steps < kLastSteps && !tier->spiller.idle(); ++steps) {
    tier->spiller.step(kNoWait);
    if (crashed()) throw Crash();
  }
  if (!tier->spiller.idle()) return false;
  tier->close();
  tier->lanes.clear();
  dead_.push_back(std::move(pool_));
  backing_->give_back_all();
  (void)survivors_->begin_generation();
  auto adopted = Pool::adopt(1, pool_options(), surroundings());
  if (!adopted) throw Violation("the pool cannot be taken over: " + adopted.error().message);
  pool_ = std::move(*adopted);
  auto found = pool_->recovery().begin_adopting();
  if (found) found = Pool::adopt_files(pool_);
  if (!found) throw Violation("its files cannot be found: " + found.error().message);
  disk_.set_odds({});  // an error now would leave the pool without its disk
  auto attached = pool_->recovery().attach_adopted_disk(
      std::make_unique<Device>(disk_), std::make_unique<CuttableCatalog>(*this), kUnitBytes, pool_options());
  if (crashed()) throw Crash();
  if (!attached) throw Violation("the disk cannot be taken over: " + attached.error().message);
  disk_.set_odds(options_.odds);
  return true;
}

void World::cut(Cut cut) {
  cut_ = cut;
  if (cut.kind == Cut::Kind::kDisk) disk_.crash(cut.at);
}

void World::lose_power() {
  if (!crashed()) disk_.crash(0);
  frozen_ = true;
  if (DiskTier* const tier = pool_->disk().tier()) tier->close();
  pool_.reset();
  dead_.clear();
  catalog_.reset();
  disk_.restart();
  frozen_ = false;
  cut_ = {};
  (void)listener_->take();
}

void World::bring_to_disk() {
  pool_->disk_requests().spill_all();
  quiesce();
}

void World::step() {
  advance_clock(std::chrono::milliseconds(random_.below(3)));
  switch (random_.below(5)) {
    case 0:
      (void)pool_->evictor().tidy();
      break;
    case 1:
      pool_->disk().tier()->store->log().step(kNoWait);
      break;
    case 2:
      pool_->disk().tier()->lanes.front()->step(kNoWait);
      break;
    default:
      pool_->disk().tier()->spiller.step(kNoWait);
  }
  if (crashed()) throw Crash();
}

bool World::pump(const std::function<bool()>& until, int steps_max) {
  for (int steps = 0; steps < steps_max; ++steps) {
    if (until()) return true;
    step();
  }
  return until();
}

void World::quiesce() {
  DiskTier* const tier = pool_->disk().tier();
  const auto is_done = [&] {
    return tier->spiller.idle() && tier->store->log().idle() && tier->promoter.queued() == 0;
  };
  if (!pump(is_done, 40'000))
    throw Violation(fmt::format("it does not come to rest: spiller {}, log {}, {} promotions",
                                tier->spiller.idle(), tier->store->log().idle(), tier->promoter.queued()));
  check_space();
}

void World::check_space() {
  const ExtentAllocator& space = pool_->disk().tier()->store->space();
  auto report = check_catalog(*catalog_, {.unit_bytes = kUnitBytes, .size_units = options_.disk_units});
  if (!report) throw Violation("the catalog cannot be read");
  if (!report->whole())
    throw Violation(
        fmt::format("the catalog: {}: {}", report->problems.front().path, report->problems.front().what));
  const uint64_t used_units = space.units() - space.free_units();
  // Withheld contents are in the catalog, but no name shows them; and a failed disk gets no space back.
  if ((pool_->disk().tier()->names.withheld() > 0 || disk_failed()) && used_units > report->used_units)
    return;
  if (used_units != report->used_units)
    throw Violation(fmt::format("{} units are taken, the catalog names {}", used_units, report->used_units));
}

std::vector<Discarded> World::take_discarded() {
  return listener_->take();
}

}  // namespace kvcachefs::test
