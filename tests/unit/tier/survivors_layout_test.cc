// How memory that another program has laid out is read: that of version 3, which had no table of sections,
// and tables that differ from this program's. And the fields of all shared structs, so that none changes
// unnoticed.
#include "tier/survivors/layout.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "base/mapping.h"
#include "tier/survivors/survivors.h"

namespace kvcachefs::survivors_layout_test {

// `NAME OFFSET+SIZE` of each field. A field that is left out does not compile, because the structured binding
// has one name a field.
#define KVCACHEFS_FIELD(name) result += fmt::format(#name " {}+{}, ", offsetof(Struct, name), sizeof(name));
#define KVCACHEFS_FIELDS_OF(type, each, ...)                                                          \
  [] {                                                                                                \
    using Struct = type;                                                                              \
    void* const memory =                                                                              \
        mmap(nullptr, sizeof(Struct), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); \
    const auto& [__VA_ARGS__] = *static_cast<const Struct*>(memory);                                  \
    std::string result;                                                                               \
    each;                                                                                             \
    munmap(memory, sizeof(Struct));                                                                   \
    return result + fmt::format("in {}", sizeof(Struct));                                             \
  }()
#define F(name) KVCACHEFS_FIELD(name)

struct SectionOfStruct {
  std::string sections;  // whose records these are
  std::string fields, expected;
};

// If one of these fails: fields that were added at the end need the line here alone, if zero stands for "not
// known" and a program that does not know them may go on without; if it may not, the section's flag
// kMustBeWhole, too. Any other change, also one of what a field means, needs another tag in
// survivors.cc, and a look at what copy() in there has to make of the old section.
TEST(SurvivorsLayout, NoStructChangesUnnoticed) {
  const SectionOfStruct structs[] = {
      {"con1",
       KVCACHEFS_FIELDS_OF(Connection::Shared, F(device_fd) F(mount_point) F(init_bytes) F(init), device_fd,
                           mount_point, init_bytes, init),
       "device_fd 0+4, mount_point 4+4096, init_bytes 4104+8, init 4112+4096, in 8208"},
      {"chi1",
       KVCACHEFS_FIELDS_OF(
           Children::Shared,
           F(forbidden) F(serving_since_ns) F(last_beat_ns) F(upgrades_done) F(upgrades_refused) F(refusal),
           forbidden, serving_since_ns, last_beat_ns, upgrades_done, upgrades_refused, refusal),
       "forbidden 0+4, serving_since_ns 8+8, last_beat_ns 16+8, upgrades_done 24+4, upgrades_refused 28+4, "
       "refusal 32+512, in 544"},
      {"req1 han1 ren1 sta1",
       KVCACHEFS_FIELDS_OF(Requests::Shared,
                           F(generation) F(threads) F(renames) F(stale_lost_s) F(in_hand) F(renamed) F(stale),
                           generation, threads, renames, stale_lost_s, in_hand, renamed, stale),
       "generation 0+4, threads 4+4, renames 8+4, stale_lost_s 12+4, in_hand 16+98304, renamed 98320+98304, "
       "stale 196624+4096, in 200720"},
      {"han1",
       KVCACHEFS_FIELDS_OF(Requests::InHand, F(unique) F(attempted) F(generation) F(begun_ns), unique,
                           attempted, generation, begun_ns),
       "unique 0+8, attempted 8+4, generation 12+4, begun_ns 16+8, in 24"},
      {"ren1",
       KVCACHEFS_FIELDS_OF(Requests::Renamed, F(unique) F(first_ino) F(second_ino), unique, first_ino,
                           second_ino),
       "unique 0+8, first_ino 8+8, second_ino 16+8, in 24"},
      {"sta1", KVCACHEFS_FIELDS_OF(Requests::Stale, F(thread) F(at_ms), thread, at_ms),
       "thread 0+4, at_ms 8+8, in 16"},
      {"poo1 tex1", KVCACHEFS_FIELDS_OF(Survivors::PoolsText, F(which) F(bytes), which, bytes),
       "which 0+4, bytes 8+16, in 24"},
      {"opu1 ope1", KVCACHEFS_FIELDS_OF(OpenHandles::Shared, F(used) F(places), used, places),
       "used 0+4, places 8+25165824, in 25165832"},
      {"ope1",
       KVCACHEFS_FIELDS_OF(OpenHandles::Record, F(key) F(unique) F(sequence) F(writer) F(from_disk), key,
                           unique, sequence, writer, from_disk),
       "key 0+8, unique 8+8, sequence 16+4, writer 20+2, from_disk 22+2, in 24"},
      {"bah1 bau1", KVCACHEFS_FIELDS_OF(BackingIds::Shared, F(highest) F(records), highest, records),
       "highest 0+4, records 8+16777224, in 16777232"},
      {"bac1", KVCACHEFS_FIELDS_OF(BackingIds::Record, F(key) F(id) F(closing), key, id, closing),
       "key 0+8, id 8+4, closing 12+4, in 16"},
      {"keu1 kep1", KVCACHEFS_FIELDS_OF(KeptInodes::Shared, F(used) F(places), used, places),
       "used 0+4, places 8+16777216, in 16777224"},
      {"kep1", KVCACHEFS_FIELDS_OF(KeptInodes::Record, F(key) F(generation) F(fd), key, generation, fd),
       "key 0+8, generation 8+4, fd 12+4, in 16"},
  };
  for (const SectionOfStruct& its : structs) EXPECT_EQ(its.fields, its.expected) << its.sections;
  std::string table;
  for (const Section& section : Survivors::sections())
    table +=
        fmt::format("{} {}: {} x {}\n", section.name(), section.flags, section.record_bytes, section.count);
  EXPECT_EQ(table,
            "con1 1: 8208 x 1\nchi1 1: 544 x 1\nreq1 1: 16 x 1\nhan1 1: 24 x 4096\nren1 1: 24 x 4096\nsta1 "
            "1: 16 x 256\n"
            "poo1 1: 24 x 1\ntex1 3: 16777216 x 2\nopu1 1: 8 x 1\nope1 1: 24 x 1048576\nbah1 1: 8 x 1\nbau1 "
            "1: 8 x 1\n"
            "bac1 1: 16 x 1048576\nkeu1 1: 8 x 1\nkep1 1: 16 x 1048576\n");
}

#undef F
#undef KVCACHEFS_FIELDS_OF
#undef KVCACHEFS_FIELD

class Memory {
 public:
  explicit Memory(uint64_t size) : fd_(memfd_create("x", MFD_CLOEXEC)) {
    EXPECT_EQ(::ftruncate(fd_.get(), static_cast<off_t>(size)), 0);
  }
  template <class Value>
  void put(uint64_t offset, const Value& value) {
    EXPECT_EQ(::pwrite(fd_.get(), &value, sizeof value, static_cast<off_t>(offset)),
              static_cast<ssize_t>(sizeof value));
  }
  void put_text(uint64_t offset, const std::string& text) {
    EXPECT_EQ(::pwrite(fd_.get(), text.data(), text.size(), static_cast<off_t>(offset)),
              static_cast<ssize_t>(text.size()));
  }
  void put_header(uint32_t version, std::span<const Section> sections) {
    LayoutHeader header{.magic = LayoutHeader::kMagic,
                        .version = version,
                        .count = static_cast<uint32_t>(sections.size()),
                        .sections = {}};
    std::ranges::copy(sections, header.sections.begin());
    put(0, header);
  }
  int fd() const { return fd_.get(); }
  Result<std::unique_ptr<Survivors>> open() const { return Survivors::open(UniqueFd(::dup(fd()))); }

