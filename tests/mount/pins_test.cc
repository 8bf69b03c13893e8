// The extended attributes that the daemon gives and takes: pins, priorities and the facts it knows of an
// entry.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <barrier>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/pool_pressure.h"
#include "tests/support/program.h"

namespace kvcachefs::test {
namespace {

constexpr const char* kPinned = "user.kvcachefs.pinned";

class PinsTest : public SharedMount<PinsTest> {
 public:
  static MountOptions options() { return {.pools = {"p:size=64M"}}; }

 protected:
  static int pin(const std::string& name, std::string_view value = "1") {
    return set_xattr(name, kPinned, value);
  }
  static int get_error(const std::string& path, const char* name) {
    return error_of(::getxattr(path.c_str(), name, nullptr, 0));
  }
  static std::set<std::string> names_of(const std::string& path) {
    std::string buffer(4096, '\0');
    const ssize_t size = ::listxattr(path.c_str(), buffer.data(), buffer.size());
    EXPECT_GE(size, 0);
    std::istringstream stream(buffer.substr(0, size < 0 ? 0 : size));
    std::set<std::string> names;
    for (std::string name; std::getline(stream, name, '\0');) names.insert(name);
    return names;
  }
};

TEST_F(PinsTest, PinnedEntriesSurvivePressure) {
  const auto pinned = fill(mount().path(), "pinned", 10);
  for (const std::string& name : pinned) {
    EXPECT_EQ(xattr(name, kPinned), "0");
    ASSERT_EQ(error_name(pin(name)), "ok");
    EXPECT_EQ(xattr(name, kPinned), "1");
  }
  EXPECT_TRUE(eventually([&] { return in_memory(pinned).size() == 10; })) << "a cold one comes back";
  EXPECT_EQ(mount().stat_value("pinned_bytes"), static_cast<int64_t>(10 * kMiB));
  fill(mount().path(), "pressure", 4 * 64);
  ASSERT_TRUE(all_closed(mount()));
  order(mount(), "100%");
  EXPECT_EQ(in_memory(pinned).size(), 10u);
  EXPECT_EQ(check_whole(pinned), 10);
  ASSERT_EQ(pin(pinned[0], "0"), 0);
  ASSERT_TRUE(all_closed(mount()));
  order(mount(), "100%");
  EXPECT_EQ(in_memory(pinned).size(), 9u);
  EXPECT_EQ(mount().stat_value("pinned_bytes"), static_cast<int64_t>(9 * kMiB));
}

TEST_F(PinsTest, PinsHaveALimit) {
  const auto names = fill(mount().path(), "e", 40);
  for (int i = 0; i < 32; ++i) ASSERT_EQ(error_name(pin(names[i])), "ok") << i;
  const size_t log_before = mount().log().size();
  EXPECT_EQ(error_name(pin(names[32])), "ENOSPC");
  EXPECT_TRUE(eventually([&] { return mount().log().size() > log_before; })) << "no reason in the log";
  EXPECT_EQ(xattr(names[32], kPinned), "0");
  EXPECT_EQ(error_name(pin(names[5])), "ok") << "pinned before: no more needed";
  ASSERT_EQ(pin(names[0], "0"), 0);
  EXPECT_EQ(error_name(pin(names[32])), "ok");
  ASSERT_EQ(write_once(mount().administrators("pinned_max"), "60%"), 0);
  EXPECT_EQ(error_name(pin(names[33])), "ok");
  ASSERT_EQ(write_once(mount().administrators("pinned_max"), "50%"), 0);
}

TEST_F(PinsTest, PinsAtOnceKeepTheLimit) {
  constexpr int kThreads = 8;
  const auto names = fill(mount().path(), "e", kThreads, 24 * kMiB / kThreads * 2);  // room to pin five
  const int64_t limit = mount().stat_value("pinned_max_bytes");
  for (int round = 0; round < 200; ++round) {
    std::barrier start(kThreads);
    std::vector<std::jthread> threads;
    for (const std::string& name : names)
      threads.emplace_back([&] {
        start.arrive_and_wait();
        const int error = pin(name);
        EXPECT_TRUE(error == 0 || error == ENOSPC) << error_name(error);
      });
    threads.clear();
    ASSERT_LE(mount().stat_value("pinned_bytes"), limit) << round;
    for (const std::string& name : names) ASSERT_EQ(pin(name, "0"), 0);
  }
}

// The entries are pinned while empty, so that each close has to check whether its size still fits.
TEST_F(PinsTest, ClosesAtOnceKeepTheLimit) {
  constexpr int kThreads = 8;
  const int64_t limit = mount().stat_value("pinned_max_bytes");
  const std::string content(5 * kMiB, 'x');  // six of eight fit
  for (int round = 0; round < 30; ++round) {
    std::barrier start(kThreads);
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        const std::string name = path("e" + std::to_string(thread));
        // The eight entries take most of the pool, and the memory of the round before may not be free yet.
        int opened = -1;
        EXPECT_TRUE(eventually(
            [&] { return (opened = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) >= 0; }));
        File file(opened);
        EXPECT_EQ(error_name(pin(name)), "ok");
        size_t stored = 0;
        EXPECT_TRUE(eventually([&] {
          const ssize_t more = ::pwrite(file.fd(), content.data() + stored, content.size() - stored,
                                        static_cast<off_t>(stored));
          if (more > 0) stored += static_cast<size_t>(more);
          return stored == content.size();
        }));
        start.arrive_and_wait();
        file.close();
      });
    }
    threads.clear();
    ASSERT_TRUE(all_closed(mount()));
    ASSERT_LE(mount().stat_value("pinned_bytes"), limit) << round;
    remove_content(mount().path());
  }
}

