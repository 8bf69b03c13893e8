// An order that is answered lasts, also when the serving process is replaced between the order's effect and
// the settings file; and an order that cannot be written down is refused (daemon/kept_settings.h).
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "tests/support/files.h"
#include "tests/support/kept_settings.h"

namespace kvcachefs::test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kInEffect = "order in effect";

using Arguments = std::vector<std::string>;
struct Order {
  const char* name;
  std::vector<Arguments> before;
  Arguments order;
  const char* pool;
  const char* key;    // empty: none, the pool is gone
  const char* value;  // after the next start; DISK is the directory of the disk tiers
};

const std::vector<Order> kOrders = {
    {"Size", {}, {"set", "p", "size=32M"}, "p", "size", "32M set"},
    {"Policy", {}, {"set", "p", "policy=lfu"}, "p", "policy", "lfu set"},
    {"EntriesAtMost", {}, {"set", "p", "max_entries=1000"}, "p", "max_entries", "1000 set"},
    {"Disk", {}, {"set", "p", "spill=DISK/p", "spill_size=64M"}, "p", "spill", "DISK/p set"},
    {"SizeOfTheDisk", {}, {"set", "p", "spill=DISK/p", "spill_size=64M"}, "p", "spill_size", "64M set"},
    {"Reset", {{"set", "p", "policy=lfu"}}, {"reset", "p", "policy"}, "p", "policy", "fifo configured"},
    {"ResetOfTheDisk",
     {{"set", "p", "spill=DISK/p", "spill_size=64M"}, {"reset", "p", "spill_size"}},
     {"reset", "p", "spill"},
     "p",
     "spill",
     "none default"},
    {"Created", {}, {"create", "new", "--size", "8M"}, "new", "size", "8M set"},
    {"CreatedAgain", {{"delete", "q"}}, {"create", "q", "--size", "8M"}, "q", "size", "8M set"},
    {"Deleted", {}, {"delete", "q"}, "q", "", ""},
    {"CreatedAndDeleted", {{"create", "new", "--size", "8M"}}, {"delete", "new"}, "new", "", ""},
};

enum class Replaced : uint8_t { kByDeath, kByUpgrade };

class KeptOrdersTest : public KeptSettingsFixture,
                       public ::testing::WithParamInterface<std::tuple<Order, Replaced>> {
 protected:
  void SetUp() override {
    if (mode() == Mode::kIoUring) GTEST_SKIP() << "no supervisor over io_uring";
    KeptSettingsFixture::SetUp();
  }
  void arm(const std::string& text) { std::ofstream(fault_file()) << text; }
  std::string paused_file() const { return fault_file() + ".paused"; }
  std::string on_disk(std::string text) const {
    if (const size_t at = text.find("DISK"); at != std::string::npos) text.replace(at, 4, place_.path());
    return text;
  }
  Arguments on_disk(Arguments arguments) const {
    for (std::string& each : arguments) each = on_disk(each);
    return arguments;
  }
  // The list of pools that a successor adopts is written while the order waits: the last use of a removed
  // pool ends.
  void list_pools(File& last_use) {
    last_use.close();
    EXPECT_TRUE(eventually([&] {
      std::error_code gone;
      for (const auto& mount : std::filesystem::directory_iterator(mount_->runtime_dir(), gone))
        for (const auto& pool : std::filesystem::directory_iterator(mount.path(), gone))
          if (pool.path().filename().native().starts_with("removed.")) return false;
      return true;
    }));
  }
  void replace(Replaced how) {
    const pid_t before = mount_->serving_pid();
    if (how == Replaced::kByUpgrade)
      change({"upgrade"});
    else
      mount_->kill_server(false, std::chrono::milliseconds(0));
    EXPECT_TRUE(eventually([&] {
      const pid_t now = mount_->serving_pid();
      return now > 0 && now != before;
    }));
  }
  // The serving process is replaced when the order is in effect and not written down.
  void order_while_replaced(const Arguments& order, Replaced how) {
    change({"create", "removed", "--size", "4M"});
    File last_use(mount_->root() + "/removed/file", O_RDWR | O_CREAT);
    ASSERT_EQ(error_of(::unlink((mount_->root() + "/removed/file").c_str())), 0);
    change({"delete", "removed"});
    arm(std::string("pause ") + kInEffect);
    std::thread client([&] { change(order); });
    EXPECT_TRUE(eventually([&] { return exists(paused_file()); }));
    list_pools(last_use);
    replace(how);
    ::unlink(paused_file().c_str());
    client.join();
  }
};

