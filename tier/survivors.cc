#include "tier/survivors.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "base/fault_point.h"
#include "base/sys.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kMagic = 0x7376697672757376;
constexpr uint32_t kVersion = 2;  // 2: the list of pools has size_max
constexpr uint32_t kPlaceBits = 20;
constexpr uint32_t kRenames = 4096;  // more renames than a client's threads have in hand at once
constexpr int kInoBits = 48;
// One place for each thread: enough for the threads of many children, so that the requests of the last few
// children stay on record.
constexpr uint32_t kRequests = 4096;
constexpr uint32_t kStales = 256;
constexpr uint64_t kLatelyMs = 2000;  // longer than it takes to replace a process
constexpr size_t kMostReasonBytes = 512;

constexpr uint32_t kNoRequest = UINT32_MAX;
thread_local uint32_t own_request = kNoRequest;

uint64_t key_of(const PoolInode& inode) {
  return uint64_t{inode.pool} << kInoBits | inode.ino;
}

PoolInode inode_of(uint64_t key) {
  return {static_cast<uint16_t>(key >> kInoBits), key & ((uint64_t{1} << kInoBits) - 1)};
}

}  // namespace

struct Survivors::HandleRecord {
  std::atomic<uint64_t> key;
  uint64_t unique;
  uint32_t sequence;
  uint16_t writer;
  uint16_t from_disk;
};

struct Survivors::BackingRecord {
  std::atomic<uint64_t> key;
  int32_t id;
  std::atomic<uint32_t> closing;
};

struct Survivors::KeptRecord {
  std::atomic<uint64_t> key;
  uint32_t generation;
  int32_t fd;
};

struct Survivors::Layout {
  uint64_t magic;
  uint32_t version;
  std::atomic<uint32_t> generation;
  std::atomic<int32_t> device_fd;  // -1: none
  std::atomic<uint32_t> forbidden;
  std::atomic<uint64_t> serving_since_ns, last_beat_ns;
  std::atomic<uint32_t> upgrades_done, upgrades_refused;
  std::array<char, kMostReasonBytes> refusal;  // ends with a zero
  std::array<char, PATH_MAX> mount_point;      // ends with a zero too
  uint64_t init_bytes;
  std::array<std::byte, kMostInitBytes> init;
  std::atomic<uint32_t> pools_text;  // which of the two texts is valid
  std::array<uint64_t, 2> pools_bytes;
  std::atomic<int32_t> highest_backing;
  std::atomic<uint32_t> handles_used, backings_used, kept_used, renames;
  struct {
    std::atomic<uint64_t> unique;
    uint64_t first_ino, second_ino;
  } renamed[kRenames];
  std::atomic<uint32_t> stales;
  struct {
    std::atomic<int32_t> thread;
    std::atomic<uint64_t> at_ms;
  } stale[kStales];
  std::atomic<uint32_t> threads;
  struct {
    std::atomic<uint64_t> unique;
    std::atomic<uint32_t> attempted;
    std::atomic<uint32_t> generation;
    std::atomic<uint64_t> begun_ns;  // 0: the thread waits for a request
  } requests[kRequests];
  char text[2][kMostPoolsBytes];
  HandleRecord handles[SurvivorTable<HandleRecord>::kPlaces];
  BackingRecord backings[SurvivorTable<BackingRecord>::kPlaces];
  KeptRecord kept[SurvivorTable<KeptRecord>::kPlaces];
};

Survivors::Survivors() = default;

Survivors::Survivors(UniqueFd memory, Layout* layout)
    : memory_(std::move(memory)),
      layout_(layout),
      handles_(std::make_unique<SurvivorTable<HandleRecord>>(layout->handles, layout->handles_used)),
      backings_(std::make_unique<SurvivorTable<BackingRecord>>(layout->backings, layout->backings_used)),
      kept_(std::make_unique<SurvivorTable<KeptRecord>>(layout->kept, layout->kept_used)) {}

Survivors::~Survivors() {
  if (layout_ != nullptr) (void)munmap(layout_, sizeof(Layout));
}

uint32_t Survivors::format() {
  return kVersion;
}

