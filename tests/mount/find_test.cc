// What is found of entries beside the longest prefix: blocks that are nearly a prompt's (`.pool/similar`), by
// the tool, and by connectors.
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/support/match_test.h"
#include "tests/support/program.h"

namespace kvcachefs::test {
namespace {

TEST_F(MatchTest, BlocksThatAreNearlyThoseOfAQuery) {
  start();
  const Tokens shared = sequence(700, kBlock);
  const auto after = [&](uint32_t first) {
    Tokens tokens = sequence(first, kBlock);
    tokens.insert(tokens.end(), shared.begin(), shared.end());
    return tokens;
  };
  store_with("planners", after(0), {{"pre_rope", "1"}, {"agent", "planner"}});
  store_with("coders", after(5000), {{"pre_rope", "1"}, {"agent", "planner:coder"}});
  store_with("bound", after(9000), {{"pre_rope", "0"}, {"agent", "other"}});
  store_with("unsaid", after(9500), {{"agent", "other"}});
  const auto similar = [&](const std::string& options, const Tokens& tokens) {
    std::string text;
    EXPECT_EQ(error_name(ask(mount().control("similar"), tokens_query(tokens, options), &text)), "ok");
    return parse(text);
  };
  const auto sorted_names = [](const Answer& answer) {
    auto names = answer.names();
    std::ranges::sort(names);
    return names;
  };
  const Tokens query = after(20000);
  const Answer both = similar("distance=0", query);
  EXPECT_EQ(sorted_names(both), (Names{"coders", "planners"})) << "those that hold at any position";
  for (const std::string& line : both.lines) EXPECT_TRUE(line.starts_with("16\t16\t0\t1.0000\t")) << line;
  EXPECT_EQ(both.value("blocks"), "2");
  EXPECT_EQ(both.value("truncated"), "0");
  EXPECT_EQ(similar("distance=0 not_agent=planner", query).names(), Names{}) << "and his roles";
  EXPECT_EQ(similar("distance=0 not_agent=planner:coder", query).names(), Names{"planners"});
  EXPECT_EQ(similar("model=other", query).names(), Names{});
  EXPECT_EQ(similar("most=1 distance=0", query).lines.size(), 1);
  Tokens changed = query;
  changed.back() = 1;
  EXPECT_EQ(similar("distance=0", changed).names(), Names{});
  EXPECT_EQ(sorted_names(similar("distance=16", changed)), (Names{"coders", "planners"}));
  EXPECT_EQ(match(after(9000)).names(), Names{"bound"}) << "an exact prefix";
  std::string text;
  for (const char* wrong : {"what", "tokens distance=17\n1", "tokens most=x\n1", "tokens\nx"})
    EXPECT_EQ(error_name(ask(mount().control("similar"), wrong, &text)), "EINVAL") << wrong;

  EXPECT_EQ(run({"kvcachefs", "--mount", mount().root(), "forget-agent", "p", "planner"}).exit_code, 0);
  EXPECT_EQ(sorted_names(similar("distance=0 not_agent=planner", query)), Names{"planners"})
      << "it is nobody's now";
  EXPECT_EQ(query_where("agent=planner"), "0");
  EXPECT_EQ(query_where("agent=planner:coder"), "1");
  kill_server();
  EXPECT_EQ(sorted_names(similar("distance=0", query)), (Names{"coders", "planners"})) << "after a takeover";
  EXPECT_EQ(query_where("agent=planner"), "0");
}

TEST_F(MatchTest, TheTool) {
  start();
  store_chain();
  store_with("of-planner", {}, {{"agent", "planner"}, {"layer", "3"}});
  std::string ids;
  for (const uint32_t token : prompt()) ids += (ids.empty() ? "[" : ", ") + std::to_string(token);
  const std::string file = disk() / "ids.json";
  write_file(file, ids + "]");
  const std::vector<std::string> tool = {"kvcachefs", "--mount", mount().root()};
  const auto run_tool = [&](std::vector<std::string> words) {
    words.insert(words.begin(), tool.begin(), tool.end());
    return run(words);
  };
  const Outcome matched = run_tool({"match", "p", "--tokens", file});
  EXPECT_EQ(matched.exit_code, 0) << matched.error;
  EXPECT_TRUE(matched.out.starts_with("matched_tokens=48 query_tokens=64 entries=3 index=whole prefix_hash="))
      << matched.out;
  const Outcome json = run_tool({"match", "p", "--tokens", file, "--json"});
  EXPECT_NE(json.out.find(R"("matched_tokens":48)"), std::string::npos) << json.out;
  EXPECT_NE(json.out.find(R"("name":"c")"), std::string::npos) << json.out;
  write_file(disk() / "names", "a\nb\nnothing\n");
  EXPECT_TRUE(run_tool({"match", "p", "--names", disk() / "names"}).out.starts_with("present=2 asked=3 "));
  const Outcome listed = run_tool({"list", "p", "--where", "agent=planner", "layer=3", "--sort", "size"});
  EXPECT_NE(listed.out.find("of-planner  agent=planner  layer=3"), std::string::npos)
      << listed.out << listed.error;
  const Outcome hash = run_tool({"prefix-hash", "--tokens", file});
  EXPECT_EQ(hash.out.size(), 33) << hash.out << hash.error;
  EXPECT_NE(matched.out.find(" prefix_hash=" + hash.out.substr(0, 32)), std::string::npos) << matched.out;
  EXPECT_EQ(run_tool({"prefix-hash", "--ids", "1,2"}).exit_code, 2);
  store_with("anywhere", sequence(600, 32), {{"pre_rope", "1"}, {"agent", "planner"}});
  std::string some;
  for (const uint32_t token : sequence(616, kBlock)) some += std::to_string(token) + ",";
  const Outcome near = run_tool({"similar", "p", "--ids", some, "--distance", "0", "--json"});
  EXPECT_NE(near.out.find(R"("name":"anywhere")"), std::string::npos) << near.out << near.error;
  EXPECT_NE(run_tool({"match", "p", "--tokens", file, "--pin", "10s"}).out.find(" pinned=3 "),
            std::string::npos);
  EXPECT_EQ(run_tool({"match", "p", "--tokens", file, "--pin", "1h"}).exit_code, 1);
  const std::string odd = "odd \\ name";
  store_with(odd, {}, {{"group", "a group"}});
  store_with("in-group", {}, {{"group", "a group"}});
  EXPECT_EQ(run_tool({"remove", "p", "--where", "group=a group"}).out, "removed 2\n");
  EXPECT_FALSE(exists(path(odd)) || exists(path("in-group")));
  EXPECT_EQ(run_tool({"remove", "p", "--where", "group=a group"}).out, "removed 0\n");
  // What is wrong is said, and not only in the daemon's log.
  for (const std::string command : {"match", "similar"}) {
    const Outcome no_id = run_tool({command, "p", "--ids", "1,x"});
    EXPECT_EQ(no_id.exit_code, 1);
    EXPECT_NE(no_id.error.find("'x' is no token id"), std::string::npos) << no_id.error;
  }
  for (const std::string command : {"list", "remove"}) {
    const Outcome no_filter = run_tool({command, "p", "--where", "colour=red"});
    EXPECT_EQ(no_filter.exit_code, 1);
    EXPECT_NE(no_filter.error.find("'colour=red' is no filter"), std::string::npos) << no_filter.error;
    const Outcome no_number = run_tool({command, "p", "--where", "layer=03"});
    EXPECT_EQ(no_number.exit_code, 1);
    EXPECT_NE(no_number.error.find("user.kv.layer is a decimal number"), std::string::npos)
        << no_number.error;
  }
  EXPECT_EQ(run_tool({"match", "p"}).exit_code, 2);
  EXPECT_EQ(run_tool({"match", "nothing", "--ids", "1"}).exit_code, 1);
}

TEST_F(MatchTest, TheExamplesOfConnectors) {
  start();
  const std::string python = std::string(KVCACHEFS_SOURCE_DIR) + "/docs/examples/connector.py";
  const Outcome one = run({"/usr/bin/env", "python3", python, mount().path()});
  EXPECT_EQ(one.exit_code, 0) << one.error;
  EXPECT_NE(one.out.find("32 of 72 tokens are cached, in 2 entries\n"), std::string::npos) << one.out;
  EXPECT_NE(one.out.find("tokens 16 to 32: block-1, "), std::string::npos) << one.out;
  const Outcome other = run({std::string(KVCACHEFS_BIN_DIR) + "/../tests/connector_example", mount().path()});
  EXPECT_EQ(other.exit_code, 0) << other.error;
  EXPECT_TRUE(other.out.starts_with("matched_tokens=32 query_tokens=72 entries=2 ")) << other.out;
  EXPECT_NE(other.out.find("/cc-1: 1048576 bytes, begins with V\n"), std::string::npos) << other.out;
}

}  // namespace
}  // namespace kvcachefs::test
