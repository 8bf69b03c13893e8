// Contents of any shape on a failing disk; the verdict on each must be right.
#include "tier/catalog/content_verifier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <numeric>

#include "tests/support/disks.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/files.h"
#include "tier/catalog/content_layout.h"

namespace kvcachefs::content_verifier_test {

using test::FaultyDisk;
using test::Random;

constexpr uint64_t kUnitBytes = 8192;
constexpr uint64_t kUnits = 512;
constexpr auto kWait = std::chrono::milliseconds(1);

struct Stored {
  std::string bytes;
  std::vector<Extent> extents;
  Checksum checksum;
  Finding expected;
};

// The units are in random order, so that neighbours in a content are no neighbours on the disk.
std::vector<uint64_t> shuffled_units(Random& random) {
  std::vector<uint64_t> units(kUnits - 1);
  std::iota(units.begin(), units.end(), 1);
  for (size_t i = units.size(); i > 1; --i) std::swap(units[i - 1], units[random.below(i)]);
  return units;
}

class World {
 public:
  explicit World(uint64_t seed)
      : random_(seed),
        disk_({.size_bytes = kUnits * kUnitBytes, .seed = seed}),
        units_(shuffled_units(random_)) {
    auto channel = disk_.channel(32);
    channel_ = std::move(*channel);
    const size_t count = random_.below(30);
    for (size_t i = 0; i < count; ++i) store();
  }

  const std::vector<Stored>& contents() const { return contents_; }
  BlockChannel& channel() { return *channel_; }
  Random& random() { return random_; }

 private:
  void store() {
    Stored stored;
    stored.bytes = test::pattern(random_.next(), random_.one_in(6) ? 0 : random_.below(6 * kUnitBytes));
    const uint64_t needed = (stored.bytes.size() + kUnitBytes - 1) / kUnitBytes;
    for (uint64_t unit = 0; unit < needed; ++unit) {
      const uint64_t place = units_.back();
      units_.pop_back();
      write(place, std::string_view(stored.bytes).substr(unit * kUnitBytes, kUnitBytes));
      stored.extents.push_back({place, 1});
    }
    stored.checksum = checksum_of(std::as_bytes(std::span(stored.bytes)));
    if (needed > 0) damage(stored);
    contents_.push_back(std::move(stored));
  }
  void write(uint64_t unit, std::string_view bytes) {
    test::AlignedMemory memory(kUnitBytes);
    std::ranges::copy(std::as_bytes(std::span(bytes)), memory.all().begin());
    const BlockRequest request{
        .kind = BlockRequest::Kind::kWrite, .offset = unit * kUnitBytes, .memory = memory.all(), .tag = 0};
    channel_->submit({&request, 1});
    std::vector<BlockCompletion> done;
    while (done.empty()) (void)channel_->reap(done, kWait);
    ASSERT_EQ(done.front().error, 0);
  }
  void damage(Stored& stored) {
    const uint64_t place = stored.extents[random_.below(stored.extents.size())].start * kUnitBytes;
    switch (random_.below(6)) {
      case 0: {
        const uint64_t at = random_.below(stored.bytes.size());
        disk_.rot(stored.extents[at / kUnitBytes].start * kUnitBytes + at % kUnitBytes, 1);
        stored.expected.kind = Finding::Kind::kWrongBytes;
        break;
      }
      case 1:
        disk_.fail_place(place, 1);
        stored.expected = {Finding::Kind::kUnreadable, EIO};
        break;
      case 2:
        stored.extents.pop_back();
        stored.expected.kind = Finding::Kind::kTooFewExtents;
        break;
      default:
        break;
    }
  }