Result<Survivors::Layout*> Survivors::map(int memory) {
  void* mapped = mmap(nullptr, sizeof(Layout), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (mapped == MAP_FAILED) return std::unexpected(sys::last_error("mmap of what survives"));
  return static_cast<Layout*>(mapped);
}

Result<std::unique_ptr<Survivors>> Survivors::create() {
  static_assert(SurvivorTable<HandleRecord>::kPlaces == 1 << kPlaceBits);
  UniqueFd memory(memfd_create("kvcachefs", MFD_CLOEXEC));
  if (!memory) return std::unexpected(sys::last_error("memfd_create"));
  // Only pages that are written to take memory.
  if (auto sized = sys::truncate(memory.get(), sizeof(Layout)); !sized) return pass(sized);
  auto layout = map(memory.get());
  if (!layout) return pass(layout);
  (*layout)->magic = kMagic;
  (*layout)->version = kVersion;
  (*layout)->device_fd = -1;
  return std::unique_ptr<Survivors>(new Survivors(std::move(memory), *layout));
}

Result<std::unique_ptr<Survivors>> Survivors::open(UniqueFd memory) {
  const auto attributes = sys::stat_of(memory.get());
  const bool large = attributes && static_cast<size_t>(attributes->st_size) == sizeof(Layout);
  auto layout = large ? map(memory.get()) : Result<Layout*>(fail(EPROTONOSUPPORT));
  if (layout && ((*layout)->magic != kMagic || (*layout)->version != kVersion)) {
    (void)munmap(*layout, sizeof(Layout));
    layout = fail(EPROTONOSUPPORT);
  }
  if (!layout) return fail(layout.error().code, "what the other program has left is of another format");
  return std::unique_ptr<Survivors>(new Survivors(std::move(memory), *layout));
}

uint32_t Survivors::begin_generation() {
  if (!supervised()) return 0;
  layout_->serving_since_ns = 0;
  handles_->find_free();
  backings_->find_free();
  kept_->find_free();
  MutexLock lock(mutex_);
  place_of_backing_.clear();
  for (uint32_t place = 0; place < backings_->used(); ++place)
    if ((*backings_)[place].key != 0) place_of_backing_[(*backings_)[place].id] = place;
  return layout_->generation++;
}

void Survivors::connected(int device_fd, std::span<const std::byte> init) {
  if (!supervised() || layout_->device_fd >= 0) return;
  KVCACHEFS_CHECK(init.size() <= kMostInitBytes);
  std::ranges::copy(init, layout_->init.begin());
  layout_->init_bytes = init.size();
  layout_->device_fd = device_fd;
}

std::optional<int> Survivors::device_fd() const {
  if (!supervised() || layout_->device_fd < 0) return std::nullopt;
  return layout_->device_fd;
}

void Survivors::moved(int device_fd) {
  for (const auto& [place, inode] : kept()) let_go(place);
  layout_->device_fd = device_fd;
}

Result<void> Survivors::set_mount_point(std::string_view path) {
  if (path.size() >= PATH_MAX) return fail(ENAMETOOLONG, "the mount point's path is too long");
  layout_->mount_point[path.copy(layout_->mount_point.data(), path.size())] = '\0';
  return {};
}

std::string Survivors::mount_point() const {
  return layout_->mount_point.data();
}

void Survivors::upgraded() {
  ++layout_->upgrades_done;
}

void Survivors::upgrade_refused(std::string_view reason) {
  layout_->refusal[reason.copy(layout_->refusal.data(), kMostReasonBytes - 1)] = '\0';
  ++layout_->upgrades_refused;
}

Survivors::Upgrades Survivors::upgrades() const {
  if (!supervised()) return {};
  return {layout_->upgrades_done, layout_->upgrades_refused, layout_->refusal.data()};
}

std::span<const std::byte> Survivors::init() const {
  return std::span(layout_->init).first(layout_->init_bytes);
}

void Survivors::serving(uint64_t since_ns) {
  if (!supervised()) return;
  layout_->last_beat_ns = since_ns;
  layout_->serving_since_ns = since_ns;
}

void Survivors::ending() {
  if (supervised()) layout_->serving_since_ns = 0;
}

uint64_t Survivors::serving_since_ns() const {
  return supervised() ? layout_->serving_since_ns.load() : 0;
}

void Survivors::beat(uint64_t at_ns) {
  if (supervised()) layout_->last_beat_ns = at_ns;
}

uint64_t Survivors::last_beat_ns() const {
  return supervised() ? layout_->last_beat_ns.load() : 0;
}

void Survivors::forbid_succession() {
  if (supervised()) layout_->forbidden = 1;
}

bool Survivors::may_succeed() const {
  return supervised() && layout_->forbidden == 0;
}

Result<void> Survivors::set_pools(std::string_view text) {
  if (!supervised()) return {};
  if (text.size() > kMostPoolsBytes) return fail(ENOSPC, "the pools' options are too long to be kept");
  MutexLock lock(mutex_);
  const uint32_t next = 1 - layout_->pools_text;
  std::memcpy(layout_->text[next], text.data(), text.size());
  layout_->pools_bytes[next] = text.size();
  layout_->pools_text = next;
  return {};
}

std::string Survivors::pools() const {
  const uint32_t current = layout_->pools_text;
  return {layout_->text[current], layout_->pools_bytes[current]};
}

void Survivors::begin_request(uint64_t unique, bool attempted) {
  if (!supervised()) return;
  if (own_request == kNoRequest) own_request = layout_->threads++ % kRequests;
  auto& request = layout_->requests[own_request];
  request.unique = 0;
  request.attempted = attempted ? 1 : 0;
  request.unique = unique;
  request.generation = layout_->generation.load();
  request.begun_ns = now_ns();
}

void Survivors::end_request() {
  if (supervised() && own_request != kNoRequest) layout_->requests[own_request].begun_ns = 0;
}

void Survivors::still_at_it() {
  if (!supervised() || own_request == kNoRequest) return;
  if (auto& begun_ns = layout_->requests[own_request].begun_ns; begun_ns != 0) begun_ns = now_ns();
}

void Survivors::told_stale(int32_t thread) {
  if (!supervised()) return;
  auto& told = layout_->stale[layout_->stales++ % kStales];
  told.thread = thread;
  told.at_ms = now_coarse_ms();
}

std::vector<int32_t> Survivors::told_stale_lately() const {
  std::vector<int32_t> result;
  if (!supervised()) return result;
  for (const auto& told : layout_->stale)
    if (told.at_ms != 0 && now_coarse_ms() - told.at_ms < kLatelyMs) result.push_back(told.thread);
  return result;
}

uint64_t Survivors::oldest_request_ns() const {
  uint64_t oldest_ns = 0;
  for (const auto& request : layout_->requests) {
    const uint64_t begun_ns = request.begun_ns;
    if (begun_ns == 0 || request.generation != layout_->generation) continue;
    if (oldest_ns == 0 || begun_ns < oldest_ns) oldest_ns = begun_ns;
  }
  return oldest_ns;
}

void Survivors::attempt() {
  if (supervised() && own_request != kNoRequest) layout_->requests[own_request].attempted = 1;
}

bool Survivors::was_attempted(uint64_t unique) const {
  return supervised() && std::ranges::any_of(layout_->requests, [unique](const auto& request) {
           return request.unique == unique && request.attempted != 0;
         });
}

Result<uint64_t> Survivors::opened(const OpenHandle& handle) {
  if (!supervised()) return uint64_t{0};
  if (const int error = injected_error("write down an open")) return fail(error);
  const auto place = handles_->take();
  if (!place) return fail(ENFILE, "too many files are open");
  HandleRecord& record = (*handles_)[*place];
  record.unique = handle.unique;
  record.writer = handle.writer ? 1 : 0;
  record.from_disk = handle.from_disk ? 1 : 0;
  if (++record.sequence == 0) ++record.sequence;
  const uint64_t opened = uint64_t{record.sequence} << kPlaceBits | *place;
  record.key = key_of(handle.inode);  // from here on another thread may close it
  return opened;
}

bool Survivors::is_open(uint64_t handle) {
  if (!supervised()) return true;
  const HandleRecord& record = (*handles_)[handle & ((1 << kPlaceBits) - 1)];
  return record.key != 0 && record.sequence == handle >> kPlaceBits;
}

void Survivors::closed(uint64_t handle) {
  if (supervised() && is_open(handle)) handles_->free(handle & ((1 << kPlaceBits) - 1));
}

std::optional<Survivors::Opened> Survivors::opened_by(uint64_t unique) {
  if (!supervised() || unique == 0) return std::nullopt;
  for (uint32_t place = 0; place < handles_->used(); ++place) {
    const HandleRecord& record = (*handles_)[place];
    if (const uint64_t key = record.key; key != 0 && record.unique == unique)
      return Opened{uint64_t{record.sequence} << kPlaceBits | place, inode_of(key), record.from_disk != 0};
  }
  return std::nullopt;
}

void Survivors::for_each_handle(const std::function<void(const OpenHandle&)>& visit) {
  for (uint32_t place = 0; supervised() && place < handles_->used(); ++place) {
    const HandleRecord& record = (*handles_)[place];
    if (const uint64_t key = record.key; key != 0)
      visit({.inode = inode_of(key),
             .unique = record.unique,
             .writer = record.writer != 0,
             .from_disk = record.from_disk != 0});
  }
}

Result<void> Survivors::backed(const HeldBacking& backing) {
  if (!supervised()) return {};
  const auto place = backings_->take();
  if (!place) return fail(ENFILE, "too many files are open");
  BackingRecord& record = (*backings_)[*place];
  record.id = backing.id;
  record.closing = 0;
  record.key = key_of(backing.inode);
  MutexLock lock(mutex_);
  place_of_backing_[backing.id] = *place;
  layout_->highest_backing = std::max<int32_t>(layout_->highest_backing, backing.id);
  return {};
}

void Survivors::giving_back(int32_t id) {
  if (!supervised()) return;
  MutexLock lock(mutex_);
  if (const auto found = place_of_backing_.find(id); found != place_of_backing_.end())
    (*backings_)[found->second].closing = 1;
}

void Survivors::given_back(int32_t id) {
  if (!supervised()) return;
  uint32_t place = 0;
  {
    MutexLock lock(mutex_);
    const auto found = place_of_backing_.extract(id);
    if (!found) return;
    place = found.mapped();
  }
  backings_->free(place);
}

void Survivors::for_each_backing(const std::function<void(const HeldBacking&, bool closing)>& visit) {
  for (uint32_t place = 0; supervised() && place < backings_->used(); ++place) {
    const BackingRecord& record = (*backings_)[place];
    if (const uint64_t key = record.key; key != 0)
      visit({.inode = inode_of(key), .id = record.id}, record.closing != 0);
  }
}

int32_t Survivors::highest_backing() const {
  return supervised() ? layout_->highest_backing.load() : 0;
}

Result<uint32_t> Survivors::keep(const KeptInode& kept) {
  if (!supervised()) return uint32_t{0};
  auto place = kept_->take();
  if (!place) return place;
  KeptRecord& record = (*kept_)[*place];
  record.generation = kept.generation;
  record.fd = kept.fd;
  record.key = key_of(kept.inode);
  return place;
}

void Survivors::let_go(uint32_t place) {
  if (supervised()) kept_->free(place);
}

std::vector<std::pair<uint32_t, KeptInode>> Survivors::kept() {
  std::vector<std::pair<uint32_t, KeptInode>> result;
  for (uint32_t place = 0; supervised() && place < kept_->used(); ++place) {
    const KeptRecord& record = (*kept_)[place];
    if (const uint64_t key = record.key; key != 0)
      result.emplace_back(
          place, KeptInode{.inode = inode_of(key), .generation = record.generation, .fd = record.fd});
  }
  return result;
}

void Survivors::attempt_rename(uint64_t first_ino, uint64_t second_ino) {
  if (!supervised() || own_request == kNoRequest) return;
  auto& record = layout_->renamed[layout_->renames++ % kRenames];
  record.unique = 0;
  record.first_ino = first_ino;
  record.second_ino = second_ino;
  record.unique = layout_->requests[own_request].unique.load();
}

std::optional<Survivors::Rename> Survivors::attempted_rename(uint64_t unique) const {
  if (!supervised()) return std::nullopt;
  for (const auto& record : layout_->renamed)
    if (record.unique == unique) return Rename{unique, record.first_ino, record.second_ino};
  return std::nullopt;
}

}  // namespace kvcachefs
