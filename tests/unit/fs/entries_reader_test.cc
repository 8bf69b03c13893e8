#include "fs/control/entries_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <ranges>
#include <string>
#include <vector>

#include "base/escape.h"
#include "fs/control/orders.h"

namespace kvcachefs::entries_reader_test {

class EntriesReaderTest : public testing::Test {
 protected:
  EntriesReaderTest() {
    std::mt19937 random(7);
    whole_ = entries_header();
    for (std::vector<EntryListing>& shard : shards_) {
      shard.resize(random() % 20);
      for (EntryListing& entry : shard) {
        entry.name = "entry-" + std::to_string(random());
        entry.size_bytes = random();
      }
    }
    shards_[9].resize(2000, EntryListing{.name = "of a large shard"});
    // The reader takes the entries of a shard from its end.
    for (const std::vector<EntryListing>& shard : shards_)
      for (const EntryListing& entry : shard | std::views::reverse) whole_ += render_entry(entry);
  }

  EntriesReader make_reader() {
    const auto list_shard = [this](size_t shard) {
      ++listed_;
      std::vector<sys::Handle> entries;
      for (uint32_t i = 0; i < shards_.at(shard).size(); ++i) entries.push_back({shard, i});
      return entries;
    };
    const auto describe = [this](sys::Handle entry) -> std::optional<EntryListing> {
      ++described_;
      if (gone_ == entry.ino) return std::nullopt;
      return shards_[entry.ino][entry.generation];
    };
    return EntriesReader(shards_.size(), list_shard, describe);
  }

  std::vector<std::vector<EntryListing>> shards_{64};
  std::string whole_;
  size_t listed_ = 0;
  size_t described_ = 0;
  std::optional<size_t> gone_;  // the shard whose entries have left since they were listed
};

TEST_F(EntriesReaderTest, SequentialReadsListEachShardOnce) {
  for (const size_t size : {1, 7, 100, 4096, 1 << 20}) {
    listed_ = 0;
    EntriesReader reader = make_reader();
    std::string read;
    for (std::string piece; !(piece = reader.read(read.size(), size)).empty(); read += piece) {
      ASSERT_TRUE(piece.size() == size || read.size() + piece.size() == whole_.size())
          << "short before the end";
    }
    EXPECT_EQ(read, whole_);
    EXPECT_EQ(listed_, shards_.size());
  }
}

// However many entries a pool has, a read takes the time of the few that it shows.
TEST_F(EntriesReaderTest, OneReadDescribesFewEntriesMoreThanItShows) {
  EntriesReader reader = make_reader();
  size_t described_before = 0;
  std::string read;
  for (std::string piece; !(piece = reader.read(read.size(), 4096)).empty(); read += piece) {
    const auto shown = static_cast<size_t>(std::ranges::count(piece, '\n'));
    EXPECT_LE(described_ - described_before, shown + 2 * EntriesReader::kPieceEntries);
    described_before = described_;
  }
  EXPECT_EQ(read, whole_);
}

TEST_F(EntriesReaderTest, EntriesThatHaveLeftAreNotListed) {
  gone_ = 9;
  EntriesReader reader = make_reader();
  const std::string read = reader.read(0, whole_.size());
  EXPECT_EQ(read.find("of a large shard"), std::string::npos);
  EXPECT_EQ(described_, static_cast<size_t>(std::ranges::count(read, '\n')) - 1 + 2000);
}

TEST_F(EntriesReaderTest, NothingIsListedBeforeItIsRead) {
  EntriesReader reader = make_reader();
  EXPECT_EQ(reader.read(0, 4), "name");
  EXPECT_EQ(listed_, 0u);
}

TEST_F(EntriesReaderTest, AnyOffsetGivesTheSameBytes) {
  std::mt19937 random(8);
  EntriesReader reader = make_reader();
  for (int i = 0; i < 500; ++i) {
    const size_t offset = random() % (whole_.size() + 100);
    const size_t size = random() % 300;
    ASSERT_EQ(reader.read(offset, size), offset < whole_.size() ? whole_.substr(offset, size) : "");
  }
}

TEST_F(EntriesReaderTest, RestartsAtTheBeginning) {
  EntriesReader reader = make_reader();
  EXPECT_EQ(reader.read(0, whole_.size()), whole_);
  EXPECT_EQ(reader.read(whole_.size(), 10), "");
  EXPECT_EQ(reader.read(0, whole_.size()), whole_);
}

// A user can neither make one name look like several entries nor send commands to a terminal.
TEST_F(EntriesReaderTest, AnyNameIsOneFieldOfOneLine) {
  for (const std::string name : {"a\rforged\t1", "b\nc", "d\\x41", "e\x1b[2J\x7f", "f\\\r", "\xff\\n"}) {
    EntryListing entry{};
    entry.name = name;
    const std::string line = render_entry(entry);
    EXPECT_EQ(std::ranges::count(line, '\t'), 7) << line;
    const std::string field = line.substr(0, line.find('\t'));
    EXPECT_TRUE(std::ranges::none_of(field, is_control)) << line;
    const auto orders = parse_prefetch_orders(field + "\n");
    ASSERT_TRUE(orders && orders->size() == 1);
    EXPECT_EQ(orders->front().name, name);
  }
}

TEST_F(EntriesReaderTest, AnEmptyPoolHasAHeader) {
  EntriesReader reader(
      0, [](size_t) { return std::vector<sys::Handle>(); },
      [](sys::Handle) { return std::optional<EntryListing>(); });
  EXPECT_EQ(reader.read(0, 1000), entries_header());
  EXPECT_EQ(reader.read(entries_header().size(), 1000), "");
}

}  // namespace kvcachefs::entries_reader_test
