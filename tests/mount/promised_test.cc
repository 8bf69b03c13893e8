// What an fsync has promised is kept, whatever the pool would do with other entries.
#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "tests/support/disks.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::test {
namespace {

constexpr size_t kEntryBytes = 300'000;

TEST(PromisedTest, WhatAdmissionWouldRefuseIsNotDiscardedAfterAnFsync) {
  KVCACHEFS_NEED_DAEMON();
  const DiskDirectory disk;
  MountOptions options;
  options.pools = {"p:size=64M,durability=none,admission=second_access,spill_size=64M,spill=" +
                   (disk / "spill")};
  Mount mount(options);
  const std::string promised = mount.path() + "/promised";
  const std::string other = mount.path() + "/other";
  {
    const File file(promised, O_CREAT | O_WRONLY | O_CLOEXEC);
    const std::string content = pattern(1, kEntryBytes);
    ASSERT_EQ(::write(file.fd(), content.data(), content.size()), ssize_t(content.size()));
    ASSERT_EQ(::fsync(file.fd()), 0);
  }
  ASSERT_EQ(store(other, pattern(2, kEntryBytes)), 0);
  ASSERT_TRUE(eventually([&] {
    EXPECT_EQ(write_once(mount.control("evict"), "100%"), 0);
    return mount.stat_value("dirty_entries") == 0 && mount.stat_value("clean_entries") == 0;
  }));
  EXPECT_FALSE(exists(other));
  EXPECT_EQ(mount.stat_value("cold_entries"), 1);
  std::string content;
  ASSERT_EQ(load(promised, &content), 0);
  EXPECT_EQ(difference(1, content), "");
  if (HasFailure()) report_daemon_log(mount);
  mount.stop();
}

}  // namespace
}  // namespace kvcachefs::test
