// What brings bytes from the disk: promotions, reads of entries that stay there, and the search for their
// holes.
#include <gtest/gtest.h>

#include <cerrno>

#include "tests/support/files.h"
#include "tests/support/pool_parts.h"
#include "tier/pool/disk_requests.h"

namespace kvcachefs::disk_requests_reads_test {

using test::code_of;
using test::pattern;

class DiskRequestsReadsTest : public test::PoolPartsTest {
 protected:
  DiskRequestsReadsTest() : PoolPartsTest(Upto::kRequests) {}
  std::optional<PromoteOutcome::Kind> promote(uint64_t its) {
    std::optional<PromoteOutcome::Kind> kind;
    requests_->promote(its, [&](const PromoteOutcome& outcome) { kind = outcome.kind; });
    EXPECT_TRUE(kind || work_until([&] { return kind.has_value(); }));
    return kind;
  }
  // What a client that reads gets: bytes, or the name of an errno.
  std::string read(uint64_t its, uint64_t offset, size_t size) {
    std::optional<std::string> result;
    requests_->read_from_disk(its, offset, size, [&](Result<std::span<const std::byte>> bytes) {
      result = bytes ? std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size())
                     : test::error_name(bytes.error().code);
    });
    EXPECT_TRUE(result || work_until([&] { return result.has_value(); }));
    return result.value_or("");
  }
  int seek_fails_with(uint64_t its, uint64_t offset, int whence) {
    return code_of(requests_->seek_on_disk(its, offset, whence));
  }
};

TEST_F(DiskRequestsReadsTest, WithoutADiskBytesAreInMemory) {
  const uint64_t f = store("f", "bytes");
  EXPECT_EQ(promote(f), PromoteOutcome::Kind::kPromoted);
  EXPECT_EQ(read(f, 0, 10), "bytes");
  EXPECT_EQ(read(4711, 0, 10), "ESTALE");
}

TEST_F(DiskRequestsReadsTest, ADiskThatStaysAwayGivesAnError) {
  const uint64_t f = store("f", "bytes");
  (void)lose_disk(std::chrono::hours(0));
  EXPECT_EQ(promote(f), PromoteOutcome::Kind::kFailed);
  EXPECT_EQ(read(f, 0, 10), "bytes") << "it is in memory";
  entries_.contents().found_copy(entry(f), kBlock);
  EXPECT_EQ(read(f, 0, 10), "EIO");
  EXPECT_EQ(seek_fails_with(f, 0, SEEK_DATA), EIO);
}

TEST_F(DiskRequestsReadsTest, APromotionAnswersWhenTheBytesAreThere) {
  attach_disk();
  const uint64_t f = store("f", pattern(1, kBlock));
  EXPECT_EQ(promote(f), PromoteOutcome::Kind::kPromoted) << "there was nothing to do";
  make_cold(f);
  EXPECT_EQ(promote(f), PromoteOutcome::Kind::kPromoted);
  EXPECT_EQ(state(f).tier, Entry::Tier::kClean);
  EXPECT_EQ(content("f"), pattern(1, kBlock));
  EXPECT_EQ(counters_.promote_waits, 2u);
  tier().close();
  EXPECT_EQ(promote(f), PromoteOutcome::Kind::kEnding);
}

// Memory that runs short goes to a reader's promotion last, who can do without.
TEST_F(DiskRequestsReadsTest, AWriterWaitsForMemoryAndAReaderDoesNot) {
  attach_disk();
  const uint64_t f = store("f");
  make_cold(f);
  (void)fill_up();
  EXPECT_EQ(promote(f), PromoteOutcome::Kind::kIntactOnDisk);
  std::optional<PromoteOutcome::Kind> kind;
  requests_->promote(
      f, [&](const PromoteOutcome& outcome) { kind = outcome.kind; }, Room::Whose::kWriter,
      now_coarse_ms() + 1'000'000);
  EXPECT_TRUE(work_until([&] { return capacity_->room().wanted_bytes(Room::Whose::kWriter) > 0; }));
  EXPECT_FALSE(kind);
  ASSERT_EQ(::unlinkat(root(), "fills the pool up", 0), 0);
  capacity_->room().room_made();
  EXPECT_TRUE(work_until([&] { return kind.has_value(); }));
  EXPECT_EQ(kind, PromoteOutcome::Kind::kPromoted);
}

TEST_F(DiskRequestsReadsTest, BytesComeFromWhereTheyAre) {
  attach_disk();
  const std::string bytes = pattern(1, kUnitBytes + 100);
  const uint64_t f = store("f", bytes);
  make_cold(f);
  EXPECT_EQ(read(f, 0, 10), "ESTALE") << "nobody has it open from there";
  hold_on_disk(f);
  EXPECT_EQ(read(f, 10, 100), bytes.substr(10, 100));
  EXPECT_EQ(read(f, kUnitBytes - 10, 1000), bytes.substr(kUnitBytes - 10)) << "to its end";
  EXPECT_EQ(read(f, 2 * kUnitBytes, 10), "");
  ASSERT_EQ(promote(f), PromoteOutcome::Kind::kPromoted);
  const uint64_t reads = device_->counts().reads;
  EXPECT_EQ(read(f, 10, 100), bytes.substr(10, 100));
  EXPECT_EQ(read(f, 2 * kUnitBytes, 10), "");
  EXPECT_EQ(device_->counts().reads, reads) << "it is in memory";
}

TEST_F(DiskRequestsReadsTest, AReadFromADiskThatFails) {
  attach_disk();
  const uint64_t f = store("f");
  make_cold(f);
  hold_on_disk(f);
  device_->fail_reads(1);
  EXPECT_EQ(read(f, 0, 10), "EIO");
  tier().close();
  EXPECT_EQ(read(f, 0, 10), "ESHUTDOWN");
}

TEST_F(DiskRequestsReadsTest, HolesAreFoundOnTheDisk) {
  attach_disk();
  const uint64_t f = store("f", std::string(3 * kUnitBytes, 'x'));
  EXPECT_EQ(*requests_->seek_on_disk(f, 5, SEEK_DATA), 5u) << "in memory";
  EXPECT_EQ(*requests_->seek_on_disk(f, 5, SEEK_HOLE), 3 * kUnitBytes);
  make_cold(f);
  EXPECT_EQ(seek_fails_with(f, 0, SEEK_DATA), EIO) << "nobody has it open from there";
  {
    CatalogContent its = *copy(f);
    its.extents = {{its.extents[0].start, 1}, {0, 1}, {its.extents[0].start + 2, 1}};
    (void)entries_.contents().held_on_disk(entry(f), its);
  }
  EXPECT_EQ(*requests_->seek_on_disk(f, 5, SEEK_DATA), 5u);
  EXPECT_EQ(*requests_->seek_on_disk(f, 5, SEEK_HOLE), kUnitBytes);
  EXPECT_EQ(*requests_->seek_on_disk(f, kUnitBytes, SEEK_DATA), 2 * kUnitBytes);
  EXPECT_EQ(seek_fails_with(f, 3 * kUnitBytes, SEEK_DATA), ENXIO);
  EXPECT_EQ(seek_fails_with(4711, 0, SEEK_DATA), ESTALE);
}

}  // namespace kvcachefs::disk_requests_reads_test
