#include "tier/survivors/survivors.h"

#include <sys/mman.h>

#include <array>
#include <cstring>

#include "base/sys.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kMagic = 0x7376697672757376;
constexpr uint32_t kVersion = 3;  // 3: one section for each part

}  // namespace

struct Survivors::Layout {
  uint64_t magic;
  uint32_t version;
  Connection::Shared connection;
  Children::Shared children;
  Requests::Shared requests;
  std::atomic<uint32_t> pools_text;  // which of the two texts is valid
  std::array<uint64_t, 2> pools_bytes;
  char text[2][kMostPoolsBytes];
  OpenHandles::Shared handles;
  BackingIds::Shared backing_ids;
  KeptInodes::Shared kept_inodes;
};

Survivors::Survivors() : Survivors({}, nullptr) {}

Survivors::Survivors(UniqueFd memory, Layout* layout)
    : memory_(std::move(memory)),
      layout_(layout),
      connection_(layout != nullptr ? &layout->connection : nullptr),
      children_(layout != nullptr ? &layout->children : nullptr),
      requests_(layout != nullptr ? &layout->requests : nullptr),
      handles_(layout != nullptr ? &layout->handles : nullptr),
      backing_ids_(layout != nullptr ? &layout->backing_ids : nullptr),
      kept_inodes_(layout != nullptr ? &layout->kept_inodes : nullptr) {}

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
  UniqueFd memory(memfd_create("kvcachefs", MFD_CLOEXEC));
  if (!memory) return std::unexpected(sys::last_error("memfd_create"));
  // Only pages that are written to take memory.
  if (auto sized = sys::truncate(memory.get(), sizeof(Layout)); !sized) return pass(sized);
  auto layout = map(memory.get());
  if (!layout) return pass(layout);
  (*layout)->magic = kMagic;
  (*layout)->version = kVersion;
  (*layout)->connection.device_fd = -1;
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
  children_.ending();
  handles_.begin_generation();
  backing_ids_.begin_generation();
  kept_inodes_.begin_generation();
  return requests_.begin_generation();
}

void Survivors::moved(int device_fd) {
  for (const auto& [place, inode] : kept_inodes_.list()) kept_inodes_.let_go(place);
  connection_.moved(device_fd);
}

void Survivors::reconnected(int device_fd) {
  requests_.connection_ended();
  backing_ids_.connection_ended();
  handles_.connection_ended();
  for (const auto& [place, inode] : kept_inodes_.list()) kept_inodes_.let_go(place);
  children_.connection_ended();
  connection_.replaced(device_fd);
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

}  // namespace kvcachefs