TEST_F(PinsTest, WrittenAgainItStaysPinned) {
  const auto names = fill(mount().path(), "e", 1, 20 * kMiB);  // more than half of the pin limit
  ASSERT_EQ(error_name(pin(names[0])), "ok");
  {
    const File writer(names[0], O_RDWR);
    ASSERT_EQ(::pwrite(writer.fd(), "x", 1, 0), 1);
  }
  ASSERT_TRUE(all_closed(mount()));
  EXPECT_EQ(xattr(names[0], kPinned), "1");
  EXPECT_EQ(mount().stat_value("pinned_bytes"), static_cast<int64_t>(20 * kMiB));
}

TEST_F(PinsTest, RemovedEntriesGiveTheirPinBack) {
  const auto names = fill(mount().path(), "e", 3);
  for (const std::string& name : names) ASSERT_EQ(pin(name), 0);
  ASSERT_EQ(::unlink(names[0].c_str()), 0);
  EXPECT_TRUE(
      eventually([] { return mount().stat_value("pinned_bytes") == static_cast<int64_t>(2 * kMiB); }));
  ASSERT_EQ(store(names[1], "replaced by another file"), 0);
  EXPECT_TRUE(eventually([] { return mount().stat_value("pinned_bytes") == static_cast<int64_t>(kMiB); }));
  EXPECT_EQ(xattr(names[1], kPinned), "0");
}

TEST_F(PinsTest, WrongPins) {
  const auto names = fill(mount().path(), "e", 1, 1000);
  for (const char* wrong : {"", "2", "yes", "10", "-1"})
    EXPECT_EQ(error_name(pin(names[0], wrong)), "EINVAL") << wrong;
  EXPECT_EQ(xattr(names[0], kPinned), "0");
  make_directory(path("d"));
  EXPECT_NE(pin(path("d")), 0);
  ASSERT_EQ(::chmod(names[0].c_str(), 0644), 0);
  EXPECT_EQ(as_user(1234, 1234, [&] { return pin(names[0]); }), EACCES);
}

TEST_F(PinsTest, Priorities) {
  const auto names = fill(mount().path(), "e", 1, 1000);
  for (const char* good : {"0", "-1000", "1000", "42"}) {
    EXPECT_EQ(error_name(set_xattr(names[0], "user.kv.priority", good)), "ok") << good;
    EXPECT_EQ(xattr(names[0], "user.kv.priority"), good);
  }
  for (const char* wrong : {"", "high", "1001", "-1001", "1.5", "7x"}) {
    EXPECT_EQ(error_name(set_xattr(names[0], "user.kv.priority", wrong)), "EINVAL") << wrong;
  }
  EXPECT_EQ(xattr(names[0], "user.kv.priority"), "42");
  EXPECT_EQ(::removexattr(names[0].c_str(), "user.kv.priority"), 0);
  EXPECT_EQ(get_error(names[0], "user.kv.priority"), ENODATA);
  EXPECT_EQ(set_xattr(names[0], "user.kv.tokens", "any text"), 0);
  EXPECT_EQ(xattr(names[0], "user.kv.tokens"), "any text");
}

