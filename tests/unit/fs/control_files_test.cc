// Control files, as the kernel's requests reach them.
#include "fs/control_files.h"

#include <fcntl.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <span>
#include <string>
#include <thread>

#include "fs/control/control_file.h"
#include "tests/support/served_test.h"
#include "tests/support/user_process.h"

namespace kvcachefs::control_files_test {

using test::FuseAnswer;
using test::FuseRequest;
using test::wire;

class ControlFilesTest : public test::ServedTest {
 protected:
  void SetUp() override {
    ServedTest::SetUp();
    if (!session_) return;
    gatherer_ = std::thread([this] {
      while (!ending_) session_->control().gather(std::chrono::minutes(10));
    });
  }
  void TearDown() override {
    if (gatherer_.joinable()) {
      ending_ = true;
      session_->control().end_reads();
      gatherer_.join();
    }
    ServedTest::TearDown();
  }
  uint64_t of_owner(std::string_view name) { return nodeid_of(NodeId::of_control(1, 0).value, name); }
  uint64_t of_administrator(std::string_view name) {
    return nodeid_of(NodeId::of_administrators(1, 0).value, name);
  }
  File opened(uint64_t nodeid, uint32_t flags = O_RDWR) {
    const FuseAnswer answer = open(nodeid, flags);
    EXPECT_EQ(answer.error, 0);
    return {nodeid, answer.as<fuse_open_out>().fh};
  }
  std::string text_of(uint64_t nodeid) { return read(opened(nodeid, O_RDONLY), 0, 4096).bytes; }
  int flush(const File& file) {
    fuse_flush_in in{};
    in.fh = file.handle;
    return ask(FUSE_FLUSH, file.nodeid, wire(in)).error;
  }
  FuseRequest write_request(const File& file, std::string_view bytes) {
    fuse_write_in in{};
    in.fh = file.handle;
    in.size = static_cast<uint32_t>(bytes.size());
    return {.opcode = FUSE_WRITE, .nodeid = file.nodeid, .body = wire(in) + std::string(bytes)};
  }

