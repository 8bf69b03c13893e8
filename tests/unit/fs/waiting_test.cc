// What waits for the room of a pool, as the kernel sends it. One thread serves, and the test is the threads
// of the pool's lane, so that a request that is answered after others were sent proves that none of them
// holds the server.
#include "fs/waiting.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <vector>

#include "tests/support/served_test.h"

namespace kvcachefs::waiting_test {

using test::wire;
using test::wire_name;

constexpr auto kNow = std::chrono::milliseconds(0);
constexpr uint32_t kTmpfile = 51;  // Debian 12's linux/fuse.h lacks it

class WaitingTest : public test::ServedTest {
 protected:
  WaitingTest() {
    start_helper_ = [this](const std::shared_ptr<Pool>&, WaitingLane&) {
      started_ += can_start_ ? 1 : 0;
      return can_start_.load();
    };
  }
  void SetUp() override {
    ServedTest::SetUp();
    if (!session_) return;
    pool_ = pools_->find("p");
    // What waits in the thread that serves does so longer than a busy machine takes for a test.
    pool_->capacity().set_durability(Durability::kWriteback);
    ASSERT_NE(make(options("other")), nullptr);
    other_ = nodeid_of(NodeId::kRoot, "other");
  }
  void TearDown() override {
    if (pool_) lane().end_waits();
    while (pool_ && lane().size() > 0) (void)lane().step(kNow);
    while (pool_ && pool_->settings().orders().size() > 0) (void)pool_->settings().orders().step(kNow);
    pool_.reset();
    ServedTest::TearDown();
  }

