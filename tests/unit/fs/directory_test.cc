// OPENDIR, READDIR and READDIRPLUS, as the kernel sends them.
#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "tests/support/served_test.h"

namespace kvcachefs::directory_test {

using test::wire;

struct Listed {
  std::string name;
  uint64_t nodeid = 0;
  uint64_t next = 0;
  uint32_t type = 0;
  fuse_entry_out entry{};  // of READDIRPLUS
};

class DirectoryTest : public test::ServedTest {
 protected:
  test::FuseAnswer ask_to_list(uint64_t nodeid, uint64_t offset, uint32_t size, bool plus = false) {
    fuse_read_in in{};
    in.offset = offset;
    in.size = size;
    return ask(plus ? FUSE_READDIRPLUS : FUSE_READDIR, nodeid, wire(in));
  }
  static std::vector<Listed> listed_in(const test::FuseAnswer& answer, bool plus) {
    std::vector<Listed> result;
    const size_t entry_bytes = plus ? sizeof(fuse_entry_out) : 0;
    for (size_t at = 0; at < answer.bytes.size();) {
      Listed listed;
      if (plus) listed.entry = answer.as<fuse_entry_out>(at);
      fuse_dirent record{};
      std::memcpy(&record, answer.bytes.data() + at + entry_bytes, FUSE_NAME_OFFSET);
      listed.name = answer.bytes.substr(at + entry_bytes + FUSE_NAME_OFFSET, record.namelen);
      listed.nodeid = record.ino;
      listed.next = record.off;
      listed.type = record.type;
      at += FUSE_REC_ALIGN(entry_bytes + FUSE_NAME_OFFSET + record.namelen);
      result.push_back(std::move(listed));
    }
    return result;
  }
  std::vector<Listed> list(uint64_t nodeid, uint64_t offset = 0, uint32_t size = 4096, bool plus = false) {
    const auto answer = ask_to_list(nodeid, offset, size, plus);
    EXPECT_EQ(answer.error, 0);
    EXPECT_LE(answer.bytes.size(), size);
    return listed_in(answer, plus);
  }
  static std::vector<std::string> names_of(const std::vector<Listed>& listed) {
    std::vector<std::string> names;
    for (const Listed& each : listed) names.push_back(each.name);
    return names;
  }
  static std::vector<std::string> sorted_names_of(const std::vector<Listed>& listed) {
    auto names = names_of(listed);
    std::ranges::sort(names);
    return names;
  }
  static const Listed& named(const std::vector<Listed>& listed, std::string_view name) {
    static const Listed none;
    const auto found = std::ranges::find(listed, name, &Listed::name);
    EXPECT_NE(found, listed.end()) << name;
    return found == listed.end() ? none : *found;
  }
};

using Names = std::vector<std::string>;

TEST_F(DirectoryTest, TheMountsRootListsThePools) {
  make(options("a"));
  const auto listed = list(NodeId::kRoot);
  EXPECT_EQ(sorted_names_of(listed), (Names{".", "..", "a", "p"}));
  EXPECT_EQ(named(listed, "p").nodeid, root_);
  EXPECT_EQ(named(listed, "p").type, uint32_t{DT_DIR});
  make(options("b"));
  const auto rest = names_of(list(NodeId::kRoot, listed[2].next));
  EXPECT_EQ(std::ranges::count(rest, listed[3].name), 1) << "from an offset on, though a pool came";
  EXPECT_EQ(std::ranges::count(rest, listed[2].name), 0);
  EXPECT_TRUE(list(NodeId::kRoot, INT64_MAX).empty());
}

TEST_F(DirectoryTest, APoolListsWhatItHas) {
  const File file = create("entry");
  const uint64_t below = make_directory(root_, "below").as<fuse_entry_out>().nodeid;
  auto listed = list(root_);
  EXPECT_EQ(sorted_names_of(listed), (Names{".", "..", "below", "entry"}))
      << "its control files are found and not listed";
  EXPECT_EQ(named(listed, "entry").nodeid, file.nodeid);
  EXPECT_EQ(named(listed, "entry").type, uint32_t{DT_REG});
  EXPECT_EQ(named(listed, "below").type, uint32_t{DT_DIR});
  EXPECT_EQ(named(listed, ".").nodeid, root_);
  EXPECT_EQ(named(listed, "..").nodeid, NodeId::kRoot);
  listed = list(below);
  EXPECT_EQ(named(listed, "..").nodeid, root_);
}

TEST_F(DirectoryTest, ASmallBufferGetsThemOneAfterTheOther) {
  std::set<std::string> expected{".", ".."};
  for (int number = 0; number < 20; ++number) {
    const std::string name = "entry " + std::to_string(number);
    EXPECT_EQ(release(create(name)).error, 0);
    expected.insert(name);
  }
  for (const bool plus : {false, true}) {
    const uint32_t one = FUSE_REC_ALIGN((plus ? sizeof(fuse_entry_out) : 0) + FUSE_NAME_OFFSET + 8);
    std::set<std::string> found;
    uint64_t offset = 0;
    for (size_t rounds = 0; rounds <= expected.size(); ++rounds) {
      const auto listed = list(root_, offset, one, plus);
      if (listed.empty()) break;
      ASSERT_EQ(listed.size(), 1u);
      EXPECT_TRUE(found.insert(listed[0].name).second) << listed[0].name << " twice";
      offset = listed[0].next;
    }
    EXPECT_EQ(found, expected) << plus;
  }
  EXPECT_TRUE(list(root_, 0, 16).empty()) << "not even one fits";
}

TEST_F(DirectoryTest, WithAttributesEachIsLookedUp) {
  const File file = create("entry", "content");
  EXPECT_EQ(release(file).error, 0);
  const File reader{file.nodeid, open(file.nodeid).as<fuse_open_out>().fh};
  const File written = create("written", "more");
  const auto listed = list(root_, 0, 4096, true);
  EXPECT_EQ(named(listed, "entry").entry.nodeid, file.nodeid);
  EXPECT_EQ(named(listed, "entry").entry.attr.size, 7u);
  EXPECT_EQ(named(listed, "entry").entry.attr.blksize, uint32_t{128} << 10);
  EXPECT_GT(named(listed, "entry").entry.attr_valid, 31'000'000u);
  EXPECT_EQ(named(listed, "written").entry.attr_valid, 0u) << "it grows";
  EXPECT_EQ(named(listed, ".").entry.nodeid, 0u) << "the kernel counts no lookup of these";
  EXPECT_EQ(unlink("entry").error, 0);
  EXPECT_EQ(release(reader, O_RDONLY).error, 0);
  const auto forget = [&] {
    kernel_.tell({.opcode = FUSE_FORGET, .nodeid = file.nodeid, .body = wire(fuse_forget_in{.nlookup = 1})});
    return ask(FUSE_GETATTR, file.nodeid, wire(fuse_getattr_in{})).error;
  };
  EXPECT_EQ(forget(), 0) << "the creation's";
  EXPECT_EQ(forget(), ESTALE) << "the listing's";
  EXPECT_EQ(release(written).error, 0);
}

TEST_F(DirectoryTest, WhatDoesNotFitIsNotLookedUp) {
  const File file = create("entry");
  EXPECT_EQ(release(file).error, 0);
  const File reader{file.nodeid, open(file.nodeid).as<fuse_open_out>().fh};
  const uint32_t dots = 2 * FUSE_REC_ALIGN(sizeof(fuse_entry_out) + FUSE_NAME_OFFSET + 2);
  EXPECT_EQ(names_of(list(root_, 0, dots + 8, true)), (Names{".", ".."}));
  EXPECT_EQ(unlink("entry").error, 0);
  EXPECT_EQ(release(reader, O_RDONLY).error, 0);
  EXPECT_EQ(ask(FUSE_GETATTR, file.nodeid, wire(fuse_getattr_in{})).error, 0);
  kernel_.tell({.opcode = FUSE_FORGET, .nodeid = file.nodeid, .body = wire(fuse_forget_in{.nlookup = 1})});
  EXPECT_EQ(ask(FUSE_GETATTR, file.nodeid, wire(fuse_getattr_in{})).error, ESTALE);
}

TEST_F(DirectoryTest, ControlFilesAreListed) {
  const auto of_mount = names_of(list(NodeId::kMountControl));
  EXPECT_NE(std::ranges::find(of_mount, "pools"), of_mount.end());
  EXPECT_NE(std::ranges::find(of_mount, "version"), of_mount.end());
  EXPECT_EQ(names_of(list(NodeId::kPoolsDirectory)), Names{"p"});
  const auto of_owner = list(NodeId::of_control(1, 0).value);
  const auto of_administrator = list(NodeId::of_administrators(1, 0).value);
  EXPECT_GT(of_owner.size(), of_administrator.size());
  EXPECT_EQ(named(of_owner, "stats").type, uint32_t{DT_REG});
  EXPECT_TRUE(list(NodeId::of_control(1, 0).value, INT64_MAX).empty());
}

// The names that come last are removed while a client has read the others: the listing ends.
TEST_F(DirectoryTest, TheEndIsTheEndWhenTheLastNamesLeave) {
  for (int number = 0; number < 20; ++number)
    EXPECT_EQ(release(create("entry " + std::to_string(number))).error, 0);
  for (const bool plus : {false, true}) {
    const auto listed = list(root_, 0, 1 << 16, plus);
    const size_t half = listed.size() / 2;
    for (size_t i = half; i < listed.size(); ++i) EXPECT_EQ(unlink(listed[i].name).error, 0);
    EXPECT_TRUE(list(root_, listed[half - 1].next, 1 << 16, plus).empty());
  }
}

TEST_F(DirectoryTest, WhatIsNoDirectoryIsNotListed) {
  const File file = create("entry");
  EXPECT_EQ(ask_to_list(file.nodeid, 0, 4096).error, ENOTDIR);
  EXPECT_EQ(ask_to_list(NodeId::of_inode(9, 1).value, 0, 4096).error, ESTALE);
  const uint64_t handle = ask(FUSE_OPENDIR, root_, wire(fuse_open_in{})).as<fuse_open_out>().fh;
  EXPECT_NE(ask(FUSE_OPENDIR, root_, wire(fuse_open_in{})).as<fuse_open_out>().fh, handle);
  EXPECT_EQ(ask(FUSE_RELEASEDIR, root_, wire(fuse_release_in{})).error, 0);
}

}  // namespace kvcachefs::directory_test
