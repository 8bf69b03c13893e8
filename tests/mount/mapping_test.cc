// Mappings of an entry for which there is no memory: clients that map what they load (llama.cpp, safetensors)
// get it from the disk, as clients do that read.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <vector>

#include "tests/support/disk_tier.h"
#include "tests/support/files.h"

namespace kvcachefs::test {
namespace {

constexpr size_t kBytes = 2 * kMiB + 777;

class MappingTest : public DiskTierTest {
 protected:
  void SetUp() override {
    DiskTierTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    start();
    ASSERT_EQ(error_name(store(name(), content())), "ok");
    make_all_cold();
    for (const std::string& held : fill_pool("held", 31)) holders_.emplace_back(held, O_RDONLY);
  }
  void TearDown() override {
    holders_.clear();
    DiskTierTest::TearDown();
  }
  void give_memory() {
    holders_.clear();
    for (int i = 0; i < 31; ++i) ::unlink(path("held-" + std::to_string(i)).c_str());
    ASSERT_TRUE(eventually([&] { return tmpfs_used_bytes(mount()) < 4 * kMiB; }));
  }
  void take_over() {
    const pid_t before = mount().serving_pid();
    ASSERT_EQ(::kill(before, SIGKILL), 0);
    ASSERT_TRUE(eventually(
        [&] { return mount().serving_pid() > 0 && mount().serving_pid() != before && exists(path("")); }));
  }
  std::string name() { return path("e"); }
  static std::string content() { return pattern(5, kBytes); }
  std::vector<File> holders_;
};

TEST_F(MappingTest, SharedOfWhatIsServedFromTheDisk) {
  const File file(name(), O_RDONLY);
  ASSERT_EQ(stat("served_from_disk"), 1);
  for (const int flags : {MAP_SHARED, MAP_PRIVATE, MAP_SHARED | MAP_POPULATE}) {
    const Mapping mapping(file.fd(), kBytes, PROT_READ, flags);
    ASSERT_TRUE(mapping.valid()) << flags;
    EXPECT_TRUE(mapping.text() == content());
  }
  // A later client can read and map the entry while the first mapping exists.
  const Mapping first(file.fd(), kBytes, PROT_READ, MAP_SHARED);
  ASSERT_TRUE(first.valid());
  EXPECT_TRUE(first.text() == content());
  EXPECT_TRUE(read_file(name()) == content());
  const File second(name(), O_RDONLY);
  const Mapping other(second.fd(), kBytes, PROT_READ, MAP_SHARED);
  ASSERT_TRUE(other.valid());
  EXPECT_TRUE(other.text() == content());
}

TEST_F(MappingTest, OfOneThatComesBackMeanwhile) {
  File file(name(), O_RDONLY);
  const Mapping mapping(file.fd(), kBytes, PROT_READ, MAP_SHARED);
  ASSERT_TRUE(mapping.valid());
  EXPECT_EQ(mapping.text().substr(0, 4096), content().substr(0, 4096));
  file.close();
  give_memory();
  set("prefetch", "e\n");
  ASSERT_TRUE(eventually([&] { return tier_of(name()) == "clean"; }));
  EXPECT_TRUE(read_file(name()) == content());
  std::string changed = content();
  {
    const File writer(name(), O_RDWR);
    ASSERT_EQ(::pwrite(writer.fd(), "changed", 7, 5000), 7);
    changed.replace(5000, 7, "changed");
    EXPECT_TRUE(mapping.text() == changed) << "one content";
    const Mapping writable(writer.fd(), kBytes, PROT_READ | PROT_WRITE, MAP_SHARED);
    ASSERT_TRUE(writable.valid());
    std::copy_n("mapped", 6, writable.data() + kMiB);
    changed.replace(kMiB, 6, "mapped");
    EXPECT_TRUE(mapping.text() == changed);
    ASSERT_EQ(::msync(writable.data(), kBytes, MS_SYNC), 0);
    EXPECT_TRUE(read_file(name()) == changed);
    take_over();
    EXPECT_TRUE(read_file(name()) == changed) << "whoever comes after a takeover";
    std::copy_n("again", 5, writable.data() + 100);
    changed.replace(100, 5, "again");
  }
  EXPECT_TRUE(read_file(name()) == changed);
}

// After the last mapping has gone, the entry is an ordinary one again.
TEST_F(MappingTest, GoesBackToTheKernelAfterwards) {
  {
    const File file(name(), O_RDONLY);
    const Mapping mapping(file.fd(), kBytes, PROT_READ, MAP_SHARED);
    ASSERT_TRUE(mapping.valid());
    EXPECT_TRUE(mapping.text() == content());
    take_over();
    EXPECT_TRUE(mapping.text() == content());
  }
  give_memory();
  ASSERT_TRUE(all_closed(mount()));
  const File file(name(), O_RDWR);
  EXPECT_EQ(tier_of(name()), "dirty");
  const Mapping mapping(file.fd(), kBytes, PROT_READ | PROT_WRITE, MAP_SHARED);
  ASSERT_TRUE(mapping.valid());
  EXPECT_TRUE(mapping.text() == content());
  ASSERT_EQ(::pwrite(file.fd(), "later", 5, 0), 5);
  EXPECT_EQ(mapping.text().substr(0, 5), "later");
  EXPECT_EQ(read_file(name()).substr(0, 5), "later");
}

}  // namespace
}  // namespace kvcachefs::test
