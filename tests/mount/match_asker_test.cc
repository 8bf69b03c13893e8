// Who asks `.pool/match`, and what is beyond all reason: a query is answered to who wrote it, and kills
// nothing.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>

#include "tests/support/faults.h"
#include "tests/support/files.h"
#include "tests/support/user_process.h"

namespace kvcachefs::test {
namespace {

class AskerTest : public FaultedTierTest {
 protected:
  void store_with(const std::string& name, const std::string& agent, mode_t mode = 0644) {
    const std::string temporary = path(name + ".tmp");
    write_file(temporary, pattern(1, 4096), mode);
    ASSERT_EQ(set_xattr(temporary, "user.kv.agent", agent), 0);
    ASSERT_EQ(::rename(temporary.c_str(), path(name).c_str()), 0);
  }
  // The answers here are short.
  static int ask(const std::string& file, const std::string& query, std::string* text) {
    const File open(file, O_RDWR);
    if (::write(open.fd(), query.data(), query.size()) != static_cast<ssize_t>(query.size())) return errno;
    text->resize(4096);
    const ssize_t bytes = ::read(open.fd(), text->data(), text->size());
    text->resize(static_cast<size_t>(std::max<ssize_t>(bytes, 0)));
    return bytes < 0 ? errno : 0;
  }
  std::string query(const std::string& text) {
    std::string answer;
    EXPECT_EQ(error_name(ask(mount().control("match"), text, &answer)), "ok") << text.substr(0, 100);
    return answer;
  }
};

// Where mapped ids are allowed the kernel does not tell who asks.
TEST_F(AskerTest, AUserIsToldOfHisOwn) {
  start();
  for (const auto& [name, mode] : std::map<std::string, mode_t>{{"his", 0600}, {"not_his", 0044}}) {
    store_with(name, name);
    ASSERT_EQ(::chown(path(name).c_str(), 65534, 65534), 0);
    ASSERT_EQ(::chmod(path(name).c_str(), mode), 0);
  }
  const auto told = [&](const std::string& name) {
    return as_user(65534, 65534, [&] {
      std::string answer;
      if (ask(mount().control("match"), "where agent=" + name, &answer) != 0) return 200;
      return static_cast<int>(std::ranges::count(answer, '\n')) - 1;
    });
  };
  EXPECT_EQ(told("his"), 1);
  EXPECT_EQ(told("not_his"), 0) << "the owner is not one of the others";
}

// As of a program with more rights that reads its standard input.
TEST_F(AskerTest, WhatOneAskedNoOtherReads) {
  start();
  store_with("own", "x", 0600);
  const File open(mount().control("match"), O_RDWR);
  const std::string text = "where agent=x";
  const auto write_query = [&] {
    return ::write(open.fd(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : errno;
  };
  char byte = 0;
  ASSERT_EQ(as_user(65534, 65534, write_query), 0);
  EXPECT_EQ(::pread(open.fd(), &byte, 1, 0), -1);
  EXPECT_EQ(error_name(errno), "EACCES");
  EXPECT_EQ(as_user(65534, 65534, [&] { return ::pread(open.fd(), &byte, 1, 0) == 1 ? 0 : errno; }), 0);
  ASSERT_EQ(write_query(), 0);
  EXPECT_EQ(::pread(open.fd(), &byte, 1, 0), 1);
  EXPECT_EQ(as_user(65534, 65534, [&] { return ::pread(open.fd(), &byte, 1, 0) < 0 ? errno : 0; }), EACCES);
}

TEST_F(AskerTest, AnAnswerDoesNotGoOnAsAnotherAfterATakeover) {
  start();
  store_with("e", "x");
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

// A name of 120,000 bytes overflowed a stack, and sets were compared with each of 500,000 filters.
TEST_F(AskerTest, QueriesBeyondAllReason) {
  start();
  store_with("e", "x");
  const pid_t serving = mount().serving_pid();
  std::string name;
  for (int depth = 0; depth < 100'000; ++depth) name += "d/";
  EXPECT_TRUE(query("names\n" + name + "e\n").starts_with("present=0 "));
  EXPECT_TRUE(query("names\n" + std::string("e\0f", 3) + "\n").starts_with("present=0 "));
  std::string filters = "where", answer;
  for (int filter = 0; filter < 7; ++filter) filters += " agent=x";
  EXPECT_EQ(error_name(ask(mount().control("match"), filters, &answer)), "EINVAL");
  EXPECT_EQ(mount().serving_pid(), serving);
}

}  // namespace
}  // namespace kvcachefs::test