  // Some files look at all entries, and are read by this thread.
  std::thread gatherer_;
  std::atomic<bool> ending_{false};
};

// The kernel of a mount that is served by the next version keeps these. A new file gets a new line here; a
// line is never changed.
TEST_F(ControlFilesTest, AFileKeepsItsNodeid) {
  const std::map<std::string, uint64_t> of_pool = {{"size", 1},
                                                   {"policy", 2},
                                                   {"watermarks", 3},
                                                   {"entry_size", 4},
                                                   {"pinned_max", 5},
                                                   {"evict", 6},
                                                   {"spill", 7},
                                                   {"durability", 8},
                                                   {"admission", 9},
                                                   {"auto_prefetch", 10},
                                                   {"prefetch", 11},
                                                   {"scrub", 12},
                                                   {"stats", 13},
                                                   {"stats.json", 14},
                                                   {"numa", 15},
                                                   {"entries", 16},
                                                   {"size_max", 17},
                                                   {"max_entries", 18},
                                                   {"max_directories", 19},
                                                   {"max_xattr_bytes", 22},
                                                   {"max_xattrs", 23},
                                                   {"user_share", 20},
                                                   {"users", 21},
                                                   {"settings", 24},
                                                   {"reset", 25},
                                                   {"match", 26},
                                                   {"similar", 27},
                                                   {"forget_agent", 28},
                                                   {"index", 29},
                                                   {"leaf_first", 30}};
  const std::map<std::string, uint64_t> of_server = {{"version", 1},   {"stats", 2},   {"stats.json", 3},
                                                     {"upgrades", 4},  {"metrics", 5}, {"configure", 6},
                                                     {"access_log", 7}};
  const ControlFiles& control = session_->control();
  for (const auto& file : control.list(NodeId::of_control(3, 0)))
    EXPECT_EQ(file.id.value, (uint64_t{0x8003} << 48) + of_pool.at(file.name)) << file.name;
  for (const auto& file : control.list(NodeId::of_administrators(3, 0)))
    EXPECT_EQ(file.id.value, (uint64_t{0x8003} << 48 | uint64_t{1} << 32) + of_pool.at(file.name))
        << file.name;
  for (const auto& file : control.list({NodeId::kMountControl}))
    if (!file.is_directory) {
      EXPECT_EQ(file.id.value, 2 + of_server.at(file.name)) << file.name;
    }
}

TEST(ControlFile, IsFoundByItsNumberWhereverItStands) {
  using File = ControlFile<int>;
  constexpr std::array kBefore = {File{.name = "size", .number = 1}, File{.name = "evict", .number = 2}};
  constexpr std::array kAfter = {File{.name = "age", .number = 3}, File{.name = "evict", .number = 2},
                                 File{.name = "size", .number = 1}};
  static_assert(has_own_numbers(kBefore) && has_own_numbers(kAfter));
  for (const File& file : kBefore)
    EXPECT_EQ(file_of_number(std::span<const File>(kAfter), file.number)->name, file.name);
  for (const uint64_t none : {0, 4, 4096})
    EXPECT_EQ(file_of_number(std::span<const File>(kAfter), none), nullptr);
  EXPECT_FALSE(has_own_numbers(std::array{File{.name = "a", .number = 1}, File{.name = "b", .number = 1}}));
  EXPECT_FALSE(has_own_numbers(std::array{File{.name = "a", .number = 1}, File{.name = "a", .number = 2}}));
  EXPECT_FALSE(has_own_numbers(std::array{File{.name = "a"}}));
  EXPECT_FALSE(has_own_numbers(std::array{File{.name = "a", .number = 4096}}));
}

TEST_F(ControlFilesTest, AnOpenReadsOnePieceOfText) {
  const File stats = opened(of_owner("stats"), O_RDONLY);
  const std::string text = read(stats, 0, 4096).bytes;
  ASSERT_GT(text.size(), 100u);
  create("entry");
  EXPECT_EQ(read(stats, 10, 50).bytes, text.substr(10, 50)) << "the text of its open";
  EXPECT_EQ(read(stats, text.size(), 100).bytes, "");
  EXPECT_EQ(read(stats, 1 << 30, 100).bytes, "");
}

TEST_F(ControlFilesTest, AnUnknownHandleReadsTheTextOfNow) {
  const uint64_t version = nodeid_of(NodeId::kMountControl, "version");
  EXPECT_EQ(read({version, 4711}, 0, 100).bytes, text_of(version)) << "a process that died had it open";
  const File known = opened(version, O_RDONLY);
  EXPECT_EQ(read({of_owner("stats"), known.handle}, 0, 100).error, EBADF) << "it is another file's";
  EXPECT_EQ(release(known).error, 0);
}

TEST_F(ControlFilesTest, ASettingIsWrittenByOneWrite) {
  EXPECT_EQ(write(opened(of_owner("policy")), 0, "lfu\n").error, 0);
  EXPECT_EQ(text_of(of_owner("policy")), "lfu\n");
  EXPECT_EQ(pools_changed_, 1);
  EXPECT_EQ(write(opened(of_owner("policy")), 0, "fifo \n \n").error, 0)
      << "blanks at its end are none of it";
  EXPECT_EQ(text_of(of_owner("policy")), "fifo\n");
  EXPECT_EQ(write(opened(of_owner("policy")), 0, "best\n").error, EINVAL);
  EXPECT_EQ(write(opened(of_owner("policy")), 0, "\n").error, EINVAL);
  EXPECT_EQ(text_of(of_owner("policy")), "fifo\n");
  EXPECT_EQ(pools_changed_, 2);
}

TEST_F(ControlFilesTest, AnOrderHasALimit) {
  const std::string order = "lfu" + std::string(4096 - 3, ' ');
  EXPECT_EQ(write(opened(of_owner("policy")), 0, order).error, 0);
  EXPECT_EQ(write(opened(of_owner("policy")), 0, order + " ").error, EINVAL);
}

TEST_F(ControlFilesTest, WhatIsReadOnlyIsNotWritten) {
  EXPECT_EQ(write(opened(of_owner("stats")), 0, "x").error, EACCES);
  EXPECT_EQ(write({nodeid_of(NodeId::kMountControl, "version"), 4711}, 0, "x").error, EACCES);
  EXPECT_EQ(write({NodeId::of_control(1, 0).value, 4711}, 0, "x").error, EACCES) << "a directory";
  EXPECT_EQ(write({NodeId::of_control(1, 4000).value, 4711}, 0, "x").error, EACCES) << "no file at all";
  EXPECT_EQ(open(NodeId::of_control(1, 0).value).error, EISDIR);
  EXPECT_EQ(error_to_new_thread(FUSE_OPEN, NodeId::of_control(1, 4000).value, wire(fuse_open_in{})), ESTALE);
  EXPECT_EQ(error_to_new_thread(FUSE_OPEN, NodeId{NodeId::kMountControl + 100}.value, wire(fuse_open_in{})),
            ESTALE);
  EXPECT_EQ(error_to_new_thread(FUSE_OPEN, NodeId::of_control(9, 1).value, wire(fuse_open_in{})), ESTALE);
}

TEST_F(ControlFilesTest, LinesMayComeInPieces) {
  const File prefetch = opened(of_owner("prefetch"));
  EXPECT_EQ(write(prefetch, 0, "/abso").error, 0) << "half a line is no order yet";
  EXPECT_EQ(write(prefetch, 5, "lute\n").error, EINVAL);
  const File unfinished = opened(of_owner("prefetch"));
  EXPECT_EQ(write(unfinished, 0, "../above").error, 0);
  EXPECT_EQ(flush(unfinished), EINVAL) << "a close ends the line";
  EXPECT_EQ(flush(unfinished), 0) << "once";
  EXPECT_EQ(flush({of_owner("stats"), unfinished.handle}), 0);
}

TEST_F(ControlFilesTest, AnOpenThatIsReleasedIsForgotten) {
  const File prefetch = opened(of_owner("prefetch"));
  EXPECT_EQ(write(prefetch, 0, "../above").error, 0);
  EXPECT_EQ(release(prefetch).error, 0);
  EXPECT_EQ(flush(prefetch), 0) << "its half line went with it";
}

TEST_F(ControlFilesTest, AnOwnerGrowsAPoolToItsLimitAndAnAdministratorBeyond) {
  EXPECT_EQ(write(opened(of_owner("size")), 0, "8M").error, EPERM);
  EXPECT_EQ(text_of(of_owner("size")), "4M\n");
  EXPECT_EQ(write(opened(of_administrator("size")), 0, "8M").error, 0);
  EXPECT_EQ(text_of(of_owner("size")), "8M\n");
}

TEST_F(ControlFilesTest, AnAdministratorsFileIsForAnAdministrator) {
  const test::UserProcess user(5, 6);
  const uint64_t size = of_administrator("size");
  FuseRequest request{
      .opcode = FUSE_OPEN, .nodeid = size, .body = wire(fuse_open_in{.flags = O_RDWR, .open_flags = 0})};
  request.pid = user.pid();
  EXPECT_EQ(kernel_.ask(request).error, EPERM);
  const File file = opened(size);
  request = write_request(file, "8M");
  request.pid = user.pid();
  EXPECT_EQ(kernel_.ask(request).error, EPERM) << "a handle that it was given";
  request.pid = ::getppid();
  EXPECT_EQ(kernel_.ask(request).error, EPERM)
      << "an administrator that has not opened it, tricked by its opener";
  EXPECT_EQ(text_of(of_owner("size")), "4M\n");
  EXPECT_EQ(write(file, 0, "8M").error, 0);
}

TEST_F(ControlFilesTest, AnAdministratorsHandleIsItsProcesssInASuccessorToo) {
  const File file = opened(of_administrator("size"));
  EXPECT_EQ(release(file).error, 0);
  EXPECT_EQ(write(file, 0, "8M").error, 0) << "the handle alone tells its process";
  EXPECT_EQ(write({file.nodeid, file.handle ^ uint64_t{1} << 40}, 0, "8M").error, EPERM);
  EXPECT_EQ(write({file.nodeid, 4711}, 0, "8M").error, EPERM) << "an owner's";
}

TEST_F(ControlFilesTest, APoolThatIsConfiguredAgainIsNotTakenForOneThatADeadProcessMade) {
  const File configure = opened(nodeid_of(NodeId::kMountControl, "configure"));
  EXPECT_EQ(kernel_.ask(write_request(configure, "q:size=1M")).error, 0);
  EXPECT_EQ(kernel_.ask_again(write_request(configure, "q:size=1M")).error, 0) << "that process made it";
  EXPECT_EQ(kernel_.ask(write_request(configure, "p:size=1M")).error, EEXIST);
  EXPECT_EQ(kernel_.ask_again(write_request(configure, "p:size=1M")).error, EEXIST) << "it was there before";
}

TEST_F(ControlFilesTest, ModesSayWhoMayUseThem) {
  const auto mode = [&](uint64_t nodeid) {
    return ask(FUSE_GETATTR, nodeid, wire(fuse_getattr_in{})).as<fuse_attr_out>().attr.mode;
  };
  EXPECT_EQ(mode(NodeId::kMountControl), S_IFDIR | 0555u);
  EXPECT_EQ(mode(NodeId::kPoolsDirectory), S_IFDIR | 0700u);
  EXPECT_EQ(mode(NodeId::of_administrators(1, 0).value), S_IFDIR | 0700u);
  EXPECT_EQ(mode(NodeId::of_control(1, 0).value), S_IFDIR | 0555u);
  EXPECT_EQ(mode(of_owner("stats")), S_IFREG | 0444u);
  EXPECT_EQ(mode(of_owner("size")), S_IFREG | 0644u);
  EXPECT_EQ(error_to_new_thread(FUSE_GETATTR, NodeId::of_control(9, 1).value, wire(fuse_getattr_in{})),
            ESTALE);
  EXPECT_EQ(error_to_new_thread(FUSE_GETATTR, NodeId::of_control(1, 4000).value, wire(fuse_getattr_in{})),
            ESTALE);
}

TEST_F(ControlFilesTest, ThePoolsOwnerOwnsThem) {
  fuse_setattr_in owner{};
  owner.valid = FATTR_UID | FATTR_GID;
  owner.uid = 5;
  owner.gid = 6;
  ASSERT_EQ(ask(FUSE_SETATTR, root_, wire(owner)).error, 0);
  const auto of = [&](uint64_t nodeid) {
    return ask(FUSE_GETATTR, nodeid, wire(fuse_getattr_in{})).as<fuse_attr_out>().attr;
  };
  EXPECT_EQ(of(of_owner("size")).uid, 5u);
  EXPECT_EQ(of(of_owner("size")).gid, 6u);
  EXPECT_EQ(of(NodeId::of_control(1, 0).value).uid, 5u);
  EXPECT_EQ(of(of_administrator("size")).uid, 0u);
}

}  // namespace kvcachefs::control_files_test
