// What is changed of pools while they serve is there after a restart (daemon/kept_settings.h).
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/support/files.h"
#include "tests/support/kept_settings.h"

namespace kvcachefs::test {
namespace {

using ::testing::HasSubstr;

class KeptSettingsTest : public KeptSettingsFixture {};

TEST_F(KeptSettingsTest, WhatIsSetOutlivesARestart) {
  EXPECT_EQ(get("p", "policy"), "fifo configured");
  EXPECT_EQ(get("p", "watermarks"), "95:98 default");
  change({"set", "p", "size=32M", "policy=lfu", "max_entries=1000"});
  ASSERT_EQ(error_of(::chmod(mount_->path().c_str(), 0750)), 0);
  EXPECT_EQ(get("p", "size"), "32M set");
  for (int round = 0; round < 2; ++round) {
    restart();
    EXPECT_EQ(get("p", "size"), "32M set");
    EXPECT_EQ(get("p", "size_max"), "32M set");
    EXPECT_EQ(get("p", "policy"), "lfu set");
    EXPECT_EQ(get("p", "max_entries"), "1000 set");
    EXPECT_EQ(get("p", "mode"), "0750 set");
    EXPECT_EQ(get("q", "size"), "16M configured");
  }
  EXPECT_THAT(mount_->log(), HasSubstr("pool p: policy is lfu, as it was set"));
}

TEST_F(KeptSettingsTest, WhatIsWrittenToControlFilesIsKept) {
  ASSERT_EQ(write_once(mount_->control("watermarks"), "50:60"), 0);
  ASSERT_EQ(write_once(mount_->administrators("size"), "24M"), 0);
  EXPECT_NE(write_once(mount_->control("policy"), "no-policy"), 0);
  restart();
  EXPECT_EQ(get("p", "watermarks"), "50:60 set");
  EXPECT_EQ(get("p", "size"), "24M set");
  EXPECT_EQ(get("p", "policy"), "fifo configured");
}

TEST_F(KeptSettingsTest, PoolsAreMadeAndDeletedForGood) {
  change({"create", "new", "--size", "8M", "--policy", "lfu"});
  ASSERT_EQ(error_of(::mkdir((mount_->root() + "/plain").c_str(), 0700)), 0);
  change({"create", "passing", "--size", "4M"});
  change({"delete", "passing"});
  change({"delete", "q"});
  const std::string plain_size = get("plain", "size");
  restart();
  EXPECT_EQ(pools(), (std::vector<std::string>{"new", "p", "plain"}));
  EXPECT_EQ(get("new", "size"), "8M set");
  EXPECT_EQ(get("new", "policy"), "lfu set");
  EXPECT_EQ(get("plain", "size"), plain_size);
  EXPECT_EQ(get("plain", "mode"), "0700 set");
  EXPECT_THAT(mount_->log(), HasSubstr("pool q: was deleted: `kvcachefs create q` makes it again"));
  change({"create", "q", "--size", "4M"});
  change({"delete", "new"});
  restart();
  EXPECT_EQ(pools(), (std::vector<std::string>{"p", "plain", "q"}));
  EXPECT_EQ(get("q", "size"), "4M set");
}

TEST_F(KeptSettingsTest, AResetTakesItBack) {
  change({"set", "p", "size=32M", "policy=lfu", "watermarks=50:60"});
  change({"reset", "p", "policy"});
  change({"reset", "p", "size"});
  change({"reset", "p", "size"});
  EXPECT_EQ(get("p", "policy"), "fifo configured");
  EXPECT_EQ(get("p", "size"), "64M configured");
  EXPECT_EQ(get("p", "size_max"), "64M configured");
  EXPECT_EQ(read_file(mount_->control("policy")), "fifo\n");
  restart();
  EXPECT_EQ(get("p", "policy"), "fifo configured");
  EXPECT_EQ(get("p", "size"), "64M configured");
  EXPECT_EQ(get("p", "watermarks"), "50:60 set");
  EXPECT_EQ(cli({"reset", "p", "nothing"}).exit_code, 2);
  EXPECT_NE(cli({"reset", "p", "mode"}).exit_code, 0);
}

// What was set goes over a configuration that has changed meanwhile; what is not there any more is passed
// over.
TEST_F(KeptSettingsTest, TheConfigurationMayChange) {
  change({"set", "p", "policy=lfu"});
  change({"set", "q", "size=8M"});
  restart({"p:size=48M,policy=lru", "r:size=8M"});
  EXPECT_EQ(pools(), (std::vector<std::string>{"p", "r"}));
  EXPECT_EQ(get("p", "size"), "48M configured");
  EXPECT_EQ(get("p", "policy"), "lfu set");
  restart();
  EXPECT_EQ(get("q", "size"), "8M set");
}

TEST_F(KeptSettingsTest, ADeathLosesNothing) {
  change({"set", "p", "policy=lfu"});
  mount_->kill_server(false, std::chrono::milliseconds(0));
  EXPECT_EQ(get("p", "policy"), "lfu set");
  EXPECT_EQ(get("p", "size"), "64M configured");
  for (const char* place : {"settings to be written", "file written", "settings replaced"}) {
    std::ofstream(fault_file()) << place;
    change({"set", "p", "watermarks=40:50"});
    change({"create", "made", "--size", "4M"});
    EXPECT_EQ(get("p", "watermarks"), "40:50 set");
    restart();
    EXPECT_EQ(get("p", "watermarks"), "40:50 set") << place;
    EXPECT_EQ(get("made", "size"), "4M set") << place;
    change({"delete", "made"});
    change({"reset", "p", "watermarks"});
  }
}

TEST_F(KeptSettingsTest, ADiskThatIsGivenIsKept) {
  if (mode() == Mode::kIoUring) GTEST_SKIP() << "no disk tier over io_uring";
  const std::string spill = place_ / "spill";
  change({"set", "p", "spill=" + spill, "spill_size=64M", "durability=sync"});
  ASSERT_EQ(store(mount_->path() + "/entry", pattern(1, 100'000)), 0);
  restart();
  EXPECT_EQ(get("p", "spill"), spill + " set");
  EXPECT_EQ(get("p", "durability"), "sync set");
  EXPECT_EQ(difference(1, read_file(mount_->path() + "/entry")), "");
  change({"reset", "p", "spill"});
  change({"reset", "p", "spill_size"});
  EXPECT_EQ(difference(1, read_file(mount_->path() + "/entry")), "");
  restart();
  EXPECT_EQ(get("p", "spill"), "none default");
  EXPECT_FALSE(exists(mount_->path() + "/entry"));
}

TEST_F(KeptSettingsTest, AFileThatIsWrongIsNamed) {
  change({"set", "p", "policy=lfu"});
  mount_->stop();
  const std::string kept = file();
  ASSERT_FALSE(kept.empty());
  for (const auto& [text, why] : std::vector<std::pair<std::string, std::string>>{
           {"pools = 3\n", ":1: pools is not a table of pools"},
           {"[pools.p]\npolicy = \"mru\"\n", ":2: policy: 'mru' is not a policy"},
           {"[pools.p]\npolicy = 3\n", ":2: policy is no text"},
           {"[pools.p]\nsize = \"32T\"\n", "beyond the memory"},
           {"[pools.new]\ncreated = true\n", ":1: pool new has no size"},
           {"[pools.\"../x\"]\n", "is not a pool name"},
           {"[pools.p\n", ":1: "},
           {std::string(100, '\0'), ":1: "}}) {
    std::ofstream(kept, std::ios::trunc) << text << "\n# end\n";
    EXPECT_THAT(refusal(), ::testing::AllOf(HasSubstr(kept), HasSubstr(why))) << text;
    EXPECT_EQ(read_file(kept), text + "\n# end\n");
  }
  ASSERT_EQ(error_of(::unlink(kept.c_str())), 0);
  start();
  EXPECT_EQ(get("p", "policy"), "fifo configured");
}

TEST_F(KeptSettingsTest, AKeyOfANewerVersionStays) {
  change({"set", "p", "policy=lfu"});
  change({"create", "new", "--size", "8M"});
  mount_->stop();
  const std::string kept = file();
  std::string text = read_file(kept);
  for (const std::string pool : {"p", "new"}) {
    const std::string title = "[pools.\"" + pool + "\"]\n";
    ASSERT_NE(text.find(title), std::string::npos) << text;
    text.insert(text.find(title) + title.size(), "no_such_" + pool + " = [1, \"x\"]\n");
  }
  std::ofstream(kept, std::ios::trunc) << text;
  start();
  for (const std::string pool : {"p", "new"})
    EXPECT_THAT(mount_->log(), HasSubstr("<4>" + kept + ": pool " + pool + ": unknown key 'no_such_" + pool +
                                         "': it stays there, and has no effect"));
  EXPECT_EQ(get("p", "policy"), "lfu set");
  change({"set", "p", "watermarks=50:60"});
  change({"reset", "p", "policy"});
  change({"reset", "p", "watermarks"});
  for (const char* line : {"\"no_such_p\" = [ 1, \"x\" ]\n", "\"no_such_new\" = [ 1, \"x\" ]\n"})
    EXPECT_THAT(read_file(kept), HasSubstr(line));
  restart();
  EXPECT_EQ(get("p", "policy"), "fifo configured");
  EXPECT_THAT(read_file(kept), HasSubstr("no_such_p"));
}

TEST_F(KeptSettingsTest, AFileThatWasCutShortIsRefused) {
  change({"set", "p", "policy=lfu", "watermarks=50:60"});
  change({"create", "new", "--size", "8M"});
  mount_->stop();
  const std::string kept = file(), whole = read_file(kept);
  ASSERT_THAT(whole, HasSubstr("watermarks"));
  for (size_t size = 0; size < whole.size(); size += size < whole.size() - 16 ? 13 : 1) {
    std::ofstream(kept, std::ios::trunc) << whole.substr(0, size);
    EXPECT_THAT(refusal(), HasSubstr(kept)) << whole.substr(0, size);
    EXPECT_EQ(read_file(kept), whole.substr(0, size));
  }
  std::ofstream(kept, std::ios::trunc) << whole;
  start();
  EXPECT_EQ(get("p", "policy"), "lfu set");
}

TEST_F(KeptSettingsTest, AFileThatMayBeOfAnotherUserIsRefused) {
  change({"set", "p", "policy=lfu"});
  mount_->stop();
  const std::string kept = file(), directory = file().parent_path(), aside = place_ / "aside";
  const auto refused = [&](const std::string& why) {
    EXPECT_THAT(refusal(), ::testing::AllOf(HasSubstr(directory), HasSubstr(why)));
  };
  ASSERT_EQ(error_of(::chown(kept.c_str(), 4711, 4711)), 0);
  refused(kept + ": another user may write to it");
  ASSERT_EQ(error_of(::chown(kept.c_str(), 0, 0)), 0);
  ASSERT_EQ(error_of(::chmod(kept.c_str(), 0620)), 0);
  refused(kept + ": another user may write to it");
  ASSERT_EQ(error_of(::chmod(kept.c_str(), 0600)), 0);
  ASSERT_EQ(error_of(::chmod(directory.c_str(), 0777)), 0);
  refused(directory + ": another user may write to it");
  ASSERT_EQ(error_of(::chmod(directory.c_str(), 0700)), 0);
  ASSERT_EQ(error_of(::rename(kept.c_str(), aside.c_str())), 0);
  ASSERT_EQ(error_of(::symlink(aside.c_str(), kept.c_str())), 0);
  refused(kept + ": is a symbolic link");
  ASSERT_EQ(error_of(::unlink(kept.c_str())), 0);
  ASSERT_EQ(error_of(::mkfifo(kept.c_str(), 0600)), 0);
  refused(kept + ": is no file");
  ASSERT_EQ(error_of(::unlink(kept.c_str())), 0);
  ASSERT_EQ(error_of(::rename(aside.c_str(), kept.c_str())), 0);
  start();
  EXPECT_EQ(get("p", "policy"), "lfu set");
}

TEST_F(KeptSettingsTest, AFileThatCannotBeReadIsRefused) {
  change({"set", "p", "policy=lfu"});
  mount_->stop();
  const std::string kept = file();
  const auto size_bytes = static_cast<off_t>(read_file(kept).size());
  std::ofstream(fault_file()) << "failing read the settings 5\n";
  EXPECT_THAT(refusal(), HasSubstr(kept + ": Input/output error"));
  ::unlink(fault_file().c_str());
  ASSERT_EQ(error_of(::truncate(kept.c_str(), off_t{1} << 40)), 0);
  EXPECT_THAT(refusal(), HasSubstr(kept + ": is larger than what the daemon writes"));
  ASSERT_EQ(error_of(::truncate(kept.c_str(), size_bytes)), 0);
  start();
  EXPECT_EQ(get("p", "policy"), "lfu set");
}

// Of another daemon with the same mount point in a namespace of its own, or of an editor.
TEST_F(KeptSettingsTest, WhatAnotherHasWrittenStays) {
  change({"set", "p", "policy=lfu"});
  const std::string kept = file(), of_another = read_file(kept), beside = kept + ".another";
  change({"set", "p", "watermarks=50:60"});
  std::ofstream(beside) << of_another;
  ASSERT_EQ(error_of(::rename(beside.c_str(), kept.c_str())), 0);
  EXPECT_NE(cli({"set", "p", "max_entries=1000"}).exit_code, 0);
  EXPECT_EQ(get("p", "max_entries"), "0 default");
  EXPECT_THAT(mount_->log(), HasSubstr(kept + ": has changed since this daemon read or wrote it, and stays"));
  EXPECT_EQ(read_file(kept), of_another);
  ASSERT_EQ(error_of(::unlink(kept.c_str())), 0);
  change({"reset", "p", "policy"});
  restart();
  EXPECT_EQ(get("p", "watermarks"), "50:60 set");
  EXPECT_EQ(get("p", "policy"), "fifo configured");
}

TEST_F(KeptSettingsTest, AnOwnerResetsWithinHisLimits) {
  ASSERT_EQ(error_of(::chown(mount_->path().c_str(), 4711, 4711)), 0);
  change({"set", "p", "size=32M"});  // and size_max
  change({"set", "p", "policy=lfu"});
  const auto as_owner = [&](const std::string& key) {
    return as_user(4711, 4711, [&] { return write_once(mount_->control("reset"), key); });
  };
  EXPECT_EQ(as_owner("policy"), 0);
  EXPECT_EQ(error_name(as_owner("size")), "EPERM");
  EXPECT_EQ(error_name(as_owner("spill")), "EPERM");
  EXPECT_EQ(get("p", "policy"), "fifo configured");
  EXPECT_EQ(get("p", "size"), "32M set");
}

TEST_F(KeptSettingsTest, OfTheConfigurationOnlyRootSpeaks) {
  const std::string configure = mount_->root() + "/.kvcachefs/configure";
  EXPECT_FALSE(exists(mount_->root() + "/r"));
  EXPECT_EQ(write_once(configure, "r:size=8M,policy=lfu\n"), 0);
  EXPECT_EQ(get("r", "policy"), "lfu configured");
  EXPECT_EQ(error_name(write_once(configure, "r:size=8M")), "EEXIST");
  EXPECT_EQ(error_name(write_once(configure, "s:size=no")), "EINVAL");
  change({"set", "r", "policy=fifo"});
  restart();
  EXPECT_EQ(pools(), (std::vector<std::string>{"p", "q"}));
  EXPECT_EQ(write_once(configure, "r:size=8M,policy=lfu"), 0);
  EXPECT_EQ(get("r", "policy"), "fifo set");
  change({"reset", "r", "policy"});
  EXPECT_EQ(get("r", "policy"), "lfu configured");
  mount_->kill_server(false, std::chrono::milliseconds(0));
  EXPECT_EQ(get("r", "policy"), "lfu configured");
  change({"set", "r", "policy=fifo"});
  change({"reset", "r", "policy"});
  EXPECT_EQ(get("r", "policy"), "lfu configured");
  // What is refused changes nothing of what is kept.
  change({"create", "made", "--size", "4M"});
  EXPECT_EQ(error_name(write_once(configure, "made:size=8M")), "EEXIST");
  restart();
  EXPECT_EQ(get("made", "size"), "4M set");
  EXPECT_EQ(error_name(as_user(4711, 4711, [&] { return write_once(configure, "s:size=8M"); })), "EACCES");
}

TEST_F(KeptSettingsTest, ThePrintedConfigurationGivesTheSame) {
  change({"set", "p", "size=32M", "policy=lfu"});
  change({"create", "new", "--size", "8M"});
  change({"delete", "q"});
  mount_->stop();
  const std::string state = place_ / "run.state";
  const Outcome printed = run({"kvcachefsd", "--print-config", "--pool", "p:size=64M,policy=fifo", "--pool",
                               "q:size=16M", "-o", "state_dir=" + state, mount_->root()});
  EXPECT_EQ(printed.exit_code, 0) << printed.error;
  for (const char* line : {"[pools.\"p\"]", "size = \"32M\"", "policy = \"lfu\"", "[pools.\"new\"]"})
    EXPECT_THAT(printed.out, HasSubstr(line));
  EXPECT_THAT(printed.out, ::testing::Not(HasSubstr("[pools.\"q\"]")));
}

}  // namespace
}  // namespace kvcachefs::test
