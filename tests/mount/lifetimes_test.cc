// What ends by itself: leases of an answer (`pin=`), user.kv.ttl, user.kv.expires, groups, and leaf_first.
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include <string>

#include "tests/support/match_test.h"
#include "tests/support/user_process.h"

namespace kvcachefs::test {
namespace {

class LifetimesTest : public MatchTest {
 protected:
  int evict_all() { return order("evict", "100%"); }
  int order(const std::string& file, const std::string& text) {
    const File control(mount().control(file), O_WRONLY);
    return ::write(control.fd(), text.data(), text.size()) < 0 ? errno : 0;
  }
  int64_t pinned_bytes() { return stat("pinned_bytes"); }
  static std::string in_seconds(int seconds) { return std::to_string(::time(nullptr) + seconds); }
  // With a disk an entry that is not kept is cold afterwards, and without one gone.
  bool is_kept(const std::string& name) { return tier_of(path(name)) != "cold"; }
};

TEST_F(LifetimesTest, AnAnswerIsLeased) {
  start();
  store_chain();
  store_with("other", sequence(5000, kBlock));
  make_all_cold();
  const Answer answer = match(prompt(), "pin=60s");
  EXPECT_EQ(answer.value("pinned"), "3");
  EXPECT_TRUE(eventually([&] { return tier_of(path("c")) == "clean"; })) << "it is read into memory";
  EXPECT_EQ(pinned_bytes(), 3 * 4096);
  ASSERT_EQ(evict_all(), 0);
  for (const char* name : {"a", "b", "c"}) EXPECT_TRUE(is_kept(name)) << name;
  EXPECT_FALSE(is_kept("other"));
  EXPECT_EQ(query("names pin=60s\nother\n").value("pinned"), "1");
  EXPECT_EQ(pinned_bytes(), 4 * 4096);
  kill_server();
  EXPECT_EQ(pinned_bytes(), 0) << "with the process that serves they end";
}

TEST_F(LifetimesTest, ALeaseEndsWithItsTime) {
  start();
  store_chain();
  EXPECT_EQ(match(prompt(), "pin=5s").value("pinned"), "3");
  EXPECT_GT(pinned_bytes(), 0);
  EXPECT_TRUE(eventually([&] { return pinned_bytes() == 0; }));
}

TEST_F(LifetimesTest, ALeaseEndsWithItsOpenIfAsked) {
  start();
  store_chain();
  {
    const File open(mount().control("match"), O_RDWR);
    const std::string text = tokens_query(prompt(), "pin=600s,close");
    ASSERT_EQ(::write(open.fd(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    char answer[4096];
    ASSERT_GT(::read(open.fd(), answer, sizeof(answer)), 0);
    EXPECT_EQ(pinned_bytes(), 3 * 4096);
    EXPECT_EQ(match(prompt(), "pin=1").value("pinned"), "3") << "another's ends by itself";
  }
  EXPECT_TRUE(eventually([&] { return pinned_bytes() == 0; }));
}

TEST_F(LifetimesTest, PinsAreRefusedInAnotherForm) {
  start();
  for (const char* pin : {"", "0", "601s", "x", "10s,", "10s,never", "10s,close,close", "-1s", "1.5s"}) {
    std::string answer;
    const std::string option = std::string("pin=") + pin;
    EXPECT_EQ(error_name(ask(mount().control("match"), tokens_query({}, option), &answer)), "EINVAL") << pin;
    EXPECT_EQ(error_name(ask(mount().control("match"), "names " + option + "\n", &answer)), "EINVAL") << pin;
  }
}

TEST_F(LifetimesTest, ABinaryQueryPinsToo) {
  start();
  store_with("a", sequence(0, kBlock), {{"model", "m"}});
  const auto binary = [](uint32_t seconds, uint32_t until_close) {
    return "KVQ1" + bytes_of(Tokens{2, 1, kBlock, seconds, until_close}) + "m" +
           bytes_of(sequence(0, kBlock));
  };
  EXPECT_EQ(query(binary(60, 1)).value("pinned"), "1");
  EXPECT_TRUE(eventually([&] { return pinned_bytes() == 0; })) << "its open is closed";
  EXPECT_EQ(query(binary(60, 0)).value("pinned"), "1");
  EXPECT_EQ(pinned_bytes(), 4096);
  std::string answer;
  for (const auto& [seconds, until_close] : {std::pair(0u, 0u), std::pair(601u, 0u), std::pair(60u, 2u)})
    EXPECT_EQ(error_name(ask(mount().control("match"), binary(seconds, until_close), &answer)), "EINVAL");
}

TEST_F(LifetimesTest, AUserLeasesWhatHeMayReadAlone) {
  start();
  store_with("mine", {}, {}, 0600);
  store_with("all", {}, {}, 0644);
  EXPECT_EQ(as_user(65534, 65534,
                    [&] {
                      const Answer answer = query("names pin=60s\nmine\nall\n");
                      return answer.value("present") == "2" && answer.value("pinned") == "1" ? 0 : 1;
                    }),
            0);
  EXPECT_EQ(pinned_bytes(), 4096);
}

TEST_F(LifetimesTest, WhatMovesAnEntryIsItsOwnersToSay) {
  start();
  store_with("open", {}, {{"group", "g"}}, 0666);
  ASSERT_EQ(::chmod(path("open").c_str(), 0666), 0);
  EXPECT_EQ(as_user(65534, 65534,
                    [&] {
                      const std::string file = path("open");
                      if (set_xattr(file, "user.kv.agent", "me") != 0) return 1;
                      for (const auto& [name, value] :
                           {std::pair("group", "other"), std::pair("expires", "1"), std::pair("ttl", "1h")})
                        if (set_xattr(file, std::string("user.kv.") + name, value) != EPERM) return 2;
                      if (::removexattr(file.c_str(), "user.kv.group") == 0 || errno != EPERM) return 3;
                      const std::string own = path("own");
                      if (store(own, "x") != 0 || set_xattr(own, "user.kv.ttl", "1h") != 0) return 4;
                      return ::removexattr(own.c_str(), "user.kv.ttl") == 0 ? 0 : 5;
                    }),
            0);
}

TEST_F(LifetimesTest, LeasesKeepToPinnedMax) {
  start();
  ASSERT_EQ(order("pinned_max", "0%"), 0);
  store_chain();
  const Answer answer = match(prompt(), "pin=60s");
  EXPECT_EQ(answer.value("pinned"), "0");
  EXPECT_EQ(answer.names().size(), 3u);
}

TEST_F(LifetimesTest, ATtlKeepsAnEntryOverATakeoverAndARestart) {
  start();
  store_with("kept", {}, {{"ttl", "1h"}});
  store_with("other", {}, {{"agent", "x"}});
  wait_for_index();
  EXPECT_EQ(pinned_bytes(), 4096);
  EXPECT_TRUE(becomes("dirty_entries", 0));
  ASSERT_EQ(evict_all(), 0);
  EXPECT_TRUE(is_kept("kept"));
  EXPECT_FALSE(is_kept("other"));
  kill_server();
  EXPECT_TRUE(eventually([&] { return pinned_bytes() == 4096; }));
  stop();
  start();
  EXPECT_TRUE(eventually([&] { return pinned_bytes() == 4096; }));
  EXPECT_TRUE(eventually([&] { return is_kept("kept"); })) << "it is read into memory";
  ASSERT_EQ(set_xattr(path("kept"), "user.kv.ttl", "1s"), 0);
  EXPECT_TRUE(eventually([&] { return pinned_bytes() == 0; }));
}

TEST_F(LifetimesTest, AnEntryExpires) {
  start();
  store_with("e", {}, {{"expires", in_seconds(8)}});
  store_with("later", {}, {{"expires", in_seconds(3600)}});
  EXPECT_TRUE(exists(path("e")));
  EXPECT_TRUE(eventually([&] { return !exists(path("e")); }));
  EXPECT_TRUE(exists(path("later")));
  EXPECT_TRUE(eventually([&] { return stat("expired") == 1; }));
  // A cold one, known to the kernel, and after a takeover and a restart.
  make_all_cold();
  ASSERT_TRUE(exists(path("later")));
  kill_server();
  stop();
  start();
  wait_for_index();
  ASSERT_EQ(::removexattr(path("later").c_str(), "user.kv.expires"), 0);
  wait_for_index();
  EXPECT_TRUE(exists(path("later")));
  ASSERT_EQ(set_xattr(path("later"), "user.kv.expires", "1"), 0);
  EXPECT_TRUE(eventually([&] { return !exists(path("later")); }));
  EXPECT_EQ(stat("expired"), 1);
  EXPECT_EQ(stat("disk_discards"), 0) << "the disk is not full";
  stop();
  start();
  EXPECT_FALSE(exists(path("later")));
}

// The group of a cold entry leaves with the entry, whatever its members have on the disk.
TEST_F(LifetimesTest, AGroupThatExpiresIsNotLostToAFullDisk) {
  start();
  for (const char* name : {"a", "b", "c"}) store_with(name, {}, {{"group", "g"}});
  store_with("other", {}, {{"group", "h"}});
  wait_for_index();
  make_all_cold();
  ASSERT_EQ(set_xattr(path("a"), "user.kv.expires", "1"), 0);
  EXPECT_TRUE(eventually([&] { return !exists(path("a")); }));
  EXPECT_FALSE(exists(path("b")) || exists(path("c")));
  EXPECT_TRUE(exists(path("other")));
  EXPECT_EQ(stat("disk_discards"), 0) << "the disk is not full";
  EXPECT_EQ(stat("expired"), 1);
  EXPECT_EQ(stat("group_discards"), 2);
  EXPECT_EQ(stat("discards"), 3);
}

TEST_F(LifetimesTest, AnOpenEntryExpiresAfterItsClose) {
  start();
  store_with("e", {}, {{"agent", "x"}});
  {
    const File reader(path("e"), O_RDONLY);
    ASSERT_EQ(set_xattr(path("e"), "user.kv.expires", "1"), 0);
    store_with("probe", {}, {{"expires", "1"}});
    EXPECT_TRUE(eventually([&] { return !exists(path("probe")); }));
    EXPECT_TRUE(exists(path("e")));
  }
  EXPECT_TRUE(eventually([&] { return !exists(path("e")); }));
}

TEST_F(LifetimesTest, AGroupLeavesAsOne) {
  start_pool("p:size=64M");
  for (const char* name : {"a", "b", "c"}) store_with(name, {}, {{"group", "g"}});
  store_with("other", {}, {{"group", "h"}});
  wait_for_index();
  ASSERT_EQ(order("evict", "1"), 0);
  EXPECT_TRUE(eventually([&] { return !exists(path("a")) && !exists(path("b")) && !exists(path("c")); }));
  EXPECT_TRUE(exists(path("other")));
}

TEST_F(LifetimesTest, LeavesGoFirst) {
  start_pool("p:size=64M,leaf_first=on");
  store_chain();
  wait_for_index();
  ASSERT_EQ(order("evict", "1"), 0);
  EXPECT_EQ(match(prompt()).value("matched_tokens"), "32");
  ASSERT_EQ(order("leaf_first", "off"), 0);
  ASSERT_EQ(order("evict", "1"), 0);
  EXPECT_EQ(match(prompt()).value("matched_tokens"), "0");
  EXPECT_TRUE(exists(path("b")));
}

TEST_F(LifetimesTest, WrongTimesAreRefused) {
  start();
  store_with("e", {});
  for (const char* value : {"", "soon", "-1", "0x1", "1w", "1.5h", "99999999999999999999"}) {
    EXPECT_EQ(set_xattr(path("e"), "user.kv.ttl", value), EINVAL) << value;
    EXPECT_EQ(set_xattr(path("e"), "user.kv.expires", value), EINVAL) << value;
  }
}

}  // namespace
}  // namespace kvcachefs::test