TEST_F(PinsTest, WhatTheDaemonKnows) {
  const auto names = fill(mount().path(), "e", 1);
  if (!every_pool_spills()) {
    EXPECT_EQ(xattr(names[0], "user.kvcachefs.tier"), "dirty");
  }
  EXPECT_GE(std::stoi(xattr(names[0], "user.kvcachefs.node")), 0);
  EXPECT_EQ(xattr(names[0], "user.kvcachefs.hits"), "0");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(read_file(names[0]).size(), kMiB);
  EXPECT_EQ(xattr(names[0], "user.kvcachefs.hits"), "3");
  const long version = std::stol(xattr(names[0], "user.kvcachefs.version"));
  EXPECT_EQ(read_file(names[0]).size(), kMiB);
  EXPECT_EQ(std::stol(xattr(names[0], "user.kvcachefs.version")), version);
  write_file(names[0], "new content");
  EXPECT_GT(std::stol(xattr(names[0], "user.kvcachefs.version")), version);
}

TEST_F(PinsTest, ReadOnlyOnesAndForeignSpaces) {
  const auto names = fill(mount().path(), "e", 1, 1000);
  for (const char* name : {"tier", "node", "hits", "version"}) {
    const std::string full = std::string("user.kvcachefs.") + name;
    EXPECT_EQ(error_name(set_xattr(names[0], full, "9999")), "EPERM") << full;
    EXPECT_NE(error_of(::removexattr(names[0].c_str(), full.c_str())), 0) << full;
  }
  EXPECT_EQ(error_name(get_error(names[0], "user.kvcachefs.other")), "ENODATA");
  EXPECT_EQ(error_name(set_xattr(names[0], "user.kvcachefs.other", "1")), "EPERM");
  EXPECT_EQ(error_name(set_xattr(names[0], "security.foo", "1")), "EOPNOTSUPP");
  EXPECT_EQ(error_name(get_error(names[0], "security.foo")), "EOPNOTSUPP");
  EXPECT_EQ(error_name(set_xattr(names[0], "system.foo", "1")), "EOPNOTSUPP");
}

TEST_F(PinsTest, SetToWhatTheyAre) {
  const auto names = fill(mount().path(), "e", 1, 1000);
  for (const char* name : {"user.kvcachefs.hits", "user.kvcachefs.node", "user.kvcachefs.version"}) {
    const std::string value = xattr(names[0], name);
    EXPECT_EQ(error_name(set_xattr(names[0], name, value)), "ok") << name;
    EXPECT_EQ(error_name(set_xattr(names[0], name, value + "0")), "EPERM") << name;
  }
  EXPECT_EQ(error_name(set_xattr(mount().path(), "user.kvcachefs.hits", "0")), "EPERM") << "of a directory";
}

// Programs that copy attributes, and report it if they cannot.
TEST_F(PinsTest, CopyingPrograms) {
  const auto names = fill(mount().path(), "e", 3, 1000);
  for (const std::string& name : names) ASSERT_EQ(set_xattr(name, "user.mine", "x"), 0);
  const PlainTmpfs outside;
  const std::string there = outside.path() + "/";
  const std::vector<std::vector<std::string>> commands = {
      {"/usr/bin/cp", "--preserve=xattr", names[0], path("cp")},
      {"/usr/bin/cp", "--preserve=xattr", names[0], there + "cp"},
      {"/usr/bin/rsync", "-aX", names[0], path("rsync")},
      {"/usr/bin/rsync", "-aX", names[0], there + "rsync"},
      {"/usr/bin/tar", "-C", mount().path(), "--xattrs", "--xattrs-include=*", "-cf", there + "tar", "e-1"},
      {"/usr/bin/tar", "-C", there, "--xattrs", "--xattrs-include=*", "-xf", there + "tar"},
      {"/usr/bin/tar", "-C", mount().path(), "--xattrs", "--xattrs-include=*", "-xf", there + "tar"},
      {"/usr/bin/mv", names[2], there + "mv"},
      {"/usr/bin/mv", there + "mv", path("mv")}};
  for (const std::vector<std::string>& command : commands) {
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.exit_code, 0) << command[0];
    EXPECT_EQ(outcome.error, "") << command[0];
  }
  const std::set<std::string> its = {"user.mine"};
  for (const std::string& copy :
       {path("cp"), path("rsync"), path("e-1"), path("mv"), there + "cp", there + "rsync", there + "e-1"})
    EXPECT_EQ(names_of(copy), its) << copy;
}

TEST_F(PinsTest, Listed) {
  const auto names = fill(mount().path(), "e", 1, 1000);
  ASSERT_EQ(set_xattr(names[0], "user.mine", "x"), 0);
  EXPECT_EQ(names_of(names[0]), std::set<std::string>{"user.mine"}) << "what the daemon knows is not listed";
  make_directory(path("d"));
  EXPECT_EQ(names_of(path("d")), std::set<std::string>());
  EXPECT_EQ(names_of(mount().path()), std::set<std::string>());
}

}  // namespace
}  // namespace kvcachefs::test
