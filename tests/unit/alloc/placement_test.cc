#include "alloc/placement.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "base/unique_fd.h"

namespace kvcachefs::placement_test {

constexpr uint64_t kPage = 4096;

class PlacementTest : public ::testing::Test {
 protected:
  void write(uint64_t offset) const {
    const std::string page(kPage, 'x');
    ASSERT_EQ(::pwrite(file_.get(), page.data(), kPage, static_cast<off_t>(offset)), ssize_t{kPage});
  }
  uint64_t bytes(uint64_t most_bytes = UINT64_MAX) const {
    uint64_t sum = 0;
    for (const PlacedBytes& placed : measure_placement(file_.get(), most_bytes)) sum += placed.bytes;
    return sum;
  }

  const UniqueFd file_{::memfd_create("placement", MFD_CLOEXEC)};
};

TEST_F(PlacementTest, AllPagesCount) {
  EXPECT_EQ(bytes(), 0u);
  for (const uint64_t offset : {uint64_t{0}, 3 * kPage, uint64_t{5} << 20, uint64_t{200} << 20})
    write(offset);
  EXPECT_EQ(bytes(), 4 * kPage);
  EXPECT_EQ(bytes(uint64_t{4} << 20), 2 * kPage) << "of its beginning";
}

TEST_F(PlacementTest, WhatIsBehindALongHoleIsLeftOut) {
  write(uint64_t{1} << 40);
  EXPECT_EQ(bytes(), 0u);
  write(kLongHoleBytes - kPage);
  EXPECT_EQ(bytes(), kPage);
}

}  // namespace kvcachefs::placement_test
