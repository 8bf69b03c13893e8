// Metadata of entries, and queries for those that a prompt can reuse: `.pool/match`.
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/match_test.h"
#include "tests/support/program.h"
#include "tests/support/user_process.h"

namespace kvcachefs::test {
namespace {

TEST_F(MatchTest, AStoredEntryIsFoundAtOnce) {
  start();
  store_with("e", sequence(0, 100));
  const Answer answer = match(sequence(0, 200));
  EXPECT_EQ(answer.value("matched_tokens"), "96") << "whole blocks";
  EXPECT_EQ(answer.value("query_tokens"), "200");
  ASSERT_EQ(answer.lines.size(), 1);
  EXPECT_EQ(answer.lines[0].substr(0, 5), "0\t96\t");
  EXPECT_EQ(answer.names(), Names{"e"});
  EXPECT_EQ(match(sequence(1, 200)).value("matched_tokens"), "0");
}

TEST_F(MatchTest, AChainIsNamedInItsOrder) {
  start();
  make_directory(path("d"));
  store_with("d/block-c.kv", sequence(200, kBlock), {{"parent", "block-b"}});
  store_with("block-b.kv", sequence(100, kBlock), {{"parent", "a"}});
  EXPECT_EQ(match(prompt()).value("matched_tokens"), "0") << "its beginning is not there yet";
  store_with("a", sequence(0, kBlock));
  const Answer answer = match(prompt());
  EXPECT_EQ(answer.value("matched_tokens"), "48");
  EXPECT_EQ(answer.names(), (Names{"a", "block-b.kv", "d/block-c.kv"}));
  ASSERT_EQ(::unlink(path("block-b.kv").c_str()), 0);
  EXPECT_EQ(match(prompt()).names(), Names{"a"}) << "what follows a gap is of no use";
}

TEST_F(MatchTest, WhatIsReplacedRewrittenOrGoneIsNotNamed) {
  start();
  store_with("e", sequence(0, 64));
  ASSERT_EQ(match(sequence(0, 64)).names(), Names{"e"});
  {
    const File writer(path("e"), O_WRONLY);
    EXPECT_EQ(match(sequence(0, 64)).names(), Names{}) << "it may be written now";
  }
  EXPECT_EQ(match(sequence(0, 64)).names(), Names{"e"});
  ASSERT_EQ(::truncate(path("e").c_str(), 100), 0);
  (void)match(sequence(0, 64));
  EXPECT_EQ(match(sequence(0, 64)).names(), Names{"e"}) << "what it says of itself counts";
  store_with("e", sequence(1000, 64));
  EXPECT_EQ(match(sequence(0, 64)).names(), Names{});
  EXPECT_EQ(match(sequence(1000, 64)).names(), Names{"e"});
  ASSERT_EQ(::rename(path("e").c_str(), path("f").c_str()), 0);
  EXPECT_EQ(match(sequence(1000, 64)).names(), Names{"f"});
  ASSERT_EQ(set_xattr(path("f"), "user.kv.tokens", bytes_of(sequence(5, 32))), 0);
  EXPECT_EQ(match(sequence(1000, 64)).names(), Names{});
  EXPECT_EQ(match(sequence(5, 64)).names(), Names{"f"});
  ASSERT_EQ(::removexattr(path("f").c_str(), "user.kv.tokens"), 0);
  EXPECT_EQ(match(sequence(5, 64)).names(), Names{});
}

// The index does not hear that a name above an entry's changes.
TEST_F(MatchTest, TheNamesAreThoseThatDirectoriesHaveNow) {
  start();
  const auto is_at = [this](const std::string& name) {
    EXPECT_EQ(match(sequence(0, 32)).names(), Names{name});
    const auto listed = query("where agent=x").lines;
    ASSERT_EQ(listed.size(), 1);
    EXPECT_TRUE(listed[0].ends_with("\t" + name + "\tagent=x")) << listed[0];
  };
  make_directory(path("d"));
  store_with("d/e", sequence(0, 32), {{"agent", "x"}});
  is_at("d/e");
  ASSERT_EQ(::rename(path("d").c_str(), path("moved").c_str()), 0);
  is_at("moved/e");
  make_directory(path("d"));
  store_with("d/e", sequence(900, 32));
  is_at("moved/e");
  ASSERT_EQ(::renameat2(AT_FDCWD, path("d").c_str(), AT_FDCWD, path("moved").c_str(), RENAME_EXCHANGE), 0);
  is_at("d/e");
  ASSERT_EQ(::rename(path("d").c_str(), path("away").c_str()), 0);
  ASSERT_EQ(::symlink("away", path("d").c_str()), 0);
  is_at("away/e");
}

TEST_F(MatchTest, ModelsAreApart) {
  start();
  store_with("one", sequence(0, 32), {{"model", "llama-70b/tp4"}});
  store_with("none", sequence(0, 48));
  EXPECT_EQ(match(sequence(0, 64), "model=llama-70b/tp4").names(), Names{"one"});
  EXPECT_EQ(match(sequence(0, 64)).names(), Names{"none"});
  EXPECT_EQ(match(sequence(0, 64), "model=other").names(), Names{});
}

TEST_F(MatchTest, ItIsThereAfterASpillATakeoverAndARestart) {
  start();
  store_chain();
  make_all_cold();
  Answer answer = match(prompt());
  EXPECT_EQ(answer.names(), (Names{"a", "b", "c"}));
  EXPECT_NE(answer.lines.at(0).find("\tcold\t"), std::string::npos) << answer.lines.at(0);
  kill_server();
  wait_for_index();
  EXPECT_EQ(match(prompt()).names(), (Names{"a", "b", "c"}));
  EXPECT_TRUE(becomes("dirty_entries", 0));
  stop();
  start();
  wait_for_index();
  EXPECT_EQ(match(prompt()).names(), (Names{"a", "b", "c"}));
  EXPECT_EQ(query("where agent=nobody").value("entries"), "0");
}

TEST_F(MatchTest, TheRunOfNames) {
  start();
  make_directory(path("d"));
  for (const char* name : {"a", "d/b", "d/c", "e"}) store_with(name, {});
  const Answer answer = query("names\na\nd/b\nd/c\nmissing\ne\n");
  EXPECT_EQ(answer.value("present"), "3");
  EXPECT_EQ(answer.value("asked"), "5");
  ASSERT_FALSE(answer.lines.empty());  // some may have been spilled meanwhile
  EXPECT_EQ(answer.lines.front().substr(0, 2), "0\t");
  EXPECT_NE(answer.lines.back().find("\t3\t"), std::string::npos) << answer.lines.back();
  EXPECT_EQ(query("names\nd\n").value("present"), "0") << "a directory is no entry";
  ASSERT_EQ(::symlink("a", path("link").c_str()), 0);
  ASSERT_EQ(::symlink("d", path("way").c_str()), 0);
  for (const char* name : {"link", "way/b", "../p/a", "d/../a", "a/", "a/.", ".", ""})
    EXPECT_EQ(query(std::string("names\n") + name + "\n").value("present"), "0") << name;
  for (const char* name : {"./a", "d//b", "d/./b", ".//./d/.//b"})
    EXPECT_EQ(query(std::string("names\n") + name + "\n").value("present"), "1") << name;
  EXPECT_EQ(query("names\n").value("asked"), "0");
}

TEST_F(MatchTest, TheToolTellsOfEachName) {
  start();
  for (const char* name : {"a", "b"}) store_with(name, {});
  write_file(disk() / "names", "x\na\ny\nb\n");
  const auto run_tool = [this](std::vector<std::string> words) {
    words.insert(words.begin(), {"kvcachefs", "--mount", mount().root(), "match", "p"});
    return run(words);
  };
  const std::string names = disk() / "names";
  EXPECT_TRUE(run_tool({"--names", names}).out.starts_with("present=0 asked=4 "));
  const Outcome all = run_tool({"--names", names, "--all", "--json"});
  EXPECT_NE(all.out.find(R"("present":2)"), std::string::npos) << all.out << all.error;
  EXPECT_NE(all.out.find(R"({"end":3,"first":2,"tier":"-"})"), std::string::npos) << all.out;
  EXPECT_EQ(run_tool({"--ids", "1", "--all"}).exit_code, 2) << "it is of names";
}

TEST_F(MatchTest, EachNameIsToldOfOnRequest) {
  start();
  for (const char* name : {"a", "b", "e"}) store_with(name, {});
  const auto runs = [this](const std::string& text, const std::string& present) {
    const Answer answer = query(text);
    EXPECT_EQ(answer.value("present"), present);
    std::vector<std::string> result;
    for (const std::string& line : answer.lines)
      result.push_back(line.substr(0, line.rfind('\t')) + (line.ends_with("\t-") ? " absent" : " present"));
    return result;
  };
  using Runs = std::vector<std::string>;
  EXPECT_TRUE(becomes("dirty_entries", 0));  // they are of one tier from now on
  EXPECT_EQ(runs("names all\nx\na\nb\ny\nz\ne\n", "3"),
            (Runs{"0\t1 absent", "1\t3 present", "3\t5 absent", "5\t6 present"}));
  EXPECT_EQ(runs("names all pin=30s\nx\na\ny\n", "1"), (Runs{"0\t1 absent", "1\t2 present", "2\t3 absent"}));
  EXPECT_EQ(runs("names all\n", "0"), Runs{});
  EXPECT_EQ(runs("names\nx\na\n", "0"), Runs{}) << "those from the first on";
}

TEST_F(MatchTest, Attributes) {
  start();
  store_with("one", {}, {{"agent", "planner"}, {"layer", "3"}, {"workflow_step", "7"}});
  store_with("two", {}, {{"agent", "planner"}, {"layer", "4"}});
  store_with("three", {}, {{"agent", "coder"}, {"layer", "3"}, {"group", "my group"}});
  EXPECT_EQ(query("where agent=planner").value("entries"), "2");
  const Answer one = query("where agent=planner layer=3");
  ASSERT_EQ(one.lines.size(), 1);
  EXPECT_NE(one.lines[0].find("\tone\tagent=planner\tworkflow_step=7\tlayer=3"), std::string::npos)
      << one.lines[0];
  EXPECT_EQ(query("where\ngroup=my group\n").value("entries"), "1");
  EXPECT_EQ(query("where layer=3 agent=nobody").value("entries"), "0");
  ASSERT_EQ(::unlink(path("one").c_str()), 0);
  EXPECT_EQ(query("where layer=3").value("entries"), "1");
}

TEST_F(MatchTest, WrongValuesAreRefused) {
  start();
  store_with("e", {});
  const std::map<std::string, std::vector<std::string>> wrong = {
      {"tokens", {"", "abc", std::string(5, 'x')}},
      {"parent", {"", std::string(256, 'x'), "a\nb"}},
      {"token_length", {"", "-1", "x", "4294967296"}},
      {"layer", {"", "1.5", "03", "00"}},
      {"agent", {"", std::string(256, 'x'), std::string("a\0b", 3)}},
      {"offset_hint", {"", "abc", std::string("\0\0\xc0\x7f", 4)}},
      {"pre_rope", {"", "2", "yes"}},
      {"workflow_step", {"soon"}}};
  for (const auto& [key, values] : wrong)
    for (const std::string& value : values)
      EXPECT_EQ(error_name(set_xattr(path("e"), "user.kv." + key, value)), "EINVAL") << key << " " << value;
  EXPECT_EQ(set_xattr(path("e"), "user.kv.offset_hint", std::string(8, '\0')), 0);
  EXPECT_EQ(set_xattr(path("e"), "user.kv.whatever", "any\nvalue"), 0);
  EXPECT_NE(mount().log().find("user.kv.pre_rope is 0 or 1"), std::string::npos);
}

TEST_F(MatchTest, WrongQueriesAreRefused) {
  start();
  std::string text;
  for (const char* wrong :
       {"what", "tokens\n1 x", "tokens\n-1", "tokens\n4294967296", "tokens what=1\n1", "names x\na",
        "names\na\n/a", "where", "where agent", "where colour=red", "KVQ1", "KVQ1\1\0\0\0"})
    EXPECT_EQ(error_name(ask(mount().control("match"), wrong, &text)), "EINVAL") << wrong;
  EXPECT_EQ(error_name(ask(mount().control("match"), std::string((4 << 20) + 1, '1'), &text)), "EMSGSIZE");
  const auto names = [](size_t count) { return "names" + std::string(count + 1, '\n'); };
  EXPECT_EQ(error_name(ask(mount().control("match"), names(65'536), &text)), "ok");
  EXPECT_EQ(error_name(ask(mount().control("match"), names(65'537), &text)), "EMSGSIZE");
  EXPECT_NE(read_file(mount().control("match")).find("Write a query first"), std::string::npos);
}

TEST_F(MatchTest, ABinaryQuery) {
  start();
  store_with("e", sequence(0, 64), {{"model", "m"}});
  const Tokens tokens = sequence(0, 64);
  const uint32_t head[] = {1, 1, 64};
  const std::string text =
      "KVQ1" + std::string(reinterpret_cast<const char*>(head), sizeof(head)) + "m" + bytes_of(tokens);
  EXPECT_EQ(query(text).names(), Names{"e"});
}

TEST_F(MatchTest, SeveralQueriesInOneOpen) {
  start();
  store_with("e", sequence(0, 64));
  const File open(mount().control("match"), O_RDWR);
  std::string piece(4096, '\0');
  for (const auto& [first, matched] :
       std::vector<std::pair<uint32_t, std::string>>{{0, "64"}, {9, "0"}, {0, "64"}}) {
    const std::string text = tokens_query(sequence(first, 64));
    ASSERT_EQ(::write(open.fd(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    ASSERT_GT(::read(open.fd(), piece.data(), piece.size()), 0);
    EXPECT_EQ(parse(piece).value("matched_tokens"), matched);
  }
}

TEST_F(MatchTest, TheToolTakesAnyModel) {
  start();
  const std::string model = "llama 70b\\tp4 n\\x";
  store_with("e", sequence(0, kBlock), {{"model", model}});
  write_file(disk() / "tokens", tokens_query(sequence(0, kBlock)).substr(8));
  const Outcome found = run({"kvcachefs", "--mount", mount().root(), "match", "p", "--model", model,
                             "--tokens", disk() / "tokens"});
  EXPECT_EQ(found.exit_code, 0) << found.error;
  EXPECT_NE(found.out.find("matched_tokens=16"), std::string::npos) << found.out;
}

// A directory that is asked for many of its names is listed, which must not be seen in an answer.
TEST_F(MatchTest, ARunOfManyNamesIsThatOfAFew) {
  start();
  make_directory(path("d"));
  make_directory(path("d/directory"));
  ASSERT_EQ(::symlink("0", path("d/link").c_str()), 0);
  constexpr size_t kEntries = 200;
  std::string all = "names\n";
  for (size_t i = 0; i < kEntries; ++i) {
    ASSERT_EQ(store(path("d/" + std::to_string(i)), "x"), 0);
    all += "d/" + std::to_string(i) + "\n";
  }
  const auto present_before = [&](const std::string& name) {
    return query(all + name + "\n").value("present");
  };
  EXPECT_EQ(present_before("d/0"), "201");
  for (const char* name : {"d/missing", "d/directory", "d/link", "d/", "d/.", "d/.."})
    EXPECT_EQ(present_before(name), "200") << name;
  {
    const File writer(path("d/199"), O_WRONLY);
    EXPECT_EQ(present_before("d/0"), "199") << "it is being written";
  }
  {
    // A name that is being replaced is always there.
    std::atomic<bool> ends = false;
    std::thread replacer([&] {
      const auto name = [&](size_t i) { return path("d/" + std::to_string(i % kEntries)); };
      for (size_t i = 0; !ends; i += 7)
        EXPECT_EQ(::renameat2(AT_FDCWD, name(i).c_str(), AT_FDCWD, name(i + 1).c_str(), RENAME_EXCHANGE), 0);
    });
    for (int i = 0; i < 50; ++i) EXPECT_EQ(present_before("d/0"), "201");
    ends = true;
    replacer.join();
  }
  ASSERT_EQ(::chmod(path("d").c_str(), 0700), 0);
  EXPECT_EQ(as_user(65534, 65534,
                    [&] {
                      std::string answer;
                      if (ask(mount().control("match"), all, &answer) != 0) return 1;
                      return parse(answer).value("present") == "0" ? 0 : 2;
                    }),
            0);
}

TEST_F(MatchTest, AUserIsToldOfNothingThatModesKeepFromHim) {
  start();
  make_directory(path("closed"), 0700);
  store_with("closed/a", sequence(0, 32), {{"agent", "x"}});
  store_with("own", sequence(0, 16), {{"agent", "x"}}, 0600);
  store_with("open", sequence(500, 16), {{"agent", "x"}});
  const std::string file = mount().control("match");
  // The process of another user has memory of its own, so what it has read comes back as its exit code.
  const auto told = [&](uid_t uid, const std::string& text) {
    return as_user(uid, uid, [&] {
      std::string answer;
      if (const int error = ask(file, text, &answer); error != 0) return 200;
      return static_cast<int>(parse(answer).lines.size());
    });
  };
  EXPECT_EQ(told(0, tokens_query(sequence(0, 32))), 1);
  EXPECT_EQ(told(65534, tokens_query(sequence(0, 32))), 0);
  EXPECT_EQ(told(65534, tokens_query(sequence(500, 16))), 1);
  EXPECT_EQ(told(0, "where agent=x"), 3);
  EXPECT_EQ(told(65534, "where agent=x"), 1);
  EXPECT_EQ(told(0, "names\nclosed/a\n"), 1);
  EXPECT_EQ(told(65534, "names\nclosed/a\n"), 0);
  EXPECT_EQ(told(65534, "names\nown\n"), 1) << "that it is there, stat tells too";
}

// Each of the two has the other's name then.
TEST_F(MatchTest, AnExchangeOfNamesIsAChangeOfBoth) {
  start();
  store_with("a", sequence(0, kBlock));
  store_with("q", sequence(100, kBlock));
  store_with("b", sequence(200, kBlock), {{"parent", "a"}});
  Tokens first = sequence(0, kBlock), second = sequence(100, kBlock);
  for (Tokens* const tokens : {&first, &second})
    std::ranges::copy(sequence(200, kBlock), std::back_inserter(*tokens));
  ASSERT_EQ(match(first).names(), (Names{"a", "b"}));
  for (const auto& [from, to] : {std::pair("q", "a"), std::pair("a", "q")}) {
    ASSERT_EQ(::renameat2(AT_FDCWD, path(from).c_str(), AT_FDCWD, path(to).c_str(), RENAME_EXCHANGE), 0);
    const bool swapped = from == std::string("q");
    EXPECT_EQ(match(first).names(), swapped ? Names{"q"} : (Names{"a", "b"}));
    EXPECT_EQ(match(second).names(), swapped ? (Names{"a", "b"}) : Names{"q"});
  }
}

}  // namespace
}  // namespace kvcachefs::test
