// The fixture of the unit tests of FUSE operations: a Session that serves one pool `p`, in daemon I/O, to a
// kernel that the test is. Nothing is mounted but the pool's tmpfs. It needs root. One thread, beside the
// session's own; failures are recorded with GoogleTest.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "fs/session.h"
#include "tests/support/fake_kernel.h"
#include "tests/support/pools_test.h"

namespace kvcachefs::test {

class ServedTest : public PoolsTest {
 protected:
  void SetUp() override {
    PoolsTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    umask_ = ::umask(0);  // as in the daemon
    const std::string init = FakeKernel::init_request();
    survivors_->connection().connected(kernel_.take_device(), std::as_bytes(std::span(init)));
    backing_of_session_.emplace(*survivors_);
    Pools::Surroundings its = surroundings();
    its.pool.backing_store = &*backing_of_session_;
    its.pool.listener = &invalidator_;
    pools_ = std::make_unique<Pools>(std::move(its));
    ASSERT_NE(make(options("p")), nullptr);
    session_.emplace(
        *pools_, *backing_of_session_, *survivors_, invalidator_,
        Session::Options{
            .mountpoint = disk_ / "not mounted", .no_passthrough = true, .pools_changed = [this] {
              ++pools_changed_;
              return Result<void>();
            }});
    const auto taken = session_->take_over();
    ASSERT_TRUE(taken) << taken.error().message;
    init_answer_ = kernel_.answer_to_init();
    session_->help_with(start_helper_);
    serving_ = std::thread([this] { session_->serve(); });
    root_ = ask(FUSE_LOOKUP, NodeId::kRoot, wire_name("p")).as<fuse_entry_out>().nodeid;
  }
  void TearDown() override {
    if (serving_.joinable()) {
      session_->unmount();
      kernel_.tell({.opcode = FUSE_FORGET, .nodeid = NodeId::kRoot, .body = wire(fuse_forget_in{})});
      serving_.join();
      session_->control().end_reads();
    }
    PoolsTest::TearDown();
    session_.reset();
    pools_.reset();
    (void)::umask(umask_);
  }

  FuseAnswer ask(uint32_t opcode, uint64_t nodeid, std::string body = {}) {
    return kernel_.ask({.opcode = opcode, .nodeid = nodeid, .body = std::move(body)});
  }
  // The errno of a request that a thread makes which has made no other: it was not told ESTALE before.
  int error_to_new_thread(uint32_t opcode, uint64_t nodeid, std::string body = {}) {
    return kernel_.ask({.opcode = opcode, .nodeid = nodeid, .body = std::move(body), .pid = ++new_thread_})
        .error;
  }
  FuseAnswer lookup(uint64_t parent, std::string_view name) {
    return ask(FUSE_LOOKUP, parent, wire_name(name));
  }
  // The nodeid that a name leads to; 0 if it leads nowhere.
  uint64_t nodeid_of(uint64_t parent, std::string_view name) {
    return lookup(parent, name).as<fuse_entry_out>().nodeid;
  }
  static std::string create_body(std::string_view name, uint32_t flags = O_RDWR, uint32_t mode = 0644) {
    return wire(fuse_create_in{.flags = flags, .mode = S_IFREG | mode, .umask = 0, .open_flags = 0}) +
           wire_name(name);
  }
  struct File {
    uint64_t nodeid = 0;
    uint64_t handle = 0;
  };
  static File file_of(const FuseAnswer& created) {
    return {created.as<fuse_entry_out>().nodeid, created.as<fuse_open_out>(sizeof(fuse_entry_out)).fh};
  }
  File create(std::string_view name, std::string_view content = {}) {
    const FuseAnswer created = ask(FUSE_CREATE, root_, create_body(name));
    EXPECT_EQ(created.error, 0) << name;
    const File file = file_of(created);
    if (!content.empty()) {
      EXPECT_EQ(write(file, 0, content).error, 0) << name;
    }
    return file;
  }
  FuseAnswer open(uint64_t nodeid, uint32_t flags = O_RDONLY) {
    return ask(FUSE_OPEN, nodeid, wire(fuse_open_in{.flags = flags, .open_flags = 0}));
  }
  FuseAnswer write(const File& file, uint64_t offset, std::string_view bytes) {
    fuse_write_in in{};
    in.fh = file.handle;
    in.offset = offset;
    in.size = static_cast<uint32_t>(bytes.size());
    return ask(FUSE_WRITE, file.nodeid, wire(in) + std::string(bytes));
  }
  FuseAnswer read(const File& file, uint64_t offset, uint32_t size) {
    fuse_read_in in{};
    in.fh = file.handle;
    in.offset = offset;
    in.size = size;
    return ask(FUSE_READ, file.nodeid, wire(in));
  }
  FuseAnswer release(const File& file, uint32_t flags = O_RDWR) {
    fuse_release_in in{};
    in.fh = file.handle;
    in.flags = flags;
    return ask(FUSE_RELEASE, file.nodeid, wire(in));
  }
  FuseAnswer unlink(std::string_view name) { return ask(FUSE_UNLINK, root_, wire_name(name)); }
  FuseAnswer make_directory(uint64_t parent, std::string_view name, uint32_t mode = 0755) {
    return ask(FUSE_MKDIR, parent, wire(fuse_mkdir_in{.mode = S_IFDIR | mode, .umask = 0}) + wire_name(name));
  }
  uint64_t open_handles() {
    uint64_t count = 0;
    survivors_->handles().for_each([&](const OpenHandle&) { ++count; });
    return count;
  }

  FakeKernel kernel_;
  FuseAnswer init_answer_;
  std::atomic<int> pools_changed_ = 0;
  std::optional<SessionBacking> backing_of_session_;
  Invalidator invalidator_;
  std::function<bool(const std::shared_ptr<Pool>&, WaitingLane&)> start_helper_;  // set before SetUp()
  std::optional<Session> session_;
  std::thread serving_;
  uint64_t root_ = 0;           // the pool's
  pid_t new_thread_ = 1 << 22;  // no thread has a higher number
  mode_t umask_ = 0;
};

}  // namespace kvcachefs::test