 private:
  UniqueFd fd_;
};

// What was never written to takes no memory.
int64_t taken_bytes(int fd) {
  struct stat attributes {};
  EXPECT_EQ(::fstat(fd, &attributes), 0);
  return int64_t{attributes.st_blocks} * 512;
}

constexpr uint64_t kKey = (uint64_t{3} << 48) | 4711;
constexpr PoolInode kInode{.pool = 3, .ino = 4711};

// The offsets are those of the programs that wrote such memory.
TEST(SurvivorsLayout, ThatOfVersion3IsRead) {
  Memory memory(92484232);
  memory.put(0, LayoutHeader::kMagic);
  memory.put(8, uint32_t{3});
  memory.put(16, int32_t{17});
  memory.put_text(20, "/mnt/kv");
  memory.put(16 + 4104, uint64_t{3});
  memory.put_text(16 + 4112, "abc");
  memory.put(8224 + 28, uint32_t{2});
  memory.put_text(8224 + 32, "not today");
  memory.put(8768, uint32_t{5});
  memory.put(8768 + 12, uint32_t{1});
  memory.put(8784 + 3 * 24, uint64_t{42});
  memory.put(8784 + 3 * 24 + 8, uint32_t{1});
  memory.put(107088 + 7 * 24, uint64_t{44});
  memory.put(107088 + 7 * 24 + 8, uint64_t{45});
  memory.put(107088 + 7 * 24 + 16, uint64_t{46});
  memory.put(209488, uint32_t{1});
  memory.put(209504, uint64_t{9});
  memory.put_text(209512 + 16777216, "pool 1 p\n");
  memory.put(33763944, uint32_t{1'000'000});
  memory.put(33763952 + 24 * 999'999, kKey);
  memory.put(33763952 + 24 * 999'999 + 8, uint64_t{48});
  memory.put(33763952 + 24 * 999'999 + 16, uint32_t{6});
  memory.put(33763952 + 24 * 999'999 + 20, uint16_t{1});
  memory.put(58929776, int32_t{8});
  memory.put(58929784, uint32_t{1});
  memory.put(58929792, kKey);
  memory.put(58929792 + 8, int32_t{8});
  memory.put(75707008, uint32_t{2});
  memory.put(75707016 + 16, kKey);
  memory.put(75707016 + 24, uint32_t{9});
  memory.put(75707016 + 28, int32_t{10});
  auto opened = memory.open();
  ASSERT_TRUE(opened) << opened.error().message;
  Survivors& survivors = **opened;
  EXPECT_TRUE(survivors.copied());
  // Before anything is looked up: a page of a shared mapping that is only read takes memory, too.
  EXPECT_LE(taken_bytes(survivors.memory_fd()), 2 * taken_bytes(memory.fd()));
  EXPECT_EQ(survivors.begin_generation(), 5u);
  EXPECT_EQ(survivors.connection().device_fd(), 17);
  EXPECT_EQ(survivors.connection().mount_point(), "/mnt/kv");
  EXPECT_EQ(survivors.connection().init().size(), 3u);
  EXPECT_EQ(survivors.connection().init()[2], std::byte{'c'});
  EXPECT_EQ(survivors.children().upgrades().refused, 2u);
  EXPECT_EQ(survivors.children().upgrades().reason, "not today");
  EXPECT_TRUE(survivors.children().may_succeed());
  EXPECT_TRUE(survivors.requests().was_attempted(42));
  ASSERT_TRUE(survivors.requests().attempted_rename(44));
  EXPECT_EQ(survivors.requests().attempted_rename(44)->second_ino, 46u);
  EXPECT_TRUE(survivors.requests().lost_stale_lately()) << "a count or a time: it is not known which";
  EXPECT_EQ(survivors.pools(), "pool 1 p\n");
  const auto handle = survivors.handles().opened_by(48);
  ASSERT_TRUE(handle);
  EXPECT_EQ(handle->inode, kInode);
  EXPECT_EQ(handle->handle, (uint64_t{6} << 20) | 999'999) << "the number that the kernel has";
  EXPECT_EQ(survivors.backing_ids().highest(), 8);
  int held = 0;
  survivors.backing_ids().for_each([&](const HeldBacking& backing, bool) { held += backing.id; });
  EXPECT_EQ(held, 8);
  ASSERT_EQ(survivors.kept_inodes().list().size(), 1u);
  EXPECT_EQ(survivors.kept_inodes().list()[0].second.fd, 10);
  EXPECT_EQ(survivors.kept_inodes().list()[0].first, 1u);
  // The copy is what goes on, and the next program finds it as its own.
  ASSERT_TRUE(survivors.set_pools("pool 1 q\n"));
  auto next = Survivors::open(UniqueFd(::dup(survivors.memory_fd())));
  ASSERT_TRUE(next);
  EXPECT_FALSE((*next)->copied());
  EXPECT_EQ((*next)->pools(), "pool 1 q\n");
  EXPECT_EQ((*memory.open())->pools(), "pool 1 p\n");
}

TEST(SurvivorsLayout, OneThatOnlyLooksChangesNothing) {
  auto created = Survivors::create();
  ASSERT_TRUE(created);
  ASSERT_TRUE((*created)->set_pools("pool 1 p\n"));
  auto looking = Survivors::look_at(UniqueFd(::dup((*created)->memory_fd())));
  ASSERT_TRUE(looking);
  EXPECT_EQ((*looking)->pools(), "pool 1 p\n");
  (*looking)->children().forbid_succession();
  EXPECT_TRUE((*created)->children().may_succeed());
}

TEST(SurvivorsLayout, ATableThatPointsElsewhereIsRefused) {
  for (const Section& wrong : {Section{"con1", 0, 1 << 20, 8, 1}, Section{"con1", 0, 1 << 12, 0, 1},
                               Section{"con1", 0, 1 << 12, 8, UINT64_MAX / 8}}) {
    Memory memory(1 << 20);
    memory.put_header(LayoutHeader::kVersion, {&wrong, 1});
    const auto opened = memory.open();
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, EPROTONOSUPPORT);
  }
}

class CopySectionsTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kAt = 1 << 16;
  struct Record {
    uint64_t key, value;
  };

  CopySectionsTest() : memory_(1 << 20), copy_(2 * sizeof(Record)) {}
  // `theirs` has two records of this length, whose words are 1, 2, 3 and so on; ours has two of 16 bytes.
  Result<void> copy(Section theirs) {
    for (uint64_t i = 0; i < theirs.bytes() / 8; ++i) memory_.put(kAt + 8 * i, i + 1);
    theirs.offset = kAt;
    const Section ours{"own1", 0, 0, sizeof(Record), 2};
    return copy_sections(memory_.fd(), {&theirs, 1}, copy_.data(), {&ours, 1});
  }
  std::vector<uint64_t> words() const {
    std::vector<uint64_t> words(copy_.size() / 8);
    std::memcpy(words.data(), copy_.data(), copy_.size());
    return words;
  }

  Memory memory_;
  std::vector<std::byte> copy_;
};

TEST_F(CopySectionsTest, RecordsOfTheSameLength) {
  ASSERT_TRUE(copy({"own1", 0, 0, 16, 2}));
  EXPECT_EQ(words(), (std::vector<uint64_t>{1, 2, 3, 4}));
}

TEST_F(CopySectionsTest, OfShorterRecordsTheRestIsZero) {
  ASSERT_TRUE(copy({"own1", Section::kMustBeWhole, 0, 8, 2}));
  EXPECT_EQ(words(), (std::vector<uint64_t>{1, 0, 2, 0}));
}

TEST_F(CopySectionsTest, LongerOnesAreCutWhereTheyMayBe) {
  ASSERT_TRUE(copy({"own1", Section::kMustBeKnown, 0, 24, 2}));
  EXPECT_EQ(words(), (std::vector<uint64_t>{1, 2, 4, 5}));
  const auto refused = copy({"own1", Section::kMustBeWhole, 0, 24, 2});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("own1"), std::string::npos);
}

TEST_F(CopySectionsTest, AnUnknownSectionIsLeftOutWhereItMayBe) {
  ASSERT_TRUE(copy({"tom1", Section::kMustBeWhole, 0, 16, 2}));
  EXPECT_EQ(words(), (std::vector<uint64_t>{0, 0, 0, 0}));
  const auto refused = copy({"tom1", Section::kMustBeKnown, 0, 16, 2});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("tom1"), std::string::npos);
}

TEST_F(CopySectionsTest, MorePlacesMustBeFree) {
  const auto refused = copy({"own1", 0, 0, 16, 3});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("own1"), std::string::npos);
  memory_.put(kAt + 32, Record{});
  const Section theirs{"own1", 0, kAt, 16, 3}, ours{"own1", 0, 0, sizeof(Record), 2};
  EXPECT_TRUE(copy_sections(memory_.fd(), {&theirs, 1}, copy_.data(), {&ours, 1}));
}

}  // namespace kvcachefs::survivors_layout_test