class UnwrittenOrdersTest : public KeptSettingsFixture {
 protected:
  void fail_writes(const std::string& line) { std::ofstream(fault_file()) << line << "\n"; }
  // The present settings of the pools, and the file from which a start would set them.
  std::string state() {
    std::string text = read_file(file());
    for (const std::string& pool : pools())
      text += pool + "\n" + read_file(mount_->root() + "/" + pool + "/.pool/settings");
    return text;
  }
};

TEST_P(KeptOrdersTest, LastsWhenTheProcessIsReplaced) {
  const auto& [order, how] = GetParam();
  for (const Arguments& each : order.before) change(on_disk(each));
  order_while_replaced(on_disk(order.order), how);
  for (int starts = 0; starts < 2; ++starts) {
    if (*order.key == '\0') {
      EXPECT_THAT(pools(), ::testing::Not(::testing::Contains(std::string(order.pool))));
    } else if (starts == 1 || std::string_view(order.name) != "ResetOfTheDisk") {
      EXPECT_EQ(get(order.pool, order.key), on_disk(std::string(order.value)));
    }
    if (starts == 0) restart();
  }
}

// Else both would have the disk at the next start, which then fails.
TEST_F(UnwrittenOrdersTest, ADiskOfADeletedPoolIsGivenToAnother) {
  if (mode() == Mode::kIoUring) GTEST_SKIP() << "no disk tier over io_uring";
  const std::string disk = place_ / "q";
  const std::vector<std::string> configured = {"p:size=64M,policy=fifo",
                                               "q:size=16M,spill_size=64M,spill=" + disk};
  restart(configured);
  fail_writes(kInEffect);
  change({"delete", "q"});
  change({"set", "p", "spill=" + disk, "spill_size=64M"});
  restart(configured);
  EXPECT_EQ(pools(), (std::vector<std::string>{"p"}));
  EXPECT_EQ(get("p", "spill"), disk + " set");
}

// The mode and owner of a pool's directory are written down behind the call.
TEST_F(UnwrittenOrdersTest, TheModeOfAPoolLastsWhenTheProcessIsReplaced) {
  fail_writes(std::string("pause ") + kInEffect);
  ASSERT_EQ(error_of(::chmod(mount_->path().c_str(), 0750)), 0);
  EXPECT_TRUE(eventually([&] { return exists(fault_file() + ".paused"); }));
  mount_->kill_server(false, std::chrono::milliseconds(0));
  ::unlink((fault_file() + ".paused").c_str());
  EXPECT_TRUE(eventually([&] { return get("p", "mode") == "0750 set"; }));
  restart();
  EXPECT_EQ(get("p", "mode"), "0750 set");
}

INSTANTIATE_TEST_SUITE_P(Orders, KeptOrdersTest,
                         ::testing::Combine(::testing::ValuesIn(kOrders),
                                            ::testing::Values(Replaced::kByDeath, Replaced::kByUpgrade)),
                         [](const auto& each) {
                           const bool dies = std::get<1>(each.param) == Replaced::kByDeath;
                           return std::string(std::get<0>(each.param).name) +
                                  (dies ? "AndDeath" : "AndUpgrade");
                         });

// Each kind of order is refused without an effect, and done once the file can be written again.
TEST_F(UnwrittenOrdersTest, AreRefusedWithTheReason) {
  change({"set", "p", "watermarks=50:60"});
  const std::string before = state(), kept = file();
  const std::vector<Arguments> orders = {{"set", "p", "policy=lfu"},
                                         {"set", "p", "size=32M"},
                                         {"reset", "p", "watermarks"},
                                         {"create", "new", "--size", "8M"},
                                         {"delete", "q"}};
  for (const auto& [fault, why] : std::vector<std::pair<std::string, std::string>>{
           {"failing write a file 28", "No space left on device"},
           {"failing write a file 5", "Input/output error"},
           {"failing write a file 30", "Read-only file system"},
           {"failing read the settings 5", "Input/output error"}}) {
    fail_writes(fault);
    for (const Arguments& order : orders) {
      const Outcome outcome = cli(order);
      EXPECT_NE(outcome.exit_code, 0) << order[0] << " " << order[1];
      EXPECT_THAT(mount_->log(), HasSubstr(kept + ": " + why));
    }
    ::unlink(fault_file().c_str());
    EXPECT_EQ(state(), before) << fault;
  }
  EXPECT_EQ(write_once(mount_->control("evict"), "1"), 0) << "an order that changes no setting";
  for (const Arguments& order : orders) change(order);
  restart();
  EXPECT_EQ(get("p", "policy"), "lfu set");
  EXPECT_EQ(get("p", "watermarks"), "95:98 default");
  EXPECT_EQ(pools(), (std::vector<std::string>{"new", "p"}));
}

