// The fixture of the unit tests of tier/recovery: what a process that died has left of a pool, which is its
// files with the marks on them, its records in Survivors, and its catalog, beside a pool that knows nothing
// of them yet. It needs root. One thread; failures are recorded with GoogleTest.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catalogs.h"
#include "tests/support/pool_parts.h"

namespace kvcachefs::test {

class RecoveryTest : public PoolPartsTest {
 protected:
  static constexpr uint64_t kUnits = 64;

  RecoveryTest() : PoolPartsTest(Upto::kRecovery) {
    options_.spill_path = "disk";
    options_.spill_unit_bytes = kUnitBytes;
  }
  void SetUp() override {
    PoolPartsTest::SetUp();
    if (!IsSkipped() && !HasFatalFailure()) supervise();
  }

  // --- what is left ---
  uint64_t leave(const std::string& name, const std::string& bytes = std::string(kBlock, 'x')) const {
    (void)make(name);
    write(name, bytes);
    return ino(name);
  }
  void mark(const std::string& name, const CopyMark& its) const {
    EXPECT_TRUE(put_copy_mark(open(name).get(), its)) << name;
  }
  uint64_t leave_clean(const std::string& name, uint64_t id, const CatalogContent& its) const {
    const uint64_t left = leave(name, std::string(its.size_bytes, 'x'));
    mark(name, {.state = CopyMark::State::kClean, .node_id = id, .content = its});
    return left;
  }
  // Its pages are gone.
  uint64_t leave_cold(const std::string& name, uint64_t id, const CatalogContent& its) const {
    const UniqueFd file = make(name);
    EXPECT_TRUE(sys::truncate(file.get(), its.size_bytes));
    mark(name, {.state = CopyMark::State::kCold, .node_id = id, .content = its});
    return ino(name);
  }
  uint64_t leave_dirty(const std::string& name, uint64_t id, uint32_t first_version = 0) const {
    const uint64_t left = leave(name);
    mark(name,
         {.state = CopyMark::State::kNone, .node_id = id, .first_version = first_version, .content = {}});
    return left;
  }
  void leave_open(uint64_t its_ino, OpenMode mode = {}, uint16_t pool = kPool) {
    const OpenHandle handle{.inode = {pool, its_ino}, .writer = mode.writer, .from_disk = mode.from_disk};
    EXPECT_TRUE(survivors_->handles().opened(handle));
  }
  // A descriptor that keeps the inode for the next process.
  int leave_kept(const UniqueFd& file) {
    const auto its = sys::handle_of(file.get());
    const int fd = ::fcntl(file.get(), F_DUPFD_CLOEXEC, 0);
    EXPECT_TRUE(its && survivors_->kept_inodes().keep({{kPool, its->ino}, its->generation, fd}));
    return fd;
  }
  static CatalogContent content(uint64_t size_bytes, std::vector<Extent> extents, uint32_t version = 1) {
    return {.size_bytes = size_bytes, .checksum = {7, 9}, .version = version, .extents = std::move(extents)};
  }
  // Before the disk is attached.
  void commit_left(const std::vector<CatalogChange>& changes) const {
    auto catalog = Catalog::open(place_ / "catalog");
    ASSERT_TRUE(catalog);
    ASSERT_TRUE((*catalog)->commit(changes));
  }
  void commit_left(uint64_t id, const std::string& name, const CatalogContent& its) const {
    commit_left({PutNode{file_node(id)}, PutName{kCatalogRoot, name, id}, PutContent{id, its}});
  }

  // --- the recovery ---
  std::vector<uint64_t> adopt() {
    const auto begun = recovery_->begin_adopting();
    EXPECT_TRUE(begun) << begun.error().message;
    auto nameless = recovery_->adopt();
    EXPECT_TRUE(nameless) << nameless.error().message;
    return nameless.value_or(std::vector<uint64_t>());
  }
  Result<void> attach() { return attach(&Recovery::attach_disk); }
  Result<void> attach_adopted() { return attach(&Recovery::attach_adopted_disk); }
  Result<void> begin_attaching_adopted() {
    auto taken = attach(&Recovery::take_disk);
    return taken ? recovery_->begin_attaching_adopted(options_) : taken;
  }
  void recover() {
    (void)adopt();
    const auto attached = attach_adopted();
    ASSERT_TRUE(attached) << attached.error().message;
  }
  uint64_t used_units() { return kUnits - 1 - tier().store->space().free_units(); }
  Result<void> attach(decltype(&Recovery::attach_disk) how) {
    auto disk = std::make_unique<FaultyDisk>(FaultyDiskOptions{.size_bytes = kUnits * kUnitBytes});
    device_ = disk.get();
    return ((*recovery_).*how)(std::move(disk), std::move(*Catalog::open(place_ / "catalog")), kUnitBytes,
                               options_);
  }
};

}  // namespace kvcachefs::test
