#include "tier/entries/access_log.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace kvcachefs::access_log_test {

class AccessLogTest : public testing::Test {
 protected:
  using Reader = AccessLog::Reader;

  void add(uint64_t ino, std::string name = {}) { log_.add({.ino = ino, .name = std::move(name)}); }
  Reader reader() {
    auto begun = Reader::begin(log_);
    EXPECT_TRUE(begun);
    return std::move(*begun);
  }
  static std::vector<uint64_t> inos(const Reader::Taken& taken) {
    std::vector<uint64_t> result;
    for (const AccessRecord& record : taken.records) result.push_back(record.ino);
    return result;
  }

  AccessLog log_;
};

TEST_F(AccessLogTest, AReaderGetsWhatComesAfterItsBegin) {
  EXPECT_FALSE(log_.is_read());
  add(1);
  Reader first = reader();
  EXPECT_TRUE(log_.is_read());
  add(2);
  Reader second = reader();
  add(3);
  EXPECT_EQ(inos(first.take(10)), (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(inos(second.take(10)), (std::vector<uint64_t>{3}));
  EXPECT_TRUE(first.take(10).records.empty());
  add(4);
  add(5);
  EXPECT_EQ(inos(first.take(1)), (std::vector<uint64_t>{4}));
  EXPECT_EQ(inos(first.take(1)), (std::vector<uint64_t>{5}));
  EXPECT_EQ(inos(second.take(10)), (std::vector<uint64_t>{4, 5}));
}

TEST_F(AccessLogTest, TheLastReadersEndFreesWhatIsThere) {
  {
    const Reader only = reader();
    add(1);
  }
  EXPECT_FALSE(log_.is_read());
  Reader next = reader();
  EXPECT_TRUE(next.take(10).records.empty());
  add(2);
  const Reader::Taken taken = next.take(10);
  EXPECT_EQ(inos(taken), std::vector<uint64_t>{2});
  EXPECT_EQ(taken.lost, 0u);
  EXPECT_GT(taken.records[0].at_ns, uint64_t{1'700'000'000} * 1'000'000'000) << "nanoseconds since 1970";
}

TEST_F(AccessLogTest, TheOldestAreLost) {
  Reader slow = reader();
  for (uint64_t ino = 0; ino < AccessLog::kMostRecords + 10; ++ino) add(ino);
  Reader::Taken taken = slow.take(2);
  EXPECT_EQ(taken.lost, 10u);
  EXPECT_EQ(inos(taken), (std::vector<uint64_t>{10, 11}));
  add(0);
  taken = slow.take(1);
  EXPECT_EQ(taken.lost, 0u) << "it was ahead of what was lost";
  EXPECT_EQ(inos(taken), std::vector<uint64_t>{12});
}

TEST_F(AccessLogTest, NamesTakeOnlySoMuch) {
  Reader slow = reader();
  constexpr size_t kNameBytes = 4096;
  constexpr size_t kFit = AccessLog::kMostNameBytes / kNameBytes;
  for (uint64_t ino = 0; ino < kFit + 5; ++ino) add(ino, std::string(kNameBytes, 'x'));
  const Reader::Taken taken = slow.take(SIZE_MAX);
  EXPECT_EQ(taken.lost, 5u);
  EXPECT_EQ(taken.records.size(), kFit);
}

TEST_F(AccessLogTest, ThereAreOnlySoManyReaders) {
  std::vector<Reader> readers;
  for (uint32_t i = 0; i < AccessLog::kMostReaders; ++i) readers.push_back(reader());
  const auto refused = Reader::begin(log_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, EMFILE);
  readers.pop_back();
  EXPECT_TRUE(Reader::begin(log_));
}

TEST_F(AccessLogTest, ThreadsMayAddWhileOthersReadAndEnd) {
  constexpr uint64_t kEvents = 20'000;
  Reader whole = reader();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread)
    threads.emplace_back([&] {
      for (uint64_t i = 0; i < kEvents; ++i)
        if (log_.is_read()) add(i);
    });
  for (int i = 0; i < 1000; ++i) (void)reader().take(10);
  uint64_t got = 0;
  for (std::thread& thread : threads) thread.join();
  for (Reader::Taken taken = whole.take(100); !taken.records.empty(); taken = whole.take(100))
    got += taken.lost + taken.records.size();
  EXPECT_EQ(got, 3 * kEvents);
}

}  // namespace kvcachefs::access_log_test