// The file is written before and after an order. A pool that was made before the second write failed is taken
// back, and what cannot be taken back is said.
TEST_F(UnwrittenOrdersTest, AreSaidAfterTheirEffect) {
  change({"set", "p", "watermarks=50:60"});
  fail_writes("fail write a file 5 1");
  EXPECT_NE(cli({"create", "new", "--size", "8M"}).exit_code, 0);
  EXPECT_EQ(pools(), (std::vector<std::string>{"p", "q"}));
  fail_writes("fail write a file 5 1");
  Outcome outcome = cli({"delete", "q"});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.error, HasSubstr("pool 'q' is deleted, but this is not written down"));
  EXPECT_EQ(pools(), (std::vector<std::string>{"p"}));
  fail_writes("fail write a file 5 1");
  outcome = cli({"reset", "p", "watermarks"});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.error, HasSubstr("watermarks is taken back, but this is not written down"));
  EXPECT_EQ(get("p", "watermarks"), "95:98 default");
  fail_writes("fail write a file 5 1");
  outcome = cli({"set", "p", "policy=lfu"});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.error, HasSubstr("in effect, but not written down"));
  EXPECT_THAT(outcome.error, HasSubstr("lost at the daemon's next start: policy\n"));
  EXPECT_EQ(get("p", "policy"), "lfu set_not_kept");
  EXPECT_THAT(mount_->log(), HasSubstr("what was changed of the pools is lost at the next start"));
  // The next process writes it.
  mount_->kill_server(false, std::chrono::milliseconds(0));
  EXPECT_TRUE(eventually([&] { return get("p", "policy") == "lfu set"; }));
  restart();
  EXPECT_EQ(get("p", "policy"), "lfu set");
  EXPECT_EQ(pools(), (std::vector<std::string>{"p"}));
}

// Each value of a pool has an origin of its own.
TEST_F(UnwrittenOrdersTest, AreToldFromThoseThatAreWritten) {
  change({"set", "p", "policy=lfu", "watermarks=50:60"});
  fail_writes("failing write a file 5");
  ASSERT_EQ(error_of(::chmod(mount_->path().c_str(), 0750)), 0);
  EXPECT_TRUE(eventually([&] {
    return mount_->log().find("what was changed of the pools is lost at the next start") != std::string::npos;
  }));
  EXPECT_EQ(get("p", "policy"), "lfu set");
  EXPECT_EQ(get("p", "mode"), "0750 set_not_kept");
  ::unlink(fault_file().c_str());
  change({"set", "q", "policy=lfu"});
  EXPECT_EQ(get("p", "mode"), "0750 set");
  // A value was written, and then another was not.
  fail_writes("fail write a file 5 1");
  EXPECT_NE(cli({"set", "p", "policy=fifo"}).exit_code, 0);
  EXPECT_EQ(get("p", "policy"), "fifo set_not_kept");
  EXPECT_EQ(get("p", "watermarks"), "50:60 set");
  EXPECT_EQ(get("q", "policy"), "lfu set");
  // A process that has taken over says the same until it has written the value.
  fail_writes("failing write a file 5");
  mount_->kill_server(false, std::chrono::milliseconds(0));
  EXPECT_EQ(get("p", "policy"), "fifo set_not_kept");
  EXPECT_EQ(get("p", "watermarks"), "50:60 set");
}

// The daemon goes on with a file that it cannot read, and refuses orders.
TEST_F(UnwrittenOrdersTest, AreRefusedAfterATakeoverThatCouldNotReadTheFile) {
  change({"set", "p", "policy=lfu"});
  fail_writes("fail read the settings 5");
  mount_->kill_server(false, std::chrono::milliseconds(0));
  EXPECT_TRUE(eventually([&] { return mount_->log().find("Input/output error") != std::string::npos; }));
  EXPECT_NE(cli({"set", "p", "policy=lru"}).exit_code, 0);
  EXPECT_EQ(read_file(mount_->control("policy")), "lfu\n");
  mount_->kill_server(false, std::chrono::milliseconds(0));
  EXPECT_TRUE(eventually([&] { return get("p", "policy") == "lfu set"; }));
  change({"set", "p", "policy=lru"});
  restart();
  EXPECT_EQ(get("p", "policy"), "lru set");
}

}  // namespace
}  // namespace kvcachefs::test
