#include "fs/control/entries_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
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
        whole_ += render_entry(entry);
      }
    }
  }

  EntriesReader make_reader() {
    return EntriesReader(shards_.size(), [this](size_t shard) {
      ++listed_;
      return shards_.at(shard);
    });
  }

  std::vector<std::vector<EntryListing>> shards_{64};
  std::string whole_;
  size_t listed_ = 0;
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
  EntriesReader reader(0, [](size_t) { return std::vector<EntryListing>(); });
  EXPECT_EQ(reader.read(0, 1000), entries_header());
  EXPECT_EQ(reader.read(entries_header().size(), 1000), "");
}

}  // namespace kvcachefs::entries_reader_test
