// Queries for entries other than by the longest prefix: for blocks that are nearly a prompt's
// (`.pool/similar`), by the tool, and by connectors.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/match_test.h"
#include "tests/support/program.h"

namespace kvcachefs::test {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
// A sanitizer keeps several times the memory that the daemon allocates.
constexpr int kMostGrowthMib = 253;
#else
constexpr int kMostGrowthMib = 20;  // the user has 8 MiB left
#endif

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
  EXPECT_EQ(both.value("not_pre_rope"), "") << "it explains an empty answer";
  const Tokens unmarked = sequence(9000, kBlock);
  EXPECT_EQ(similar("distance=0", unmarked).value("found"), "0");
  EXPECT_EQ(similar("distance=0", unmarked).value("not_pre_rope"), "1");
  EXPECT_EQ(similar("distance=0 not_agent=planner", query).value("not_pre_rope"), "2");
  EXPECT_EQ(similar("distance=0 most=1 not_agent=planner", query).value("not_pre_rope"), "1");
  EXPECT_EQ(similar("distance=0 not_agent=other", unmarked).value("not_pre_rope"), "0");
  EXPECT_EQ(similar("distance=0 model=other", unmarked).value("not_pre_rope"), "0");
  const auto left_out_for_another = [&] {
    std::string text;
    if (ask(mount().control("similar"), tokens_query(unmarked, "distance=0"), &text) != 0) return 255;
    return std::atoi(parse(text).value("not_pre_rope").c_str());
  };
  EXPECT_EQ(as_user(65534, 65534, left_out_for_another), 1);
  ASSERT_EQ(::chmod(path("bound").c_str(), 0600), 0);
  EXPECT_EQ(as_user(65534, 65534, left_out_for_another), 0) << "it may not be read";
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
  const Outcome left_out = run_tool({"similar", "p", "--tokens", file, "--distance", "0"});
  EXPECT_NE(left_out.out.find(" found=0 "), std::string::npos) << left_out.out << left_out.error;
  EXPECT_NE(left_out.out.find(" not_pre_rope=3 "), std::string::npos) << left_out.out;
  EXPECT_NE(run_tool({"similar", "p", "--tokens", file, "--json"}).out.find(R"("not_pre_rope":3)"),
            std::string::npos);
  EXPECT_NE(run_tool({"match", "p", "--tokens", file, "--pin", "10s"}).out.find(" pinned=3 "),
            std::string::npos);
  EXPECT_EQ(run_tool({"match", "p", "--tokens", file, "--pin", "1h"}).exit_code, 1);
  const std::string odd = "odd \\ name";
  store_with(odd, {}, {{"group", "a group"}});
  store_with("in-group", {}, {{"group", "a group"}});
  EXPECT_EQ(run_tool({"remove", "p", "--where", "group=a group"}).out, "removed 2\n");
  EXPECT_FALSE(exists(path(odd)) || exists(path("in-group")));
  EXPECT_EQ(run_tool({"remove", "p", "--where", "group=a group"}).out, "removed 0\n");
  // The tool reports what is wrong with a query, which is not only in the daemon's log.
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

// Each path has some 3,900 bytes, and is four times as long in an answer. Each entry follows the one before.
TEST_F(MatchTest, AnAnswerTakesNoMoreMemoryThanItsUserHas) {
  start_pool("p:size=2G,max_entries=100000");
  constexpr uint32_t kEntries = 4200, kLevels = 15;
  int directory = ::open(mount().path().c_str(), O_PATH | O_DIRECTORY);
  const std::string part(250, '\x01');
  for (uint32_t level = 0; level < kLevels; ++level) {
    ASSERT_EQ(::mkdirat(directory, part.c_str(), 0755), 0);
    const int below = ::openat(directory, part.c_str(), O_PATH | O_DIRECTORY);
    ASSERT_GE(below, 0);
    ASSERT_EQ(::close(std::exchange(directory, below)), 0);
  }
  const auto name_of = [](uint32_t number) { return std::string(100, 'n') + std::to_string(number); };
  std::string chain = "tokens\n";
  for (uint32_t i = 0; i < kEntries; ++i) {
    const int file = ::openat(directory, name_of(i).c_str(), O_WRONLY | O_CREAT | O_EXCL, 0644);
    ASSERT_GE(file, 0) << errno;
    const auto set = [&](const char* key, const std::string& value) {
      ASSERT_EQ(::fsetxattr(file, key, value.data(), value.size(), 0), 0) << key << i;
    };
    set("user.kv.agent", i < 100 ? "few" : "many");
    set("user.kv.tokens", bytes_of(sequence(i, kBlock)));
    if (i > 0) set("user.kv.parent", name_of(i - 1));
    ASSERT_EQ(::close(file), 0);
    for (const uint32_t token : sequence(i, kBlock)) chain += std::to_string(token) + " ";
  }
  ASSERT_EQ(::close(directory), 0);
  wait_for_index();
  ASSERT_EQ(query_where("agent=few"), "100");
  const std::string process = "/proc/" + std::to_string(mount().server_pid());
  // By how much the daemon has grown for a query; 255: the answer was not refused; 254: the test failed.
  const auto growth_mib = [&](const std::string& query) {
    std::vector<std::unique_ptr<File>> opens;  // with 56 MiB of queries
    const std::string piece(1 << 20, ' ');
    while (opens.size() < 14) {
      opens.push_back(std::make_unique<File>(mount().control("match"), O_RDWR));
      for (int i = 0; i < 4; ++i)
        if (::write(opens.back()->fd(), piece.data(), piece.size()) < 0) return 254;
    }
    const auto memory_mib = [&](const char* key) {
      const std::string status = read_file(process + "/status");
      return std::atoi(status.c_str() + status.find(key) + std::strlen(key)) / 1024;
    };
    const int before_mib = memory_mib("VmRSS:");
    std::string text;
    if (ask(mount().control("match"), query, &text) != EDQUOT) return 255;
    return std::min(memory_mib("VmHWM:") - before_mib, 252);
  };
  for (const std::string& query : {std::string("where agent=many"), chain}) {
    write_file(process + "/clear_refs", "5");  // VmHWM begins at VmRSS
    EXPECT_LT(as_user(65534, 65534, [&] { return growth_mib(query); }), kMostGrowthMib)
        << query.substr(0, 20);
  }
  EXPECT_EQ(query_where("agent=few"), "100") << "what an answer took is given back";
}

}  // namespace
}  // namespace kvcachefs::test
