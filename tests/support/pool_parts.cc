#include "tests/support/pool_parts.h"

#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>

#include "tests/support/files.h"

namespace kvcachefs::test {

Result<int32_t> HeldFiles::acquire(int fd, PoolInode inode) {
  if (error != 0) return fail(error);
  UniqueFd file(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  const int32_t backing = file.get();
  held[backing] = {std::move(file), inode.ino};
  return backing;
}

namespace {

constexpr const char* kFiller = "fills the pool up";

void switch_capability(bool on) {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  std::array<__user_cap_data_struct, 2> data{};
  EXPECT_EQ(::syscall(SYS_capget, &header, data.data()), 0);
  constexpr uint32_t kBit = 1u << CAP_SYS_ADMIN;
  data[0].effective = on ? data[0].effective | kBit : data[0].effective & ~kBit;
  EXPECT_EQ(::syscall(SYS_capset, &header, data.data()), 0);
}

}  // namespace

NoMarks::NoMarks() {
  switch_capability(false);
}

NoMarks::~NoMarks() {
  switch_capability(true);
}

void PoolPartsTest::SetUp() {
  ArenaTest::SetUp();
  if (IsSkipped() || HasFatalFailure()) return;
  options_.name = name_;
  options_.size_bytes = kPoolBytes;
  ASSERT_TRUE(arena_->resize(kPoolBytes));
  capacity_.emplace(options_, surroundings_, *arena_, counters_, entries_.shares());
  const PoolPart part{kPool, name_, surroundings_, *arena_, *capacity_, entries_, counters_, limits_};
  reservations_.emplace(part);
  parked_.emplace(entries_);
  disk_.emplace(part);
  const DiskPart disk_part{part, *disk_};
  if (last_ >= Upto::kMarks) marks_.emplace(disk_part);
  entries_.observe(counting_);
  lifetimes_.emplace(disk_part);
  if (last_ >= Upto::kInsight) insight_.emplace(disk_part, *lifetimes_);
  if (last_ >= Upto::kInodes) inodes_.emplace(disk_part, *reservations_);
  if (last_ >= Upto::kTree) tree_.emplace(disk_part, *insight_, *parked_, *inodes_);
  if (last_ >= Upto::kPrefetcher) entries_.observe(prefetcher_.emplace(disk_part));
  if (last_ >= Upto::kResidency)
    residency_.emplace(disk_part, *reservations_, *marks_, *parked_, *inodes_, *tree_);
  if (last_ >= Upto::kRequests) requests_.emplace(disk_part, *marks_, *inodes_);
  if (last_ >= Upto::kFiles)
    files_.emplace(disk_part, *reservations_, *insight_, *marks_, *inodes_, *tree_, *prefetcher_);
  if (last_ >= Upto::kEvictor)
    evictor_.emplace(disk_part, *reservations_, *marks_, *parked_, *tree_, *lifetimes_, insight_->index());
  if (last_ >= Upto::kSettings) settings_.emplace(disk_part, options_, *prefetcher_, *requests_, *evictor_);
  if (last_ >= Upto::kRecovery)
    recovery_.emplace(disk_part, Recovery::Parts{*reservations_, *marks_, *insight_, *inodes_, *tree_,
                                                 *residency_, *requests_, *files_, *settings_});
}

void PoolPartsTest::TearDown() {
  if (disk_ && disk_->tier() != nullptr) tier().close();
  if (disk_ && disk_->away() != nullptr) disk_->away()->close();
}

void PoolPartsTest::supervise() {
  auto made = Survivors::create();
  ASSERT_TRUE(made) << made.error().message;
  survivors_ = std::move(*made);
  (void)survivors_->begin_generation();
  surroundings_.survivors = survivors_.get();
}

AwayDisk& PoolPartsTest::lose_disk(std::chrono::milliseconds patience) {
  disk_->is_away(std::make_unique<AwayDisk>(patience));
  return *disk_->away();
}

sys::Handle PoolPartsTest::handle(const std::string& name) const {
  const auto found = sys::handle_of(open(name, O_PATH | O_NOFOLLOW).get());
  EXPECT_TRUE(found) << name;
  return found.value_or(sys::Handle{});
}

struct stat PoolPartsTest::status(const std::string& name) const {
  struct stat found {};
  EXPECT_EQ(::fstatat(root(), name.c_str(), &found, AT_SYMLINK_NOFOLLOW), 0) << name;
  return found;
}

void PoolPartsTest::write(const std::string& name, const std::string& bytes, uint64_t offset) const {
  EXPECT_EQ(::pwrite(open(name).get(), bytes.data(), bytes.size(), static_cast<off_t>(offset)),
            static_cast<ssize_t>(bytes.size()))
      << name;
}

std::string PoolPartsTest::content(const std::string& name) const {
  const UniqueFd file = open(name, O_RDONLY);
  return read_at(file.get(), 0, static_cast<size_t>(status(name).st_size));
}

void PoolPartsTest::await_later_ctime(const std::string& name) const {
  const struct stat its = status(name);
  const UniqueFd other(::memfd_create("clock", MFD_CLOEXEC));
  EXPECT_TRUE(eventually([&] {
    struct stat now {};
    return ::fchmod(other.get(), 0600) == 0 && ::fstat(other.get(), &now) == 0 &&
           std::pair(now.st_ctim.tv_sec, now.st_ctim.tv_nsec) >
               std::pair(its.st_ctim.tv_sec, its.st_ctim.tv_nsec);
  }));
}

uint64_t PoolPartsTest::fill_up() {
  const uint64_t free_bytes = arena_->usage().free_bytes;
  if (free_bytes == 0) return 0;
  const UniqueFd file = open(kFiller, O_CREAT | O_RDWR);
  const uint64_t end = static_cast<uint64_t>(status(kFiller).st_size);
  EXPECT_TRUE(sys::allocate(file.get(), 0, end, free_bytes));
  return free_bytes;
}

std::thread PoolPartsTest::answer_next(Room::Answer answer) {
  return std::thread([this, answer] {
    wakeup_.wait(std::chrono::minutes(1));
    if (answer == Room::Answer::kNothingToEvict)
      return capacity_->room().nothing_to_evict(Room::Whose::kWriter);
    EXPECT_EQ(::unlinkat(root(), kFiller, 0), 0);
    capacity_->room().room_made();
  });
}

uint64_t PoolPartsTest::create(const std::string& name) {
  (void)make(name);
  const sys::Handle made = handle(name);
  EntryTable::Shard& its_shard = shard(made.ino);
  MutexLock lock(its_shard.mutex);
  entries_.created(its_shard.find_or_make(made.ino, made.generation), true, true, true);
  return made.ino;
}

PoolPartsTest::Nameless PoolPartsTest::create_nameless() {
  Nameless made{.file = open(".", O_TMPFILE | O_RDWR)};
  const auto its = sys::handle_of(made.file.get());
  EXPECT_TRUE(its);
  made.ino = its ? its->ino : 0;
  EntryTable::Shard& its_shard = shard(made.ino);
  MutexLock lock(its_shard.mutex);
  entries_.created(its_shard.find_or_make(made.ino, its ? its->generation : 0), false, true, true);
  its_shard.kept[made.ino] =
      KeptByDescriptor(open("/proc/self/fd/" + std::to_string(made.file.get()), O_PATH), nullptr, 0, {});
  return made;
}

uint64_t PoolPartsTest::store_fresh(const std::string& name, const std::string& bytes) {
  const uint64_t made = create(name);
  write(name, bytes);
  close_entry(made, {.writer = true});
  return made;
}

uint64_t PoolPartsTest::store(const std::string& name, const std::string& bytes) {
  const uint64_t made = store_fresh(name, bytes);
  entries_.published(entry(made));
  return made;
}

void PoolPartsTest::close_entry(uint64_t ino, OpenMode mode) {
  Entry& its = entry(ino);
  if (mode.writer && entries_.writer_closed(its)) {
    const auto file = arena_->open(handle_of(its), O_PATH);
    const auto attributes = file ? sys::stat_of(file->get()) : fail(ESTALE);
    EXPECT_TRUE(attributes);
    if (attributes) entries_.stored(its, bytes_of(*attributes), capacity_->limit().pinned_max_bytes());
  }
  (void)entries_.closed(its, mode.from_disk);
}

void PoolPartsTest::close_with_holes(uint64_t ino) {
  Entry& its = entry(ino);
  EXPECT_TRUE(entries_.writer_closed(its));
  entries_.stored(its, reservations_->settle(its), capacity_->limit().pinned_max_bytes());
  (void)entries_.closed(its, false);
}

uint64_t PoolPartsTest::make_known_directory(const std::string& name) {
  make_directory(name);
  const sys::Handle made = handle(name);
  {
    EntryTable::Shard& its_shard = shard(made.ino);
    MutexLock lock(its_shard.mutex);
    (void)its_shard.find_or_make(made.ino, made.generation);
  }
  set_lookups(made.ino, 1);
  return made.ino;
}

EntryState PoolPartsTest::state(uint64_t ino) {
  EntryTable::Shard& its_shard = shard(ino);
  MutexLock lock(its_shard.mutex);
  const Entry* const its = its_shard.find(ino);
  if (its == nullptr) return {};
  return {.exists = true,
          .stage = its->stage,
          .tier = its->tier,
          .opens = its->open_count,
          .writers = its->writer_count,
          .opens_from_disk = its->direct_count,
          .lookups = its->kernel.lookup_count,
          .reserved_end = its->memory.reserved_end,
          .charged_bytes = its->memory.charged_bytes,
          .version = its->version,
          .first_version = its->disk.first_version,
          .epoch = its->disk.content_epoch,
          .hits = its->hits,
          .node_id = its->disk.node_id,
          .removed = its->removed,
          .parked = its->parked,
          .pinned = its->pinned,
          .promoting = its->disk.promoting(),
          .spilling = its->disk.spilling(),
          .spill_queued = its->disk.spill_queued(),
          .spill_urgent = its->disk.spill_urgent(),
          .synced_nameless = its->disk.synced_nameless,
          .emptied = its->disk.emptied,
          .missed_in = its->kernel.missed_in,
          .sought = its->kernel.sought,
          .prefetched = its->disk.prefetched,
          .guessed = its->disk.guessed};
}

Entry& PoolPartsTest::entry(uint64_t ino) {
  Entry* const its = shard(ino).find(ino);
  if (its == nullptr) throw std::runtime_error("there is no such entry");
  return *its;
}

std::optional<CatalogContent> PoolPartsTest::copy(uint64_t ino) {
  const CatalogContent* const its = shard(ino).find(ino) == nullptr ? nullptr : entry(ino).disk.copy();
  return its == nullptr ? std::nullopt : std::optional(*its);
}

struct stat PoolPartsTest::shown_status(const std::string& name) {
  struct stat shown = status(name);
  show_ctime(entry(shown.st_ino).kept, shown);
  return shown;
}

void PoolPartsTest::set_lookups(uint64_t ino, uint64_t lookups) {
  entry(ino).kernel.lookup_count = lookups;
}

void PoolPartsTest::set_looked_up(uint64_t ino, uint64_t ms_ago) {
  entry(ino).kernel.looked_up_ms = static_cast<uint32_t>(now_coarse_ms() - ms_ago);
}

void PoolPartsTest::set_adopted(uint64_t ino) {
  entry(ino).kernel.lookups_unknown = true;
}

void PoolPartsTest::set_first_version(uint64_t ino, uint32_t version) {
  entry(ino).disk.first_version = version;
}

void PoolPartsTest::set_node_id(uint64_t ino, uint64_t id) {
  entry(ino).disk.node_id = id;
}

void PoolPartsTest::set_synced_nameless(uint64_t ino) {
  entry(ino).disk.synced_nameless = true;
}

void PoolPartsTest::set_wants_reservation(uint64_t ino) {
  entry(ino).memory.wants_reservation = true;
}

void PoolPartsTest::set_flushed(uint64_t ino) {
  entries_.flushed(entry(ino));
}

void PoolPartsTest::set_emptied(uint64_t ino) {
  entry(ino).disk.emptied = true;
}

void PoolPartsTest::set_spill_queued(uint64_t ino, bool queued) {
  entries_.contents().spill_asked(entry(ino),
                                  queued ? DiskFacts::Spill::kQueued : DiskFacts::Spill::kNotAsked);
}

void PoolPartsTest::keep_ctime_of(uint64_t ino) {
  Entry& its = entry(ino);
  const auto file = arena_->open(handle_of(its), O_PATH);
  ASSERT_TRUE(file);
  keep_ctime(its.kept, file->get(), surroundings_.is_supervised());
}

bool PoolPartsTest::tidy() {
  constexpr uint64_t kRoundNs = 5'000'000;
  constexpr int kMostRounds = 100;
  bool more = true;
  for (int rounds = 0; more && rounds < kMostRounds; ++rounds) {
    const uint64_t begun_ns = now_ns();
    more = evictor_->tidy();
    if (now_ns() - begun_ns < kRoundNs) break;
  }
  return more;
}

std::optional<Room::Answer> PoolPartsTest::tidy_for(Room::Whose whose) {
  Room& room = capacity_->room();
  const Room::Ticket before = room.ticket();
  const Room::Demand demand(room, whose, kBlock);
  more_to_tidy_ = tidy();
  const Room::Ticket now = room.ticket();
  if (now.made == before.made && now.exhausted == before.exhausted) return std::nullopt;
  return Room::answer(whose, before, now);
}

Waiter PoolPartsTest::waiter() {
  told_ = std::make_shared<int>(kToldNothing);
  return [told = told_](Result<void> outcome) { *told = outcome ? 0 : outcome.error().code; };
}

}  // namespace kvcachefs::test