  WaitingLane& lane() { return pool_->capacity().waiting(); }
  // Takes all memory that is free, or all inodes, beside the daemon.
  std::string filler() const { return pool_->arena_path() + "/filler"; }
  void fill_up(uint64_t but_bytes = 0) {
    const UniqueFd fd(::open(filler().c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    ASSERT_GE(fd.get(), 0);
    const auto free_bytes = pool_->capacity().free_bytes(true);
    ASSERT_EQ(::posix_fallocate(fd.get(), 0, static_cast<off_t>(free_bytes - but_bytes)), 0);
    ASSERT_EQ(pool_->capacity().free_bytes(true), but_bytes);
  }
  void take_inodes() {
    while (::mknod((filler() + std::to_string(inodes_)).c_str(), S_IFREG | 0600, 0) == 0) ++inodes_;
    ASSERT_EQ(errno, ENOSPC);
  }
  void give_back() {
    if (inodes_ == 0) {
      ASSERT_EQ(::unlink(filler().c_str()), 0);
    }
    for (; inodes_ > 0; --inodes_) ::unlink((filler() + std::to_string(inodes_ - 1)).c_str());
    pool_->capacity().room().room_made();
  }
  uint64_t tell(uint32_t opcode, uint64_t nodeid, std::string body) {
    return kernel_.tell({.opcode = opcode, .nodeid = nodeid, .body = std::move(body)});
  }
  uint64_t tell_write(const File& file, uint64_t offset, const std::string& bytes) {
    fuse_write_in in{};
    in.fh = file.handle;
    in.offset = offset;
    in.size = static_cast<uint32_t>(bytes.size());
    return tell(FUSE_WRITE, file.nodeid, wire(in) + bytes);
  }
  static std::string made(std::string_view name, mode_t mode) {
    return wire(fuse_mknod_in{.mode = mode, .rdev = 0, .umask = 0, .padding = 0}) + wire_name(name);
  }
  // The thread that serves goes on: it answers for another pool, and for this one.
  void expect_served() {
    EXPECT_EQ(ask(FUSE_GETATTR, other_, wire(fuse_getattr_in{})).error, 0);
    EXPECT_EQ(make_directory(other_, std::to_string(++served_)).error, 0);
    EXPECT_EQ(nodeid_of(root_, "missing"), 0u);
  }
  void expect_carried_out(const std::vector<uint64_t>& requests) {
    for (const uint64_t unique : requests) {
      ASSERT_TRUE(lane().step(kNow));
      const test::FuseAnswer answer = kernel_.answer_to(unique);
      EXPECT_EQ(answer.error, 0) << unique;
    }
    EXPECT_EQ(lane().size(), 0u);
  }

  std::shared_ptr<Pool> pool_;
  uint64_t other_ = 0;
  std::atomic<bool> can_start_{true};
  std::atomic<int> started_{0};

 private:
  int inodes_ = 0;
  int served_ = 0;
};

TEST_F(WaitingTest, WritesOfOnePoolHoldNobodyUpAndAreDoneInTheirOrder) {
  const File file = create("f");
  fill_up();
  std::vector<uint64_t> writes;
  for (uint64_t at = 0; at < 8; ++at) writes.push_back(tell_write(file, at * 4096, std::string(4096, 'a')));
  expect_served();
  EXPECT_EQ(lane().size(), writes.size());
  give_back();
  expect_carried_out(writes);
  EXPECT_EQ(read(file, 0, 8 * 4096).bytes, std::string(8 * 4096, 'a'));
}

// What it had written before is not written again, because another client may have written it meanwhile.
TEST_F(WaitingTest, AWriteGoesOnWhereTheMemoryEnded) {
  const File file = create("f");
  // A file with one block at its end looks as if two blocks before it needed one more only. A larger page
  // that ends with the file would have memory for them.
  ASSERT_EQ(write(file, 4 * 4096, std::string(4096, 'x')).error, 0);
  fill_up(4096);
  const uint64_t unique = tell_write(file, 0, std::string(2 * 4096, 'y'));
  expect_served();
  EXPECT_EQ(lane().size(), 1u);
  EXPECT_EQ(read(file, 0, 2 * 4096).bytes, std::string(4096, 'y') + std::string(4096, '\0'));
  ASSERT_EQ(write(file, 0, "other").error, 0);
  give_back();
  ASSERT_TRUE(lane().step(kNow));
  EXPECT_EQ(kernel_.answer_to(unique).as<fuse_write_out>().size, 2u * 4096);
  EXPECT_EQ(read(file, 0, 2 * 4096).bytes, "other" + std::string(2 * 4096 - 5, 'y'));
}

TEST_F(WaitingTest, AllocationsCopiesAndLongLinksWaitToo) {
  const File from = create("from", std::string(4096, 'a')), to = create("to");
  fill_up();
  fuse_fallocate_in allocate{};
  allocate.fh = to.handle;
  allocate.offset = 4096;
  allocate.length = 4096;
  fuse_copy_file_range_in copy{};
  copy.fh_in = from.handle;
  copy.fh_out = to.handle;
  copy.nodeid_out = to.nodeid;
  copy.len = 4096;
  const std::string target(2000, 't');
  const std::vector<uint64_t> waiting = {tell(FUSE_FALLOCATE, to.nodeid, wire(allocate)),
                                         tell(FUSE_COPY_FILE_RANGE, from.nodeid, wire(copy)),
                                         tell(FUSE_SYMLINK, root_, wire_name("link") + wire_name(target))};
  expect_served();
  EXPECT_EQ(lane().size(), waiting.size());
  EXPECT_EQ(nodeid_of(root_, "link"), 0u) << "nothing was done";
  give_back();
  expect_carried_out(waiting);
  EXPECT_EQ(read(to, 0, 4096).bytes, std::string(4096, 'a'));
  const test::FuseAnswer link = ask(FUSE_READLINK, nodeid_of(root_, "link"));
  EXPECT_EQ(link.bytes, target);
}

TEST_F(WaitingTest, NamesWaitForAnInode) {
  const File file = create("f");
  take_inodes();
  const std::vector<uint64_t> waiting = {
      tell(FUSE_MKDIR, root_, wire(fuse_mkdir_in{.mode = S_IFDIR | 0755, .umask = 0}) + wire_name("made")),
      tell(FUSE_MKNOD, root_, made("node", S_IFREG | 0644)),
      tell(FUSE_CREATE, root_, create_body("created")),
      tell(kTmpfile, root_, create_body("")),
      tell(FUSE_SYMLINK, root_, wire_name("soft") + wire_name("target")),
      tell(FUSE_LINK, root_, wire(fuse_link_in{.oldnodeid = file.nodeid}) + wire_name("hard"))};
  expect_served();
  EXPECT_EQ(lane().size(), waiting.size());
  const uint64_t handles = open_handles();
  give_back();
  expect_carried_out(waiting);
  EXPECT_EQ(open_handles(), handles + 2);
  for (const char* const name : {"made", "node", "created", "soft", "hard"})
    EXPECT_NE(nodeid_of(root_, name), 0u) << name;
  EXPECT_EQ(nodeid_of(root_, "hard"), file.nodeid);
}

// A file's first write past the daemon is announced by this question, and needs what the writer was promised.
TEST_F(WaitingTest, TheQuestionBeforeAFirstWriteWaits) {
  pool_->capacity().set_entry_size(kMiB);
  const File file = create("f");
  const std::vector<uint64_t> writers = pool_->capacity().writers().next_to_see(0);
  ASSERT_EQ(writers.size(), 1u);
  pool_->capacity().writers().raise(writers[0], kMiB);
  fill_up();
  const uint64_t unique =
      tell(FUSE_GETXATTR, file.nodeid,
           wire(fuse_getxattr_in{.size = 20, .padding = 0}) + wire_name("security.capability"));
  expect_served();
  EXPECT_EQ(lane().size(), 1u);
  EXPECT_EQ(pool_->counters().reservations, 0u);
  give_back();
  ASSERT_TRUE(lane().step(kNow));
  EXPECT_EQ(kernel_.answer_to(unique).error, EOPNOTSUPP);
  EXPECT_EQ(pool_->counters().reservations, 1u);
  EXPECT_EQ(pool_->counters().reservation_failures, 0u);
  EXPECT_LT(pool_->capacity().free_bytes(true), 4 * kMiB - kMiB + 4096) << "the memory is the file's";
}

TEST_F(WaitingTest, ANewcomerDoesNotTakeWhatOthersWaitFor) {
  const File file = create("f");
  fill_up();
  const uint64_t first = tell_write(file, 0, std::string(4096, 'a'));
  expect_served();
  ASSERT_EQ(::truncate(filler().c_str(), 4 * kMiB - kMiB), 0);
  const uint64_t second = tell_write(file, 4096, std::string(4096, 'b'));
  expect_served();
  EXPECT_EQ(lane().size(), 2u) << "there is room for both, but not for what the first may need";
  EXPECT_EQ(write(file, 0, "").error, 0) << "what needs no room goes on";
  expect_carried_out({first, second});
  EXPECT_EQ(write(file, 8192, "c").error, 0) << "nobody waits";
}

// The bound of the copies is for all that waits: the next write waits in the thread that serves.
TEST_F(WaitingTest, BeyondTheBoundOfTheCopiesTheServerWaits) {
  const File file = create("f");
  const std::string bytes(128 << 10, 'a');
  fill_up();
  std::vector<uint64_t> writes;
  while ((writes.size() + 1) * (bytes.size() + 1024) <= WaitingCopies::kLeastBound)
    writes.push_back(tell_write(file, 0, bytes));
  expect_served();
  EXPECT_EQ(lane().size(), writes.size());
  const uint64_t last = tell_write(file, 0, std::string(bytes.size(), 'b'));
  const uint64_t behind = tell(FUSE_GETATTR, other_, wire(fuse_getattr_in{}));
  ASSERT_TRUE(test::eventually([&] { return pool_->capacity().room().wanted_bytes() > 0; }));
  EXPECT_EQ(lane().size(), writes.size());
  give_back();
  EXPECT_EQ(kernel_.next_answered(), last) << "without an error because of the bound";
  EXPECT_EQ(kernel_.answer_to(behind).error, 0);
  expect_carried_out(writes);
  const uint64_t copies_are_given_back = tell_write(file, 0, "x");
  EXPECT_EQ(kernel_.answer_to(copies_are_given_back).error, 0);
}

TEST_F(WaitingTest, WithoutAThreadTheServerWaits) {
  can_start_ = false;
  const File file = create("f");
  fill_up();
  const uint64_t unique = tell_write(file, 0, "x");
  ASSERT_TRUE(test::eventually([&] { return pool_->capacity().room().wanted_bytes() > 0; }));
  EXPECT_EQ(lane().size(), 0u);
  give_back();
  EXPECT_EQ(kernel_.answer_to(unique).error, 0);
}

// The thread of the lane is the one that writes down what it attempts (tier/survivors/requests.h).
TEST_F(WaitingTest, ASuccessorHearsOfItOnlyWhenItIsAttempted) {
  take_inodes();
  const uint64_t unique =
      tell(FUSE_MKDIR, root_, wire(fuse_mkdir_in{.mode = S_IFDIR | 0755, .umask = 0}) + wire_name("made"));
  expect_served();  // the thread that took it has another request in hand now
  EXPECT_FALSE(survivors_->requests().was_attempted(unique));
  give_back();
  expect_carried_out({unique});
  EXPECT_TRUE(survivors_->requests().was_attempted(unique));
  // The thread that serves has nothing in hand either, soon after its last answer.
  EXPECT_TRUE(test::eventually([&] { return survivors_->requests().oldest_ns() == 0; }));
}

TEST_F(WaitingTest, WhatWaitsForAPlaceWithinALimitHoldsNobodyUp) {
  (void)create("f");
  ASSERT_EQ(make_directory(root_, "d").error, 0);
  pool_->limits().entries.set(1);
  pool_->limits().directories.set(1);
  EXPECT_EQ(make_directory(root_, "d").error, EEXIST);
  const std::vector<uint64_t> waiting = {
      tell(FUSE_MKDIR, root_, wire(fuse_mkdir_in{.mode = S_IFDIR | 0755, .umask = 0}) + wire_name("e")),
      tell(FUSE_MKNOD, root_, made("g", S_IFREG | 0600))};
  expect_served();
  EXPECT_EQ(lane().size(), 2u);
  pool_->limits().entries.set(2);
  pool_->limits().directories.set(2);
  expect_carried_out(waiting);
  EXPECT_EQ(pool_->limits().entries.count(), 2u);
  EXPECT_EQ(pool_->limits().directories.count(), 2u);
}

TEST_F(WaitingTest, OrdersToAPoolHoldNobodyUpAndAreCarriedOutInTurn) {
  const uint64_t control = nodeid_of(root_, ".pool");
  WaitingLane& orders = pool_->settings().orders();
  std::vector<uint64_t> given;
  for (const auto& [name, order] : {std::pair("policy", "fifo"), std::pair("watermarks", "40:60")}) {
    const uint64_t nodeid = nodeid_of(control, name);
    const File file{nodeid, open(nodeid, O_WRONLY).as<fuse_open_out>().fh};
    given.push_back(tell_write(file, 0, order));
  }
  expect_served();
  EXPECT_EQ(orders.size(), 2u);
  EXPECT_EQ(started_, 1) << "one order at a time";
  EXPECT_EQ(pool_->settings().options().policy, "lru");
  for (const uint64_t unique : given) {
    ASSERT_TRUE(orders.step(kNow));
    EXPECT_EQ(kernel_.answer_to(unique).error, 0);
  }
  EXPECT_EQ(pool_->settings().options().policy, "fifo");
  EXPECT_EQ(pool_->settings().options().watermarks.low_percent, 40u);
}

TEST_F(WaitingTest, ARemovedPoolAnswersWhatWaits) {
  const File file = create("f");
  ASSERT_EQ(unlink("f").error, 0);
  fill_up();
  const uint64_t unique = tell_write(file, 0, "x");
  expect_served();
  EXPECT_EQ(ask(FUSE_RMDIR, NodeId::kRoot, wire_name("p")).error, 0);
  ASSERT_TRUE(lane().step(kNow));
  EXPECT_EQ(kernel_.answer_to(unique).error, ENOSPC);
  EXPECT_EQ(write(file, 0, "x").error, ENOSPC) << "nor does another wait";
}

TEST_F(WaitingTest, AtTheEndAllIsAnsweredWithoutAWait) {
  const File file = create("f");
  fill_up();
  const uint64_t first = tell_write(file, 0, "x"), second = tell_write(file, 1, "x");
  expect_served();
  lane().end_waits();
  lane().end();
  ASSERT_TRUE(lane().step(std::chrono::minutes(10)));
  ASSERT_TRUE(lane().step(std::chrono::minutes(10)));
  EXPECT_FALSE(lane().step(std::chrono::minutes(10)));
  EXPECT_EQ(kernel_.answer_to(first).error, ENOSPC);
  EXPECT_EQ(kernel_.answer_to(second).error, ENOSPC);
  EXPECT_EQ(write(file, 0, "x").error, ENOSPC);
}

}  // namespace kvcachefs::waiting_test
