#include "tier/survivors/survivors.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/sys.h"
#include "tier/survivors/layout.h"

namespace kvcachefs {
namespace {

// A program that does not know one of these sections would do something wrong.
constexpr uint32_t kKnown = Section::kMustBeKnown;
constexpr uint32_t kWhole = Section::kMustBeWhole;
constexpr uint64_t kPlaces = SurvivorTable<KeptInodes::Record>::kPlaces;

}  // namespace

struct Survivors::Layout {
  LayoutHeader header;
  Connection::Shared connection;
  Children::Shared children;
  Requests::Shared requests;
  PoolsText pools;
  char text[2][kMostPoolsBytes];
  OpenHandles::Shared handles;
  BackingIds::Shared backing_ids;
  KeptInodes::Shared kept_inodes;
};

std::span<const Section> Survivors::sections() {
  static constexpr Section kSections[] = {
      {"con1", kKnown, offsetof(Layout, connection), sizeof(Connection::Shared), 1},
      {"chi1", kKnown, offsetof(Layout, children), sizeof(Children::Shared), 1},
      {"req1", kKnown, offsetof(Layout, requests), offsetof(Requests::Shared, in_hand), 1},
      {"han1", kKnown, offsetof(Layout, requests.in_hand), sizeof(Requests::InHand), Requests::kPlaces},
      {"ren1", kKnown, offsetof(Layout, requests.renamed), sizeof(Requests::Renamed), Requests::kRenames},
      {"sta1", kKnown, offsetof(Layout, requests.stale), sizeof(Requests::Stale), Requests::kStales},
      {"poo1", kKnown, offsetof(Layout, pools), sizeof(PoolsText), 1},
      {"tex1", kKnown | kWhole, offsetof(Layout, text), kMostPoolsBytes, 2},
      {"opu1", kKnown, offsetof(Layout, handles), offsetof(OpenHandles::Shared, places), 1},
      {"ope1", kKnown, offsetof(Layout, handles.places), sizeof(OpenHandles::Record), kPlaces},
      {"bah1", kKnown, offsetof(Layout, backing_ids), offsetof(BackingIds::Shared, records), 1},
      {"bau1", kKnown, offsetof(Layout, backing_ids.records), offsetof(KeptInodes::Shared, places), 1},
      {"bac1", kKnown, offsetof(Layout, backing_ids.records.places), sizeof(BackingIds::Record), kPlaces},
      {"keu1", kKnown, offsetof(Layout, kept_inodes), offsetof(KeptInodes::Shared, places), 1},
      {"kep1", kKnown, offsetof(Layout, kept_inodes.places), sizeof(KeptInodes::Record), kPlaces},
  };
  return kSections;
}

Survivors::Survivors() : Survivors({}, nullptr) {}

Survivors::Survivors(UniqueFd memory, Layout* layout, bool copied)
    : memory_(std::move(memory)),
      layout_(layout),
      copied_(copied),
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
  return LayoutHeader::kVersion;
}

uint32_t Survivors::oldest_format() {
  return LayoutHeader::kVersionWithoutTable;
}

Result<Survivors::Layout*> Survivors::map(int memory, int sharing) {
  void* mapped = mmap(nullptr, sizeof(Layout), PROT_READ | PROT_WRITE, sharing | MAP_NORESERVE, memory, 0);
  if (mapped == MAP_FAILED) return std::unexpected(sys::last_error("mmap of what survives"));
  return static_cast<Layout*>(mapped);
}

Result<std::unique_ptr<Survivors>> Survivors::create() {
  UniqueFd memory(memfd_create("kvcachefs", MFD_CLOEXEC));
  if (!memory) return std::unexpected(sys::last_error("memfd_create"));
  // Only pages that are written to take memory.
  if (auto sized = sys::truncate(memory.get(), sizeof(Layout)); !sized) return pass(sized);
  auto layout = map(memory.get(), MAP_SHARED);
  if (!layout) return pass(layout);
  (*layout)->header.magic = LayoutHeader::kMagic;
  (*layout)->header.version = LayoutHeader::kVersion;
  (*layout)->header.count = static_cast<uint32_t>(sections().size());
  std::ranges::copy(sections(), (*layout)->header.sections.begin());
  (*layout)->connection.device_fd = -1;
  return std::unique_ptr<Survivors>(new Survivors(std::move(memory), *layout));
}

Result<std::unique_ptr<Survivors>> Survivors::open(UniqueFd memory) {
  return open(std::move(memory), MAP_SHARED);
}

Result<std::unique_ptr<Survivors>> Survivors::look_at(UniqueFd memory) {
  return open(std::move(memory), MAP_PRIVATE);
}

Result<std::unique_ptr<Survivors>> Survivors::open(UniqueFd memory, int sharing) {
  auto header = read_layout(memory.get());
  if (!header) return pass(header);
  const auto theirs = std::span(header->sections).first(header->count);
  if (!std::ranges::equal(theirs, sections())) return copy(memory.get(), *header);
  auto layout = map(memory.get(), sharing);
  if (!layout) return pass(layout);
  return std::unique_ptr<Survivors>(new Survivors(std::move(memory), *layout));
}

Result<std::unique_ptr<Survivors>> Survivors::copy(int memory, const LayoutHeader& header) {
  auto created = create();
  if (!created) return created;
  Layout* const layout = (*created)->layout_;
  auto copied = copy_sections(memory, std::span(header.sections).first(header.count),
                              reinterpret_cast<std::byte*>(layout), sections());
  if (!copied) return pass(copied);
  (*created)->copied_ = true;
  // Programs of that version have counted in this field, or noted a time: either way others were lost.
  if (header.version == LayoutHeader::kVersionWithoutTable && layout->requests.stale_lost_s != 0)
    (*created)->requests_.stale_lost_now();
  return created;
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
  const uint32_t next = 1 - layout_->pools.which;
  std::memcpy(layout_->text[next], text.data(), text.size());
  layout_->pools.bytes[next] = text.size();
  layout_->pools.which = next;
  return {};
}

std::string Survivors::pools() const {
  const uint32_t current = layout_->pools.which;
  return {layout_->text[current], layout_->pools.bytes[current]};
}

}  // namespace kvcachefs
