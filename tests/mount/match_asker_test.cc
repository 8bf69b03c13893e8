// The callers of `.pool/match`, and queries beyond all reason: a query is answered to its author, with the
// author's rights, and neither delays other calls nor kills the daemon.
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/match_test.h"
#include "tests/support/user_process.h"

namespace kvcachefs::test {
namespace {

constexpr uid_t kNobody = 65534;

class AskerTest : public MatchTest {
 protected:
  void store_of(const std::string& agent, mode_t mode = 0644) {
    store_with(agent, {}, {{"agent", agent}}, mode);
  }
  // The number of lines of the answer after its first; 200 for an error.
  int told(uid_t uid, const std::string& text) {
    return as_user(uid, uid, [&] {
      std::string answer;
      if (ask(mount().control("match"), text, &answer) != 0) return 200;
      return static_cast<int>(std::ranges::count(answer, '\n')) - 1;
    });
  }
  int matched_tokens(uid_t uid, const Tokens& tokens) {
    return as_user(uid, uid, [&] {
      std::string answer;
      if (ask(mount().control("match"), tokens_query(tokens), &answer) != 0) return 200;
      return std::stoi(parse(answer).value("matched_tokens"));
    });
  }
  void give(const std::string& name, uid_t uid, mode_t mode) {
    ASSERT_EQ(::chmod(path(name).c_str(), mode), 0);
    ASSERT_EQ(::chown(path(name).c_str(), uid, uid), 0);
  }
};

// Where mapped ids are allowed, the kernel does not report the user of a query.
TEST_F(AskerTest, AUserIsToldOfHisOwn) {
  start();
  for (const auto& [name, mode] : std::map<std::string, mode_t>{{"his", 0600}, {"not_his", 0044}}) {
    store_of(name);
    give(name, kNobody, mode);
  }
  EXPECT_EQ(told(kNobody, "where agent=his"), 1);
  EXPECT_EQ(told(kNobody, "where agent=not_his"), 0) << "the owner is not one of the others";
}

// The rights are those of the open. A program with more rights may be started with the descriptor as its
// standard input or output, and one with fewer may be handed it.
TEST_F(AskerTest, ADescriptorIsNoAuthority) {
  start();
  store_of("own", 0600);
  const std::string text = "where agent=own";
  char byte = 0;
  const auto writes = [&](int fd) {
    return ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : errno;
  };
  const auto reads = [&](int fd) { return ::pread(fd, &byte, 1, 0) == 1 ? 0 : errno; };
  const File open(mount().control("match"), O_RDWR);
  EXPECT_EQ(as_user(kNobody, kNobody, [&] { return writes(open.fd()); }), EACCES);
  ASSERT_EQ(writes(open.fd()), 0);
  EXPECT_EQ(as_user(kNobody, kNobody, [&] { return reads(open.fd()); }), EACCES);
  EXPECT_EQ(reads(open.fd()), 0);
  const auto as_itself_and_root = [&] {
    if (::seteuid(kNobody) != 0) return 200;
    const File its(mount().control("match"), O_RDWR);
    if (writes(its.fd()) != 0 || reads(its.fd()) != 0) return 201;
    if (::seteuid(0) != 0) return 202;
    if (const int error = reads(its.fd()); error != EACCES) return error;
    return writes(its.fd());
  };
  EXPECT_EQ(in_child(as_itself_and_root), EACCES);
  kill_server();
  EXPECT_EQ(as_user(kNobody, kNobody, [&] { return writes(open.fd()); }), EACCES) << "after a takeover, too";
}

// The thread of an asynchronous request may execute another program before the request is answered.
TEST_F(AskerTest, NoRequestIsAsynchronous) {
  start();
  store_of("e");
  EXPECT_EQ(::open(mount().control("match").c_str(), O_RDWR | O_DIRECT), -1);
  EXPECT_EQ(error_name(errno), "EINVAL");
  const File open(mount().control("match"), O_RDWR);
  ASSERT_EQ(::fcntl(open.fd(), F_SETFL, O_DIRECT), 0);
  alignas(4096) std::array<char, 4096> page{};
  aio_context_t context = 0;
  ASSERT_EQ(::syscall(SYS_io_setup, 1, &context), 0);
  for (const uint16_t what : {IOCB_CMD_PWRITE, IOCB_CMD_PREAD}) {
    iocb request{};
    request.aio_lio_opcode = what;
    request.aio_fildes = static_cast<uint32_t>(open.fd());
    request.aio_buf = reinterpret_cast<uint64_t>(page.data());
    request.aio_nbytes = page.size();
    std::array<iocb*, 1> requests{&request};
    ASSERT_EQ(::syscall(SYS_io_submit, context, 1, requests.data()), 1);
    io_event done{};
    ASSERT_EQ(::syscall(SYS_io_getevents, context, 1, 1, &done, nullptr), 1);
    EXPECT_EQ(done.res, -EINVAL) << what;
  }
  ASSERT_EQ(::syscall(SYS_io_destroy, context), 0);
}

// Root of a container has the same uid as the administrator.
TEST_F(AskerTest, TheAdministratorsQueriesHaveAShareOfTheirOwn) {
  start();
  store_of("e");
  std::vector<std::unique_ptr<File>> opens;
  int error = 0;
  std::thread([&] {
    const __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    const std::array<__user_cap_data_struct, 2> none{};
    if (::syscall(SYS_capset, &header, none.data()) != 0) return;
    const std::string piece(1 << 20, ' ');
    while (error == 0 && opens.size() < 100) {
      opens.push_back(std::make_unique<File>(mount().control("match"), O_RDWR));
      for (int i = 0; i < 4 && error == 0; ++i)
        if (::write(opens.back()->fd(), piece.data(), piece.size()) < 0) error = errno;
    }
  }).join();
  EXPECT_EQ(error_name(error), "EDQUOT");
  EXPECT_EQ(query_where("agent=e"), "1");
}

TEST_F(AskerTest, ALookAtAnEntryIsInNobodysWay) {
  start();
  store_with("e", sequence(0, kBlock), {{"agent", "x"}});
  const std::string paused = fault_file() + ".paused";
  for (const std::string& text : {tokens_query(sequence(0, kBlock)), std::string("where agent=x")}) {
    arm("pause query look");
    std::thread asker([&] { EXPECT_EQ(told(kNobody, text), 1); });
    ASSERT_TRUE(eventually([&] { return exists(paused); }));
    const auto others = [&] { return told(kNobody - 1, text); };
    EXPECT_EQ(in_child(others, std::chrono::seconds(10)), 1) << text;
    EXPECT_TRUE(exists(paused));
    ASSERT_EQ(::unlink(paused.c_str()), 0);
    asker.join();
  }
}

// No limit counts the unreadable entries at a place.
TEST_F(AskerTest, EntriesThatACallerMayNotReadHideNone) {
  start();
  store_with("public", sequence(0, kBlock));
  store_with("own", sequence(500, kBlock));
  give("own", kNobody, 0600);
  make_directory(path("closed"), 0700);
  for (int i = 0; i < 70; ++i) {
    store_with("private" + std::to_string(i), sequence(0, kBlock), {}, 0600);
    store_with("closed/" + std::to_string(i), sequence(500, kBlock));
  }
  EXPECT_EQ(matched_tokens(kNobody, sequence(0, kBlock)), 16);
  EXPECT_EQ(matched_tokens(kNobody, sequence(500, kBlock)), 16);
  EXPECT_EQ(matched_tokens(kNobody - 1, sequence(500, kBlock)), 0);
  // The change of the mode makes a private entry readable.
  ASSERT_EQ(::chmod(path("private3").c_str(), 0644), 0);
  ASSERT_EQ(::unlink(path("public").c_str()), 0);
  EXPECT_EQ(matched_tokens(kNobody, sequence(0, kBlock)), 16);
}

// A user whose own entry was found after another user's private entry could guess the private tokens.
TEST_F(AskerTest, AnEntryAfterAPrivateOneTellsNothingOfIt) {
  start();
  store_with("private", sequence(0, kBlock), {}, 0600);
  store_with("guess", sequence(0, kBlock));
  store_with("next", sequence(100, kBlock), {{"parent", "private"}});
  give("guess", kNobody, 0600);
  give("next", kNobody, 0644);
  Tokens prompt = sequence(0, kBlock);
  for (const uint32_t token : sequence(100, kBlock)) prompt.push_back(token);
  EXPECT_EQ(matched_tokens(kNobody, prompt), 16);
  EXPECT_EQ(matched_tokens(0, prompt), 32);
  give("private", 0, 0644);
  EXPECT_EQ(matched_tokens(kNobody, prompt), 32);
}

TEST_F(AskerTest, AnAnswerDoesNotGoOnAsAnotherAfterATakeover) {
  start();
  store_of("x");
  const File open(mount().control("match"), O_RDWR);
  const std::string text = "where agent=x";
  std::string piece(4096, '\0');
  ASSERT_EQ(::write(open.fd(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  ASSERT_GT(::read(open.fd(), piece.data(), 8), 0);
  kill_server();
  EXPECT_EQ(::read(open.fd(), piece.data(), piece.size()), -1);
  EXPECT_EQ(error_name(errno), "ESTALE");
  ASSERT_EQ(::write(open.fd(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  EXPECT_GT(::read(open.fd(), piece.data(), piece.size()), 0);
}

// The way from the pool to the directory is the root of its mount. Beside the directory the container needs
// the file that answers, and nothing else of the pool.
TEST_F(AskerTest, AContainerHasOneDirectoryAndTheFileThatAnswers) {
  start();
  make_directory(path("engine"));
  make_directory(path("engine/0a"));
  store_with("engine/0a/e", {});
  const std::string directory = disk() / "engine", file = disk() / "match";
  ASSERT_EQ(::mkdir(directory.c_str(), 0755), 0);
  write_file(file, "");
  const auto asks_in_a_container = [&]() -> int {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
      return 200;
    for (const auto& [from, to] : {std::pair{path("engine"), directory}, {mount().control("match"), file}})
      if (::mount(from.c_str(), to.c_str(), nullptr, MS_BIND, nullptr) != 0) return 201;
    if (::umount2(mount().root().c_str(), MNT_DETACH) != 0) return 202;
    std::istringstream mounts(read_file("/proc/self/mountinfo"));
    std::string root;
    for (std::string line; std::getline(mounts, line);) {
      std::istringstream fields(line);
      std::string number, parent, device, its_root, place;
      fields >> number >> parent >> device >> its_root >> place;
      if (place == directory) root = its_root;
    }
    if (root != "/p/engine") return 203;
    const std::string way = root.substr(root.find('/', 1) + 1);
    std::string answer;
    if (const int error = ask(file, "names all\n" + way + "/0a/e\n" + way + "/0a/f\n", &answer); error != 0)
      return error;
    return parse(answer).value("present") == "1" ? 0 : 204;
  };
  EXPECT_EQ(in_child(asks_in_a_container), 0);
}

// A name of 120,000 bytes overflowed a stack, and sets were compared with each of 500,000 filters.
TEST_F(AskerTest, QueriesBeyondAllReason) {
  start();
  store_of("x");
  const pid_t serving = mount().serving_pid();
  std::string name;
  for (int depth = 0; depth < 100'000; ++depth) name += "d/";
  EXPECT_EQ(query("names\n" + name + "e\n").value("present"), "0");
  EXPECT_EQ(query("names\n" + std::string("e\0f", 3) + "\n").value("present"), "0");
  std::string filters = "where", answer;
  for (int filter = 0; filter < 7; ++filter) filters += " agent=x";
  EXPECT_EQ(error_name(ask(mount().control("match"), filters, &answer)), "EINVAL");
  EXPECT_EQ(mount().serving_pid(), serving);
}

}  // namespace
}  // namespace kvcachefs::test