  Random random_;
  FaultyDisk disk_;
  std::unique_ptr<BlockChannel> channel_;
  std::vector<uint64_t> units_;
  std::vector<Stored> contents_;
};

void verify_all(uint64_t seed) {
  World world(seed);
  Random& random = world.random();
  auto made = ContentVerifier::make(world.channel(), {.unit_bytes = kUnitBytes,
                                                      .alignment_bytes = 4096,
                                                      .piece_bytes = 4096 * (1 + random.below(4)),
                                                      .depth = static_cast<unsigned>(1 + random.below(8))});
  ASSERT_TRUE(made);
  ContentVerifier& verifier = **made;
  const std::vector<Stored>& contents = world.contents();
  // One verifier in four may be abandoned before it has judged all contents.
  const size_t wanted = random.one_in(4) ? random.below(contents.size() + 1) : contents.size();
  size_t begun = 0;
  size_t judged = 0;
  while (judged < wanted) {
    while (verifier.has_room()) {
      if (!verifier.sending()) {
        if (begun == contents.size()) break;
        const Stored& next = contents[begun];
        verifier.begin({begun++, next.bytes.size(), next.checksum, next.extents});
      }
      (void)verifier.send_piece();
      if (random.one_in(3)) break;
    }
    verifier.collect(kWait);
    while (auto verdict = verifier.next_verdict()) {
      ASSERT_EQ(verdict->content.id, judged) << "in the order in which they were begun";
      const Stored& stored = contents[judged++];
      ASSERT_TRUE(verdict->finding == stored.expected) << "content " << verdict->content.id;
      if (stored.expected.is_whole()) {
        ASSERT_EQ(verdict->read_bytes, stored.bytes.size());
      }
    }
  }
  if (judged == contents.size()) {
    EXPECT_TRUE(verifier.idle());
  }
}

TEST(ContentVerifier, EachIsJudgedAsItIs) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    verify_all(seed);
    if (HasFatalFailure()) return;
  }
}

TEST(ContentVerifier, HolesAreNotRead) {
  FaultyDisk disk({.size_bytes = kUnits * kUnitBytes, .seed = 1});
  auto channel = *disk.channel(8);
  auto verifier = *ContentVerifier::make(
      *channel, {.unit_bytes = kUnitBytes, .alignment_bytes = 4096, .piece_bytes = 4096, .depth = 2});
  const std::vector<std::byte> unit(kUnitBytes);  // as an empty disk gives it
  const std::vector<Extent> extents = {{0, uint64_t{1} << 40}, {5, 1}, {0, 3}, {7, 1}, {0, 9}};
  Hasher hasher;
  uint64_t units = 0;
  for (const Extent& extent : extents) {
    is_hole(extent) ? hash_hole(hasher, extent.count) : hasher.update(unit);
    units += extent.count;
  }
  const std::vector<Extent> others = {{0, (uint64_t{1} << 40) + 1}, {5, 1}, {0, 2}, {7, 1}, {0, 9}};
  const std::vector<Extent> nothing = {{0, 9}};
  Hasher of_nothing;
  hash_hole(of_nothing, 9);
  const std::vector<std::pair<ContentVerifier::Content, Finding::Kind>> cases = {
      {{1, units * kUnitBytes, hasher.digest(), extents}, Finding::Kind::kWhole},
      {{2, units * kUnitBytes - 100, hasher.digest(), extents}, Finding::Kind::kWhole},
      {{3, units * kUnitBytes, hasher.digest(), others}, Finding::Kind::kWrongBytes},
      {{4, units * kUnitBytes, hasher.digest(), std::span(extents).first(4)}, Finding::Kind::kTooFewExtents},
      {{5, 9 * kUnitBytes, of_nothing.digest(), nothing}, Finding::Kind::kWhole},
      {{6, 9 * kUnitBytes + 1, of_nothing.digest(), nothing}, Finding::Kind::kTooFewExtents}};
  for (const auto& [content, expected] : cases) {
    verifier->begin(content);
    std::optional<ContentVerifier::Verdict> verdict;
    for (int tries = 0; !verdict && tries < 1000; ++tries) {
      while (verifier->sending() && verifier->has_room()) (void)verifier->send_piece();
      verifier->collect(kWait);
      verdict = verifier->next_verdict();
    }
    ASSERT_TRUE(verdict) << content.id;
    EXPECT_EQ(verdict->finding.kind, expected) << content.id;
    EXPECT_LE(verdict->read_bytes, 2 * kUnitBytes);
  }
}

}  // namespace kvcachefs::content_verifier_test
