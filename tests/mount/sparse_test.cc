// Files with holes: on the disk a hole of any length takes no space, and in memory none after the close.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/disk_tier.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

namespace kvcachefs::test {
namespace {

constexpr off_t kGiB = off_t{1} << 30;
constexpr size_t kUnit = 64 << 10;

struct Piece {
  off_t at = 0;
  size_t bytes = 0;
};

class SparseTest : public DiskTierTest {
 protected:
  // make() makes a file of `size` bytes with pattern(index, …) at each of these places.
  std::string make(const std::string& name, off_t size, const std::vector<Piece>& pieces) {
    const File file(path(name), O_RDWR | O_CREAT | O_TRUNC);
    for (size_t i = 0; i < pieces.size(); ++i) write_at(file.fd(), pieces[i].at, pattern(i, pieces[i].bytes));
    EXPECT_EQ(::ftruncate(file.fd(), size), 0);
    return path(name);
  }
  static void write_at(int fd, off_t at, const std::string& bytes) {
    EXPECT_EQ(::pwrite(fd, bytes.data(), bytes.size(), at), static_cast<ssize_t>(bytes.size()));
  }
  static void expect_pieces(const File& file, off_t size, const std::vector<Piece>& pieces) {
    struct ::stat status {};
    ASSERT_EQ(::fstat(file.fd(), &status), 0);
    EXPECT_EQ(status.st_size, size);
    off_t hole = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const auto& [at, bytes] = pieces[i];
      ASSERT_EQ(difference(i, read_at(file.fd(), at, bytes)), "") << "at " << at;
      // The test reads the end of the hole before the piece, the hole's beginning, and a part between.
      for (const off_t from : {at - 4096, hole, (hole + at) / 2})
        if (from >= hole && from + 4096 <= at) {
          ASSERT_EQ(read_at(file.fd(), from, 4096), std::string(4096, '\0')) << "at " << from;
        }
      hole = at + static_cast<off_t>(bytes);
    }
    if (hole + 4096 <= size) {
      EXPECT_EQ(read_at(file.fd(), size - 4096, 4096), std::string(4096, '\0'));
    }
  }
  static void expect_pieces(const std::string& name, off_t size, const std::vector<Piece>& pieces) {
    const File file(name, O_RDONLY);
    expect_pieces(file, size, pieces);
  }
  static int sync(const std::string& name) {
    const File file(name, O_RDWR);
    return error_of(::fsync(file.fd()));
  }
  void expect_others(int count) {
    std::vector<std::string> names;
    for (int i = 0; i < count; ++i) names.push_back(path("e-" + std::to_string(i)));
    EXPECT_EQ(check_whole(names), count);
  }
  void take_over() {
    const pid_t before = mount().serving_pid();
    ASSERT_EQ(::kill(before, SIGKILL), 0);
    ASSERT_TRUE(eventually(
        [&] { return mount().serving_pid() > 0 && mount().serving_pid() != before && exists(path("")); }));
  }
  static int64_t memory_of(const std::string& name) {
    struct ::stat status {};
    EXPECT_EQ(::stat(name.c_str(), &status), 0);
    return status.st_blocks * 512;
  }
};

TEST_F(SparseTest, AHundredGigabytesForAFewPages) {
  start();
  fill_pool("e", 8);
  const off_t size = 100 * kGiB + 321;
  const std::vector<Piece> pieces = {{0, 5000}, {50 * kGiB + 12345, 300'000}, {size - 777, 777}};
  std::string name = make("sparse", size, pieces);
  ASSERT_EQ(error_name(sync(name)), "ok");
  for (int round = 0; round < 2; ++round) {
    make_all_cold();
    EXPECT_EQ(tier_of(name), "cold");
    EXPECT_LT(stat("spill_used_bytes"), 8 * static_cast<int64_t>(kMiB) + 16 * static_cast<int64_t>(kUnit));
    EXPECT_LT(stat("cold_bytes"), 10 * static_cast<int64_t>(kMiB));
    expect_pieces(name, size, pieces);
    EXPECT_EQ(tier_of(name), "clean");
    EXPECT_LT(memory_of(name), static_cast<int64_t>(kMiB)) << "a promoted file has its holes";
    take_over();
    expect_pieces(name, size, pieces);
    make_all_cold();
    take_over();
    EXPECT_EQ(tier_of(name), "cold") << "whatever has no pages there";
    EXPECT_LT(stat("cold_bytes"), 10 * static_cast<int64_t>(kMiB));
    expect_pieces(name, size, pieces);
    stop_and_check();
    start();
    name = path("sparse");
    EXPECT_EQ(tier_of(name), "cold");
    expect_pieces(name, size, pieces);
  }
  expect_others(8);
  EXPECT_EQ(stat("disk_discards"), 0);
  EXPECT_EQ(stat("checksum_errors"), 0);
}

TEST_F(SparseTest, AHoleCostsOthersNothing) {
  start({.size = "32M", .spill_size = "64M", .more = "durability=writeback"});
  fill_pool("e", 24);
  const std::string name = make("hole", 900 * static_cast<off_t>(kMiB), {});
  const std::string largest = make("largest", INT64_MAX, {{0, 100}});
  ASSERT_EQ(error_name(sync(name)), "ok");
  ASSERT_EQ(error_name(sync(largest)), "ok");
  make_all_cold();
  expect_pieces(name, 900 * static_cast<off_t>(kMiB), {});
  stop_and_check();
  start({.size = "32M", .spill_size = "64M", .more = "durability=writeback"});
  expect_pieces(path("hole"), 900 * static_cast<off_t>(kMiB), {});
  expect_pieces(path("largest"), INT64_MAX, {{0, 100}});
  expect_others(24);
  EXPECT_EQ(stat("disk_discards"), 0);
}

// The file has more holes than its mark has room for, and so the smaller ones become zeros.
TEST_F(SparseTest, ManyHoles) {
  start({.size = "64M", .spill_size = "1G"});
  std::vector<Piece> pieces;
  // The file has holes of one unit and of three units.
  for (off_t i = 0; i < 2000; ++i)
    pieces.push_back({(i / 2 * 6 + i % 2 * 2) * static_cast<off_t>(kUnit), 1000});
  const off_t size = pieces.back().at + 10 * static_cast<off_t>(kUnit);
  const std::string name = make("sparse", size, pieces);
  for (int round = 0; round < 2; ++round) {
    make_all_cold();
    ASSERT_EQ(tier_of(name), "cold");
    expect_pieces(name, size, pieces);
    take_over();
  }
  stop_and_check();
}

// Holes written as zeros would take many times the space of the data, and so the file does not go to the
// disk.
TEST_F(SparseTest, WhatWouldTakeFarMoreThanItHasStaysInMemory) {
  start({.size = "64M", .spill_size = "8G"});
  const auto others = fill_pool("e", 4);
  std::vector<Piece> pieces;
  for (off_t i = 0; i < 4000; ++i) pieces.push_back({i * static_cast<off_t>(kMiB), 1000});
  const std::string name = make("sparse", 4000 * static_cast<off_t>(kMiB), pieces);
  EXPECT_EQ(error_name(sync(name)), "ENOSPC");
  EXPECT_EQ(tier_of(name), "dirty");
  EXPECT_LT(stat("spill_used_bytes"), 300 * static_cast<int64_t>(kMiB));
  expect_pieces(name, 4000 * static_cast<off_t>(kMiB), pieces);
  EXPECT_EQ(check_whole(others), 4);
}

TEST_F(SparseTest, ReadFromTheDisk) {
  start();
  const off_t size = 3 * kGiB + 100;
  const auto unit = static_cast<off_t>(kUnit);
  const std::vector<Piece> pieces = {{2 * unit, 2 * kUnit}, {100 * unit + 5, 300'000}, {size - 100, 100}};
  const std::string name = make("sparse", size, pieces);
  make_all_cold();
  const auto names = fill_pool("held", 31);
  std::vector<File> readers;
  for (const std::string& held : names) readers.emplace_back(held, O_RDONLY);
  // Because an entry for which a few pages are left is promoted, small entries take all of them.
  const auto small = fill_pool("small", 300, 4096);
  for (const std::string& held : survivors(small).empty() ? std::vector<std::string>() : small)
    if (exists(held)) readers.emplace_back(held, O_RDONLY);
  const File file(name, O_RDONLY);
  if (stat("served_from_disk") == 0) GTEST_SKIP() << "there was memory for it";
  expect_pieces(file, size, pieces);
  const std::string edges = read_at(file.fd(), unit, 4 * kUnit);
  EXPECT_EQ(edges, std::string(kUnit, '\0') + pattern(0, 2 * kUnit) + std::string(kUnit, '\0'));
  EXPECT_EQ(::lseek(file.fd(), 0, SEEK_DATA), 2 * unit);
  EXPECT_EQ(::lseek(file.fd(), 2 * unit, SEEK_HOLE), 4 * unit);
  EXPECT_EQ(::lseek(file.fd(), 4 * unit, SEEK_DATA), 100 * unit);
  EXPECT_EQ(::lseek(file.fd(), 4 * unit + 1, SEEK_HOLE), 4 * unit + 1);
  EXPECT_EQ(::lseek(file.fd(), size - 50, SEEK_DATA), size - 50);
  EXPECT_EQ(::lseek(file.fd(), size - 50, SEEK_HOLE), size);
  EXPECT_EQ(error_of(::lseek(file.fd(), size, SEEK_DATA)), ENXIO);
}

TEST_F(SparseTest, WrittenIntoAHoleOfAColdOne) {
  start();
  const off_t size = 10 * kGiB;
  std::vector<Piece> pieces = {{kGiB, 5000}};
  std::string name = make("sparse", size, pieces);
  make_all_cold();
  pieces.push_back({5 * kGiB + 100, 70'000});
  {
    const File file(name, O_RDWR);
    write_at(file.fd(), pieces[1].at, pattern(1, pieces[1].bytes));
    // fsync copies a snapshot of the file, which is still open.
    ASSERT_EQ(error_name(error_of(::fsync(file.fd()))), "ok");
    kill();
  }
  start();
  name = path("sparse");
  expect_pieces(name, size, pieces);
  ASSERT_EQ(::truncate(name.c_str(), 20 * kGiB), 0);
  make_all_cold();
  expect_pieces(name, 20 * kGiB, pieces);
  // Half of the data goes, and the rest of the file is a hole.
  ASSERT_EQ(::truncate(name.c_str(), 2 * kGiB), 0);
  pieces.pop_back();
  make_all_cold();
  expect_pieces(name, 2 * kGiB, pieces);
  EXPECT_TRUE(eventually([&] { return stat("spill_used_bytes") == 2 * static_cast<int64_t>(kUnit); }))
      << stat("spill_used_bytes");
}

TEST_F(SparseTest, DamageIsSeen) {
  start();
  const std::string name = make("sparse", 10 * kGiB, {{kGiB, 5000}, {2 * kGiB, 5000}});
  make_all_cold();
  ASSERT_TRUE(damage(pattern(1, 5000)));
  std::string content;
  EXPECT_EQ(error_name(error_of(::open(name.c_str(), O_RDONLY))), "ENOENT");
  EXPECT_EQ(stat("checksum_errors"), 1);
}

// The reservation for an entry of the usual size becomes holes in an entry of which only some places are
// written.
TEST_F(SparseTest, HolesInAReservationTakeNoMemory) {
  start({.size = "128M"});
  fill_pool("usual", 3, 8 * kMiB);
  const timespec times[2] = {{1'000'000'001, 5}, {1'000'000'002, 6}};
  const std::vector<Piece> pieces = {{1'638'400, 51'200}, {5 * static_cast<off_t>(kMiB) + 5, 100}};
  const std::string name = path("sparse");
  {
    const File file(name, O_RDWR | O_CREAT);
    for (size_t i = 0; i < 2; ++i) write_at(file.fd(), pieces[i].at, pattern(i, pieces[i].bytes));
    ASSERT_EQ(::futimens(file.fd(), times), 0);
  }
  EXPECT_TRUE(eventually([&] { return memory_of(name) <= 512 << 10; })) << memory_of(name);
  struct ::stat status {};
  ASSERT_EQ(::stat(name.c_str(), &status), 0);
  EXPECT_EQ(status.st_mtim.tv_sec, 1'000'000'002);
  EXPECT_EQ(status.st_mtim.tv_nsec, 6);
  expect_pieces(name, status.st_size, pieces);
  // Because the size is set before the content is written, the kernel gives each piece a large page.
  const std::string sized = path("sized");
  {
    const File file(sized, O_RDWR | O_CREAT);
    ASSERT_EQ(::ftruncate(file.fd(), 64 * static_cast<off_t>(kMiB)), 0);
    write_at(file.fd(), 33 * static_cast<off_t>(kMiB), pattern(0, 100));
  }
  EXPECT_TRUE(eventually([&] { return memory_of(sized) <= 64 << 10; })) << memory_of(sized);
  expect_pieces(sized, 64 * static_cast<off_t>(kMiB), {{33 * static_cast<off_t>(kMiB), 100}});
  // Memory of zeros that a client wrote, and of a range that it allocated, stays.
  write_file(path("zeros"), std::string(4 * kMiB, '\0'));
  {
    const File file(path("allocated"), O_RDWR | O_CREAT);
    ASSERT_EQ(::posix_fallocate(file.fd(), 0, 4 * kMiB), 0);
  }
  ASSERT_TRUE(all_closed(mount()));
  EXPECT_GE(memory_of(path("zeros")), 4 * static_cast<int64_t>(kMiB));
  EXPECT_GE(memory_of(path("allocated")), 4 * static_cast<int64_t>(kMiB));
}

}  // namespace
}  // namespace kvcachefs::test
