// Records that say what entries hold: `.pool/index`.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/match_test.h"
#include "tests/support/program.h"
#include "tests/support/user_process.h"

namespace kvcachefs::test {
namespace {

class IndexTest : public MatchTest {
 protected:
  std::string index_file() { return mount().control("index"); }
  int index(const std::string& records) { return write_once(index_file(), records); }
  std::string told(const std::string& records) { return error_name(index(records)); }
  static std::string list_of(const Tokens& tokens) {
    std::string text;
    for (const uint32_t token : tokens) text += (text.empty() ? "" : ",") + std::to_string(token);
    return text;
  }
  static std::string binary(const std::string& name, const std::string& model, const Tokens& tokens) {
    const Tokens head = {static_cast<uint32_t>(name.size()), static_cast<uint32_t>(model.size()), 0, 0,
                         static_cast<uint32_t>(tokens.size())};
    return "KVI1" + bytes_of(head) + name + model + bytes_of(tokens);
  }
  // As programs write large files: in as many calls as it takes.
  static int write_all(int fd, const std::string& text, size_t piece) {
    for (size_t at = 0; at < text.size();) {
      const ssize_t bytes = ::write(fd, text.data() + at, std::min(piece, text.size() - at));
      if (bytes <= 0) return errno;
      at += static_cast<size_t>(bytes);
    }
    return 0;
  }
  std::string agent_of(const std::string& name) { return xattr(path(name), "user.kv.agent"); }
};

TEST_F(IndexTest, ARecordIsAsTheXattrs) {
  start();
  store_with("a", {});
  make_directory(path("d"));
  store_with("d/b", {});
  EXPECT_EQ(told("index a tokens=" + list_of(sequence(0, 32)) + " model=m agent=x\nindex d/b tokens=" +
                 list_of(sequence(32, 32)) + " model=m parent=a layer=3\n"),
            "ok");
  EXPECT_EQ(match(sequence(0, 64), "model=m").names(), (Names{"a", "d/b"}));
  EXPECT_EQ(xattr(path("a"), "user.kv.tokens"), bytes_of(sequence(0, 32)));
  EXPECT_EQ(query_where("layer=3"), "1");
  EXPECT_EQ(told(binary("a", "n", sequence(500, 16))), "ok");
  EXPECT_EQ(match(sequence(500, 16), "model=n").names(), Names{"a"});
  EXPECT_EQ(agent_of("a"), "x") << "what a record does not name stays";
  const std::string name = "blank \n\t\\ end";
  store_with(name, {});
  EXPECT_EQ(told("index blank\\ \\n\\t\\\\\\ end agent=my\\ agent\n"), "ok");
  EXPECT_EQ(agent_of(name), "my agent");
}

TEST_F(IndexTest, WhatMovesAnEntryIsItsOwnersToSay) {
  start();
  store_with("open", {}, {{"group", "g"}}, 0666);
  ASSERT_EQ(::chmod(path("open").c_str(), 0666), 0);
  EXPECT_EQ(as_user(65534, 65534,
                    [&] {
                      if (index("index open agent=me\n") != 0) return 1;
                      for (const char* value : {"group=other", "expires=1", "ttl=1h"})
                        if (index(std::string("index open agent=he ") + value + "\n") != EPERM) return 2;
                      if (store(path("own"), "x") != 0) return 3;
                      return index("index own ttl=1h group=g\n") == 0 ? 0 : 4;
                    }),
            0);
  EXPECT_EQ(agent_of("open"), "me") << "a record is carried out whole or not at all";
  EXPECT_EQ(xattr(path("open"), "user.kv.group"), "g");
}

TEST_F(IndexTest, TokensOfALongPromptLast) {
  start({.size = "64M"});
  const Tokens tokens = sequence(7, 65'472);
  for (const char* name : {"text", "bytes"}) store_with(name, {}, {{"model", name}});
  ASSERT_EQ(told("index text model=text tokens=" + list_of(tokens) + "\n" + binary("bytes", "bytes", tokens)),
            "ok");
  const auto both_match = [&] {
    wait_for_index();
    for (const char* name : {"text", "bytes"}) {
      const Answer answer = match(tokens, std::string("model=") + name);
      EXPECT_EQ(answer.value("matched_tokens"), "65472");
      EXPECT_EQ(answer.names(), Names{name});
    }
  };
  both_match();
  EXPECT_EQ(xattr(path("text"), "user.kv.tokens.3").size(), (65'472 - 3 * 16'384) * 4);
  make_all_cold();
  both_match();
  kill_server();
  both_match();
  stop();
  start({.size = "64M"});
  both_match();
  EXPECT_EQ(told("index text tokens=" + list_of(sequence(7, 65'536)) + "\n"), "ENOSPC");
  both_match();
  ASSERT_EQ(told("index text tokens=" + list_of(sequence(7, 16'384)) + "\n"), "ok");
  EXPECT_EQ(match(tokens, "model=text").value("matched_tokens"), "16384")
      << "none is left of the longer list";
  EXPECT_EQ(::getxattr(path("text").c_str(), "user.kv.tokens.1", nullptr, 0), -1);
}

TEST_F(IndexTest, NothingOfAnOlderListGoesOnAfterAGap) {
  start({.size = "64M"});
  const Tokens tokens = sequence(1, 16'384 + kBlock);
  store_with("e", {});
  const auto part = [](int number) { return "user.kv.tokens." + std::to_string(number); };
  for (const int number : {1, 3})
    ASSERT_EQ(set_xattr(path("e"), part(number), bytes_of(sequence(16'385, kBlock))), 0);
  ASSERT_EQ(told(binary("e", "m", sequence(1, 16'384))), "ok");
  EXPECT_EQ(match(tokens, "model=m").value("matched_tokens"), "16384");
  for (const int number : {1, 3})
    EXPECT_EQ(::getxattr(path("e").c_str(), part(number).c_str(), nullptr, 0), -1);
}

TEST_F(IndexTest, ARecordThatFailsInItsMidstLeavesTheEntryAsItWas) {
  start({.size = "64M"});
  const Tokens before = sequence(1, 20'000), after = sequence(100'000, 40'000);
  store_with("e", {});
  ASSERT_EQ(told(binary("e", "old", before)), "ok");
  // Two parts go, the model and three parts are set.
  for (int call = 0; call < 6; ++call) {
    arm("fail set of a record " + std::to_string(EIO) + " " + std::to_string(call));
    EXPECT_EQ(told(binary("e", "new", after)), "EIO") << call;
    EXPECT_EQ(match(before, "model=old").value("matched_tokens"), "20000") << call;
    EXPECT_EQ(match(after, "model=new").value("matched_tokens"), "0") << call;
  }
  ASSERT_EQ(told(binary("e", "new", after)), "ok");
  EXPECT_EQ(match(after, "model=new").value("matched_tokens"), "40000");
}

TEST_F(IndexTest, EntriesLeaveForTheRecordsOfOthers) {
  start({.size = "16M"});
  const Tokens tokens = sequence(1, 60'000);
  constexpr int kEntries = 100;
  for (int i = 0; i < kEntries; ++i) {
    const std::string name = "e" + std::to_string(i);
    store_with(name, {});
    ASSERT_EQ(told(binary(name, name, tokens)), "ok") << i;
  }
  EXPECT_LT(list(path("")).size(), kEntries) << "more than the pool holds";
  const std::string last = path("e" + std::to_string(kEntries - 1));
  EXPECT_EQ(xattr(last, "user.kv.tokens.3").size(), (60'000 - 3 * 16'384) * 4);
}

TEST_F(IndexTest, OneCallTakesSoManyRecords) {
  start();
  store_with("e", {});
  std::string records;
  for (int i = 0; i < 5000; ++i) records += "index e agent=" + std::to_string(i) + "\n";
  const File open(index_file(), O_WRONLY);
  const ssize_t taken = ::write(open.fd(), records.data(), records.size());
  ASSERT_GT(taken, 0);
  EXPECT_LT(taken, static_cast<ssize_t>(records.size()));
  EXPECT_EQ(agent_of("e"), "255");
  ASSERT_EQ(write_all(open.fd(), records.substr(static_cast<size_t>(taken)), records.size()), 0);
  EXPECT_EQ(agent_of("e"), "4999");
}

TEST_F(IndexTest, ClientsMaySetThePartsThemselves) {
  start({.size = "64M"});
  const Tokens tokens = sequence(1, 20'000);
  const std::string bytes = bytes_of(tokens);
  store_with("e", {});
  ASSERT_EQ(set_xattr(path("e"), "user.kv.tokens.1", bytes.substr(65'536)), 0);
  EXPECT_EQ(match(tokens).value("matched_tokens"), "0") << "its beginning is not there";
  ASSERT_EQ(set_xattr(path("e"), "user.kv.tokens", bytes.substr(0, 65'536)), 0);
  EXPECT_EQ(match(tokens).value("matched_tokens"), "20000");
  ASSERT_EQ(set_xattr(path("e"), "user.kv.tokens", bytes.substr(0, 65'532)), 0);
  EXPECT_EQ(match(tokens).value("matched_tokens"), "16368") << "a part after one that is not full is none";
  EXPECT_EQ(error_name(set_xattr(path("e"), "user.kv.tokens.1", "abc")), "EINVAL");
}

TEST_F(IndexTest, OneThatMayNotBeKeepsAllOfItsWriteBack) {
  start();
  make_directory(path("closed"), 0700);
  for (const char* name : {"his", "not_his", "closed/e"}) store_with(name, {}, {}, 0600);
  ASSERT_EQ(::chown(path("his").c_str(), 65534, 65534), 0);
  const std::string file = index_file();
  const auto as_nobody = [&](const std::string& record) {
    return error_name(
        as_user(65534, 65534, [&] { return write_once(file, "index his agent=x\n" + record); }));
  };
  EXPECT_EQ(as_nobody("index not_his agent=x\n"), "EACCES");
  EXPECT_EQ(as_nobody("index closed/e agent=x\n"), "EACCES");
  EXPECT_EQ(as_nobody("index closed/none agent=x\n"), "EACCES") << "nor whether it is there";
  EXPECT_EQ(as_nobody("index none agent=x\n"), "ENOENT");
  EXPECT_EQ(query_where("agent=x"), "0");
  EXPECT_NE(mount().log().find("record 2, not_his"), std::string::npos);
  EXPECT_EQ(as_nobody(""), "ok");
  EXPECT_EQ(query_where("agent=x"), "1");
}

TEST_F(IndexTest, NamesThatLeadElsewhere) {
  start();
  store_with("e", {});
  make_directory(path("d"));
  store_with("d/e", {});
  ASSERT_EQ(::symlink("e", path("link").c_str()), 0);
  ASSERT_EQ(::symlink("d", path("way").c_str()), 0);
  for (const auto& [name, error] :
       std::vector<std::pair<std::string, std::string>>{{"link", "EINVAL"},
                                                        {"way/e", "ENOTDIR"},
                                                        {"d", "EINVAL"},
                                                        {"../p/e", "EINVAL"},
                                                        {"d/../e", "EINVAL"},
                                                        {"./e", "EINVAL"},
                                                        {"d//e", "EINVAL"},
                                                        {"/e", "EINVAL"},
                                                        {"d/", "EINVAL"},
                                                        {"d/.", "EINVAL"},
                                                        {".pool/stats", "ENOENT"},
                                                        {"e/e", "ENOTDIR"},
                                                        {std::string(256, 'x'), "ENAMETOOLONG"},
                                                        {std::string(5000, 'x'), "EINVAL"}})
    EXPECT_EQ(told("index " + name + " agent=x\n"), error) << name;
  EXPECT_EQ(query_where("agent=x"), "0");
}

TEST_F(IndexTest, ARecordMayBeCutAnywhere) {
  start();
  for (const char* name : {"a", "b"}) store_with(name, {});
  for (size_t cut = 1;; ++cut) {
    const std::string agent = std::to_string(cut);
    const std::string all =
        "index a agent=" + agent + "\n" + binary("b", agent, {1, 2}) + "index b agent=" + agent + "\n";
    if (cut == all.size()) break;
    const File open(index_file(), O_WRONLY);
    ASSERT_EQ(write_all(open.fd(), all.substr(0, cut), cut), 0) << cut;
    ASSERT_EQ(write_all(open.fd(), all.substr(cut), all.size()), 0) << cut;
    ASSERT_EQ(agent_of("a"), agent);
    ASSERT_EQ(agent_of("b"), agent);
    ASSERT_EQ(xattr(path("b"), "user.kv.model"), agent);
  }
  const int half = ::open(index_file().c_str(), O_WRONLY);
  ASSERT_EQ(write_all(half, "index a agent=half", 100), 0);
  EXPECT_EQ(error_name(error_of(::close(half))), "EINVAL");
  EXPECT_NE(agent_of("a"), "half") << "its writer may have been killed";
}

TEST_F(IndexTest, ManyRecordsInOneWrite) {
  start();
  constexpr int kEntries = 200;
  std::string records;
  for (int i = 0; i < kEntries; ++i) store_with(std::to_string(i), {});
  for (int i = 0; records.size() < (3 << 20); ++i)
    records += "index " + std::to_string(i % kEntries) + " agent=x model=" + std::to_string(i) +
               " parent=" + std::string(200, 'p') + "\n";
  const File open(index_file(), O_WRONLY);
  ASSERT_EQ(write_all(open.fd(), records, records.size()), 0);
  EXPECT_EQ(query_where("agent=x"), std::to_string(kEntries));
  std::vector<std::thread> writers;
  for (const char* agent : {"y", "z"})
    writers.emplace_back([&, agent] {
      for (int round = 0; round < 50; ++round)
        EXPECT_EQ(told(std::string("index 1 agent=") + agent + "\nindex 2 group=" + agent + "\n"), "ok");
    });
  for (std::thread& writer : writers) writer.join();
  EXPECT_TRUE(agent_of("1") == "y" || agent_of("1") == "z");
}

TEST_F(IndexTest, ATakeoverLosesNoRecordInSilence) {
  start();
  store_with("e", {});
  const File open(index_file(), O_WRONLY), fresh(index_file(), O_WRONLY);
  ASSERT_EQ(write_all(open.fd(), "index e agent=", 100), 0);
  kill_server();
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(error_name(write_all(open.fd(), "x\n", 100)), "ESTALE") << "however often";
  EXPECT_EQ(error_name(write_all(fresh.fd(), "index e agent=y\n", 100)), "ok") << "its first write";
  EXPECT_EQ(agent_of("e"), "y");
  die_at("request done 16", [&] { EXPECT_EQ(told("index e agent=z\n"), "ok"); });
  EXPECT_EQ(agent_of("e"), "z");
}

// A program with more rights whose output is the descriptor.
TEST_F(IndexTest, ADescriptorIsNoAuthority) {
  start();
  store_with("roots", {}, {}, 0600);
  store_with("all", {}, {}, 0666);
  const std::string file = index_file();
  const auto write_to = [&](int fd, const std::string& name) {
    return error_name(write_all(fd, "index " + name + " agent=x\n", 100));
  };
  int fd = -1;
  const auto open_as = [&](uid_t uid) {
    ASSERT_EQ(::seteuid(uid), 0);
    fd = ::open(file.c_str(), O_WRONLY);
    ASSERT_EQ(::seteuid(0), 0);
    ASSERT_GE(fd, 0);
  };
  open_as(65534);
  const File nobodys(fd);
  EXPECT_EQ(write_to(nobodys.fd(), "roots"), "EACCES");
  EXPECT_EQ(write_to(nobodys.fd(), "all"), "EACCES");
  kill_server();
  EXPECT_EQ(write_to(nobodys.fd(), "roots"), "EACCES");
  EXPECT_EQ(::getxattr(path("all").c_str(), "user.kv.agent", nullptr, 0), -1);
  const File own(file, O_WRONLY);
  EXPECT_EQ(
      error_name(as_user(65534, 65534, [&] { return write_all(own.fd(), "index all agent=x\n", 100); })),
      "EACCES");
  EXPECT_EQ(write_to(own.fd(), "roots"), "ok");
}

TEST_F(IndexTest, TheTool) {
  start();
  store_with("e", {});
  const auto run_index = [&](const std::string& records) {
    write_file(disk() / "records", records);
    return run({"kvcachefs", "--mount", mount().root(), "index", "p", disk() / "records"});
  };
  EXPECT_EQ(run_index("index e agent=x\n" + binary("e", "m", sequence(0, 20'000))).exit_code, 0);
  EXPECT_EQ(match(sequence(0, 20'000), "model=m").value("matched_tokens"), "20000");
  std::string many;
  for (int i = 0; i < 5000; ++i) many += "index e group=" + std::to_string(i) + "\n";
  EXPECT_EQ(run_index(many).exit_code, 0);
  EXPECT_EQ(xattr(path("e"), "user.kv.group"), "4999") << "one call does not take them all";
  EXPECT_EQ(run_index(many + "index none group=x\n").exit_code, 1) << "an error of a later call";
  const Outcome wrong = run_index("index e agent=y\nindex e colour=red\n");
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_NE(wrong.error.find("record 2: 'colour' is no key of metadata"), std::string::npos) << wrong.error;
  EXPECT_NE(run_index("index e agent=y").error.find("record 1 has no end"), std::string::npos);
  EXPECT_EQ(run_index("index none agent=y\n").exit_code, 1);
  EXPECT_EQ(agent_of("e"), "x");
}

TEST_F(IndexTest, TwoEntriesThatFollowEachOtherFillNothing) {
  start();
  store_with("a", sequence(0, 16'000));
  store_with("b", sequence(20'000, 16'000), {{"parent", "a"}});
  ASSERT_EQ(match(sequence(0, 16)).names(), Names{"a"});
  const int64_t blocks = stat("indexed_blocks"), bytes = stat("index_bytes");
  ASSERT_EQ(blocks, 2000);
  for (int turn = 0; turn < 30; ++turn) {
    ASSERT_EQ(told(turn % 2 == 0 ? "index a parent=b\n" : "index b parent=a\n"), "ok");
    EXPECT_TRUE(match(sequence(0, 16)).names().empty());
    EXPECT_LE(stat("indexed_blocks"), blocks);
    EXPECT_LE(stat("index_bytes"), bytes + 4096);
  }
  store_with("c", sequence(40'000, 16'000));
  EXPECT_EQ(match(sequence(40'000, 16)).names(), Names{"c"});
  EXPECT_EQ(stat("index_missing"), 0);
}

TEST_F(IndexTest, AFullIndexSaysThatEntriesAreMissing) {
  start();
  uint32_t stored = 0;
  const auto name_of = [](uint32_t i) { return "full" + std::to_string(i); };
  for (; stat("index_missing") == 0 && stored < 1000; ++stored) {
    store_with(name_of(stored), sequence(stored * 20'000, 16'000));
    (void)match(sequence(0, kBlock));
  }
  ASSERT_EQ(stat("index_missing"), 1);
  const Answer answer = match(sequence((stored - 1) * 20'000, kBlock));
  EXPECT_EQ(answer.value("matched_tokens"), "0");
  EXPECT_EQ(answer.value("index"), "part");
  const auto lines_of = [this](const std::string& message) {
    const std::string log = mount().log();
    int count = 0;
    for (size_t at = 0; (at = log.find(message, at)) != std::string::npos; ++at) ++count;
    return count;
  };
  EXPECT_TRUE(eventually([&] { return lines_of("its index is full") == 1; })) << mount().log();
  for (uint32_t i = 0; i < stored; ++i) ASSERT_EQ(::unlink(path(name_of(i)).c_str()), 0);
  EXPECT_TRUE(eventually([&] { return lines_of("its index has all entries again") == 1; })) << mount().log();
  EXPECT_EQ(lines_of("its index is full"), 1);
  EXPECT_EQ(stat("index_missing"), 0);
  EXPECT_EQ(match(sequence(0, kBlock)).value("index"), "whole");
}

}  // namespace
}  // namespace kvcachefs::test
