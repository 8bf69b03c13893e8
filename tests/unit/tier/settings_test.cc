#include "tier/pool/settings.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include "tests/support/pool_parts.h"

namespace kvcachefs::settings_test {

using test::code_of;

class SettingsTest : public test::PoolPartsTest {
 protected:
  SettingsTest() : PoolPartsTest(Upto::kSettings) { options_.size_max_bytes = 2 * kPoolBytes; }
  PoolOptions options() const { return settings_->options(); }
  static PoolOptions spill() {
    PoolOptions options;
    options.spill_path = "/disk";
    options.spill_size_bytes = 64 * kUnitBytes;
    options.catalog_path = "/catalog";
    options.admission = Admission::kTinyLfu;
    options.prefetch = false;
    return options;
  }
};

TEST_F(SettingsTest, APoolGrows) {
  ASSERT_TRUE(settings_->set_size(2 * kPoolBytes));
  EXPECT_EQ(options().size_bytes, 2 * kPoolBytes);
  EXPECT_EQ(capacity_->size_bytes(), 2 * kPoolBytes);
  EXPECT_EQ(arena_->usage().size_bytes, 2 * kPoolBytes);
}

TEST_F(SettingsTest, APoolShrinksAndItsEntriesLeave) {
  (void)store("f", std::string(6 * kMiB, 'x'));
  (void)store("g", std::string(6 * kMiB, 'x'));
  ASSERT_TRUE(settings_->set_size(8 * kMiB));
  EXPECT_EQ(options().size_bytes, 8 * kMiB);
  EXPECT_EQ(capacity_->size_bytes(), 8 * kMiB);
  EXPECT_EQ(arena_->usage().size_bytes, 8 * kMiB);
  EXPECT_FALSE(is_there("f"));
  EXPECT_TRUE(is_there("g"));
  EXPECT_EQ(heard_.waits, 1);
}

TEST_F(SettingsTest, APoolDoesNotShrinkBelowWhatIsPinnedOrInUse) {
  const uint64_t f = store("f", std::string(6 * kMiB, 'x'));
  ASSERT_TRUE(tree_->set_pinned(f, true));
  open_entry(store("g", std::string(3 * kMiB, 'x')));
  (void)store("h", std::string(kMiB, 'x'));
  const auto refused = settings_->set_size(8 * kMiB);
  ASSERT_EQ(code_of(refused), EBUSY);
  EXPECT_EQ(refused.error().message, "pool p: 9M are pinned or in use, more than the size 8M asked for");
  EXPECT_EQ(options().size_bytes, kPoolBytes);
  EXPECT_EQ(capacity_->size_bytes(), kPoolBytes);
  EXPECT_EQ(arena_->usage().size_bytes, kPoolBytes);
}

TEST_F(SettingsTest, TheLargestSizeIsNotBelowTheSize) {
  EXPECT_EQ(code_of(settings_->set_size_max(kPoolBytes - kBlock)), EINVAL);
  EXPECT_EQ(options().size_max_bytes, 2 * kPoolBytes);
  ASSERT_TRUE(settings_->set_size_max(kPoolBytes));
  EXPECT_EQ(options().size_max_bytes, kPoolBytes);
}

TEST_F(SettingsTest, LimitsOfNamesHoldFromNowOn) {
  ASSERT_TRUE(settings_->set_max_entries(7));
  ASSERT_TRUE(settings_->set_max_directories(3));
  EXPECT_EQ(options().max_entries, 7u);
  EXPECT_EQ(options().max_directories, 3u);
  EXPECT_EQ(limits_.entries.most(), 7u);
  EXPECT_EQ(limits_.directories.most(), 3u);
  ASSERT_TRUE(settings_->set_max_xattr_bytes(4096));
  ASSERT_TRUE(settings_->set_max_xattrs(9));
  EXPECT_EQ(options().max_xattr_bytes, 4096u);
  EXPECT_EQ(options().max_xattrs, 9u);
  ASSERT_TRUE(settings_->set_leaf_first(true));
  EXPECT_TRUE(options().leaf_first);
  EXPECT_EQ(limits_.xattr_bytes, 4096u);
  EXPECT_EQ(limits_.xattrs, 9u);
}

TEST_F(SettingsTest, OptionsOfAVersionWithoutALargestSize) {
  PoolOptions old;
  old.size_bytes = kPoolBytes;
  const PoolPart part{kPool, name_, surroundings_, *arena_, *capacity_, entries_, counters_, limits_};
  const Settings settings({part, *disk_}, old, *prefetcher_, *requests_, *evictor_);
  EXPECT_EQ(settings.options().size_max_bytes, kPoolBytes);
}

TEST_F(SettingsTest, APolicyTakesOverTheEntries) {
  const uint64_t f = store("f"), g = store("g");
  open_entry(f);
  close_entry(f);
  EXPECT_EQ(code_of(settings_->set_policy("none")), EINVAL);
  EXPECT_EQ(options().policy, "lru");
  ASSERT_TRUE(settings_->set_policy("fifo"));
  EXPECT_EQ(options().policy, "fifo");
  EXPECT_EQ(entries_.candidates().next_victim(false)->ino, f) << "though it was used last";
  EXPECT_EQ(entries_.candidates().next_victim(false)->ino, g);
}

TEST_F(SettingsTest, WatermarksHoldFromTheNextRoundOn) {
  (void)store("f", std::string(9 * kMiB, 'x'));
  EXPECT_EQ(capacity_->pressure_bytes(), 0u);
  ASSERT_TRUE(settings_->set_watermarks({.low_percent = 25, .high_percent = 50}));
  EXPECT_EQ(options().watermarks.high_percent, 50u);
  EXPECT_GT(capacity_->pressure_bytes(), 4 * kMiB);
}

TEST_F(SettingsTest, AnEntryFitsIntoThePool) {
  EXPECT_EQ(code_of(settings_->set_entry_size(kPoolBytes + 1)), EINVAL);
  EXPECT_EQ(options().entry_size_bytes, 0u);
  ASSERT_TRUE(settings_->set_entry_size(kMiB));
  EXPECT_EQ(options().entry_size_bytes, kMiB);
  EXPECT_EQ(capacity_->expected_entry_bytes(), kMiB);
}

TEST_F(SettingsTest, TheAdministratorAloneRaisesWhatMayBePinned) {
  ASSERT_TRUE(settings_->set_pinned_max(20, Authority::kOwner));
  EXPECT_EQ(capacity_->limit().pinned_max_bytes(), kPoolBytes / 100 * 20 + kPoolBytes % 100 * 20 / 100);
  const auto refused = settings_->set_pinned_max(21, Authority::kOwner);
  ASSERT_EQ(code_of(refused), EPERM);
  EXPECT_EQ(refused.error().message,
            "pool p: pinned_max 21% is more than 20%, which only the administrator raises "
            "(.kvcachefs/pools/p/pinned_max)");
  EXPECT_EQ(options().pinned_max_percent, 20u);
  ASSERT_TRUE(settings_->set_pinned_max(20, Authority::kOwner));
  ASSERT_TRUE(settings_->set_pinned_max(90, Authority::kAdministrator));
  EXPECT_EQ(options().pinned_max_percent, 90u);
}

TEST_F(SettingsTest, WithoutADiskItHasNoSettings) {
  EXPECT_EQ(code_of(settings_->set_durability(Durability::kSync)), EOPNOTSUPP);
  EXPECT_EQ(code_of(settings_->set_admission(Admission::kSecondAccess)), EOPNOTSUPP);
  EXPECT_FALSE(options().durability);
  EXPECT_EQ(options().admission, Admission::kAll);
  (void)lose_disk(std::chrono::hours(1));
  EXPECT_EQ(code_of(settings_->set_durability(Durability::kSync)), EIO);
  EXPECT_EQ(code_of(settings_->set_admission(Admission::kSecondAccess)), EIO);
}

TEST_F(SettingsTest, WithDurabilityTheDiskGetsWhatIsThere) {
  attach_disk();
  make_directory("d");
  const uint64_t f = store("f");
  ASSERT_TRUE(settings_->set_durability(Durability::kWriteback));
  EXPECT_EQ(options().durability, Durability::kWriteback);
  EXPECT_EQ(disk_->durability(), Durability::kWriteback);
  EXPECT_TRUE(state(f).spill_queued);
  EXPECT_NE(catalogued("d"), 0u);
  make_directory("e");
  ASSERT_TRUE(settings_->set_durability(Durability::kSync));
  EXPECT_EQ(catalogued("e"), 0u) << "the catalog hears of each as it is made";
  ASSERT_TRUE(settings_->set_durability(Durability::kNone));
  EXPECT_EQ(disk_->durability(), Durability::kNone);
}

TEST_F(SettingsTest, AdmissionAndPrefetch) {
  attach_disk();
  ASSERT_TRUE(settings_->set_admission(Admission::kSecondAccess));
  EXPECT_EQ(options().admission, Admission::kSecondAccess);
  EXPECT_EQ(tier().admission.kind(), Admission::kSecondAccess);
  const uint64_t f = store("f"), g = store("g");
  for (const uint64_t its : {f, g}) prefetcher_->opened(entry(its), false, 77);
  make_cold(g);
  ASSERT_TRUE(settings_->set_auto_prefetch(false));
  EXPECT_FALSE(options().prefetch);
  prefetcher_->open_ahead(f, 77);
  EXPECT_EQ(tier().promoter.queued(), 0u);
  ASSERT_TRUE(settings_->set_auto_prefetch(true));
  EXPECT_TRUE(options().prefetch);
  settings_->use_disk(spill());
  prefetcher_->open_ahead(f, 77);
  EXPECT_EQ(tier().promoter.queued(), 0u) << "as for a disk that is given with prefetch=off";
  ASSERT_TRUE(settings_->set_auto_prefetch(true));
  prefetcher_->open_ahead(f, 77);
  EXPECT_EQ(tier().promoter.queued(), 1u);
}

TEST_F(SettingsTest, ThePoolHasTheSettingsOfItsDisk) {
  settings_->name_disk(spill());
  EXPECT_EQ(options().spill_path, "/disk");
  EXPECT_EQ(options().spill_size_bytes, 64 * kUnitBytes);
  EXPECT_EQ(options().catalog_path, "/catalog");
  EXPECT_EQ(options().admission, Admission::kTinyLfu);
  EXPECT_FALSE(options().prefetch);
  EXPECT_EQ(options().spill_unit_bytes, kDefaultSpillUnitBytes);
  EXPECT_EQ(disk_->durability(), Durability::kNone) << "it is about to get the disk";
  attach_disk();
  settings_->use_disk(spill());
  EXPECT_EQ(options().spill_unit_bytes, kUnitBytes) << "as the disk has it";
  EXPECT_EQ(disk_->durability(), Durability::kWriteback);
  settings_->name_disk({});
  EXPECT_EQ(options().spill_path, "");
  EXPECT_EQ(options().size_bytes, kPoolBytes) << "and its own";
}

}  // namespace kvcachefs::settings_test
