// ReservationsTest: a pool's reservations, with files that a client writes. One thread. A failure fails the
// test.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/arena_test.h"
#include "tests/support/no_kernel.h"
#include "tier/pool/pool_observers.h"
#include "tier/pool/reservations.h"

namespace kvcachefs::reservations_test {

inline constexpr uint64_t kBlock = 4096;
inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kPart = 64 * kKiB;  // the least that a large page is split for
inline constexpr uint16_t kPool = 3;

// Records the inodes whose attributes have changed.
struct Listener final : DiscardListener {
  std::vector<uint64_t> changed_inodes;
  void changed(uint16_t, uint64_t ino) override { changed_inodes.push_back(ino); }
  void discarded(uint16_t, uint64_t, uint64_t, std::string) override {}
  void appeared(uint16_t, uint64_t, std::string) override {}
  void wait_until_told(std::chrono::milliseconds) override {}
};

class ReservationsTest : public test::ArenaTest {
 protected:
  void SetUp() override {
    ArenaTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    capacity_.emplace(PoolOptions{}, surroundings_, *arena_, counters_, entries_.shares());
    reservations_.emplace(
        PoolPart{kPool, name_, surroundings_, *arena_, *capacity_, entries_, counters_, limits_});
    resize(32 * kMiB);
    entries_.observe(kernel_);
  }
  void resize(uint64_t bytes) {
    ASSERT_TRUE(arena_->resize(bytes));
    capacity_->limit().set_size(bytes);
  }
  // A file that a client has created and writes past the daemon.
  Entry& create(const std::string& name) {
    file_ = make(name);
    const auto handle = sys::handle_of(file_.get());
    EXPECT_TRUE(handle);
    ino_ = handle->ino;
    Entry& entry = entry_of(*handle);
    entries_.created(entry, true, true, true);
    entry.memory.wants_reservation = true;
    EXPECT_TRUE(capacity_->writers().open(ino_, 0, 0, capacity_->size_bytes()));
    return entry;
  }
  // No other thread uses the entries, so no shard is locked.
  Entry& entry_of(sys::Handle handle) NO_THREAD_SAFETY_ANALYSIS {
    return entries_.shard(handle.ino).find_or_make(handle.ino, handle.generation);
  }
  void write(uint64_t offset, uint64_t bytes) const {
    const std::string text(bytes, 'x');
    ASSERT_EQ(::pwrite(file_.get(), text.data(), bytes, static_cast<off_t>(offset)), ssize_t(bytes));
  }
  struct stat status() const {
    struct stat attributes {};
    EXPECT_EQ(::fstat(file_.get(), &attributes), 0);
    return attributes;
  }
  uint64_t taken() const { return static_cast<uint64_t>(status().st_blocks) * 512; }
  // The client closes its file, so that only the daemon may write it.
  void close_writer(Entry& entry) {
    file_ = open("entry", O_RDONLY);
    ASSERT_TRUE(entries_.writer_closed(entry));
    entries_.stored(entry, reservations_->settle(entry), UINT64_MAX);
    entries_.closed(entry, false);
    (void)capacity_->writers().close(ino_, taken());
  }

  test::NoBacking backing_;
  Listener listener_;
  Wakeup evictor_;
  PoolSurroundings surroundings_{
      .arena_path = {}, .backing_store = &backing_, .listener = &listener_, .evictor = &evictor_};
  PoolCounters counters_;
  Entries entries_{"lru"};
  NameLimits limits_{{}, entries_.sums()};
  KernelObserver kernel_{listener_, kPool, backing_};
  const std::string name_ = "p";
  std::optional<Capacity> capacity_;
  std::optional<Reservations> reservations_;
  UniqueFd file_;
  uint64_t ino_ = 0;
};

}  // namespace kvcachefs::reservations_test
