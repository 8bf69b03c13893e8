// The disk of the fixture, and how entries get there without the part under test.
#include <algorithm>
#include <span>
#include <stdexcept>

#include "tests/support/catalogs.h"
#include "tests/support/files.h"
#include "tests/support/pool_parts.h"

namespace kvcachefs::test {

void PoolPartsTest::attach_disk(Durability durability, uint64_t units) {
  auto disk = std::make_unique<FaultyDisk>(FaultyDiskOptions{.size_bytes = units * kUnitBytes});
  device_ = disk.get();
  auto catalog = Catalog::open(place_ / "catalog");
  ASSERT_TRUE(catalog) << catalog.error().message;
  auto store = std::make_unique<SpillStore>(std::move(disk), std::move(*catalog), kUnitBytes, counters_);
  Residency& residency = residency_ ? static_cast<Residency&>(*residency_) : idle_;
  auto made = std::make_unique<DiskTier>(std::move(store), std::move(*device_->channel(Spiller::kDepth)),
                                         std::move(*device_->channel(Scrubber::kDepth)), residency, *arena_,
                                         options_, surroundings_.is_supervised());
  made->lanes.push_back(
      std::make_unique<PromoterLane>(made->promoter, std::move(*device_->channel(PromoterLane::kDepth))));
  made->promoter.add(*made->lanes.back());
  disk_->own(std::move(made));
  (void)disk_->exchange_durability(durability);
  disk_->use();
}

CatalogContent PoolPartsTest::put(const std::string& bytes) {
  const auto all = std::as_bytes(std::span(bytes));
  CatalogContent made{.size_bytes = bytes.size(), .checksum = checksum_of(all), .version = 1, .extents = {}};
  auto space = tier().store->allocate(bytes.size());
  if (!space) throw std::runtime_error("the disk is full");
  made.extents = std::move(*space);
  AlignedMemory memory(kUnitBytes);
  uint64_t at = 0;
  for (const Extent& extent : made.extents) {
    for (uint64_t unit = extent.start; unit < extent.end(); ++unit, at += kUnitBytes) {
      std::ranges::fill(memory.all(), std::byte{0});
      std::ranges::copy(all.subspan(at, std::min(kUnitBytes, bytes.size() - at)), memory.all().begin());
      EXPECT_EQ(write_blocks(*device_, unit * kUnitBytes, memory.all()), 0);
    }
  }
  return made;
}

void PoolPartsTest::make_clean(uint64_t ino) {
  const auto file = arena_->open(handle_of(entry(ino)), O_RDONLY);
  ASSERT_TRUE(file);
  const auto attributes = sys::stat_of(file->get());
  ASSERT_TRUE(attributes);
  const CatalogContent copy = put(read_at(file->get(), 0, static_cast<size_t>(attributes->st_size)));
  EntryTable::Shard& its_shard = shard(ino);
  MutexLock lock(its_shard.mutex);
  Entry& its = *its_shard.find(ino);
  auto changes = tier().names.introduce(its, file->get());
  ASSERT_TRUE(changes);
  changes->push_back(PutContent{tier().names.id_of(its), copy});
  tier().store->log().append(std::move(*changes));
  (void)entries_.contents().copied(its, copy);
  if (marks_) {
    EXPECT_TRUE(marks_->mark_copy(its, file->get(), CopyMark::State::kClean, &copy));
  }
  entries_.contents().spilled(its);
}

void PoolPartsTest::make_cold(uint64_t ino) {
  if (state(ino).tier == Entry::Tier::kDirty) make_clean(ino);
  Entry& its = entry(ino);
  const auto file = arena_->open(handle_of(its), O_RDWR);
  ASSERT_TRUE(file);
  const UnseenChange unseen(its.kept, file->get(), surroundings_.is_supervised());
  const CatalogContent its_copy = *copy(ino);
  if (marks_) {
    EXPECT_TRUE(marks_->mark_copy(its, file->get(), CopyMark::State::kCold, &its_copy));
  }
  EXPECT_TRUE(arena_->drop_pages(file->get()));
  entries_.contents().evicted(its);
}

void PoolPartsTest::hold_on_disk(uint64_t ino) {
  tier().store->hold(entries_.contents().held_on_disk(entry(ino), *copy(ino)));
}

bool PoolPartsTest::work_until(const std::function<bool()>& done) {
  constexpr auto kMoment = std::chrono::milliseconds(1);
  return eventually([&] {
    if (done()) return true;
    tier().spiller.step(kMoment);
    for (const auto& lane : tier().lanes) lane->step(kMoment);
    commit();
    return done();
  });
}

std::optional<CatalogNode> PoolPartsTest::node(uint64_t id) {
  commit();
  return node_in(tier().store->catalog(), id);
}

uint64_t PoolPartsTest::catalogued(const std::string& name) {
  commit();
  return id_in(tier().store->catalog(), kCatalogRoot, name).value_or(0);
}

}  // namespace kvcachefs::test
