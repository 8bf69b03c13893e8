#include "tests/unit/daemon/command_line_fixture.h"

namespace kvcachefs::command_line_test {

TEST_F(CommandLineTest, HasDefaults) {
  Result<CommandLine> line = parse({"/mnt/kv"});
  ASSERT_TRUE(line) << line.error().message;
  EXPECT_EQ(line->action, Action::kServe);
  EXPECT_EQ(line->config.mountpoint, "/mnt/kv");
  EXPECT_EQ(line->config.runtime_dir, "/run/kvcachefs");
  EXPECT_FALSE(line->config.io_uring);
  EXPECT_FALSE(line->config.no_passthrough);
  EXPECT_FALSE(line->config.daemonize);
  EXPECT_FALSE(line->config.poll_us);
  EXPECT_EQ(line->config.threads, 0u);
  EXPECT_FALSE(line->config.no_supervisor);
  EXPECT_EQ(line->config.hang_after_s, 30u);
  ASSERT_EQ(line->config.pools.size(), 1u);
  EXPECT_EQ(line->config.pools[0].name, "default");
  EXPECT_EQ(line->config.pools[0].size_bytes, 16 * kG);
}

TEST_F(CommandLineTest, PollsWhereProcessorsAreToSpare) {
  EXPECT_EQ(default_poll_us(1), 0u);
  EXPECT_EQ(default_poll_us(4), 0u);
  EXPECT_EQ(default_poll_us(5), 20u);
  EXPECT_EQ(parse({"-o", "poll_us=0", "/mnt/kv"})->config.poll_us, 0u);
  EXPECT_EQ(parse({"--print-config", "/mnt/kv"})->output.find("poll_us"), std::string::npos);
}

TEST_F(CommandLineTest, TakesPoolsAndOptionsInAnyOrder) {
  Result<CommandLine> line =
      parse({"--pool", "a:size=1G", "-o", "rw,io_uring,poll_us=50", "/mnt//kv/", "--pool=b:size=25%",
             "-othreads=3", "-o", "runtime_dir=/run/x,nodev,,noauto,_netdev,nofail", "--daemonize", "-o",
             "no_passthrough,no_page_cache,no_supervisor,hang_after=5,give_up_after=7"});
  ASSERT_TRUE(line) << line.error().message;
  const Config& config = line->config;
  EXPECT_EQ(config.mountpoint.native(), "/mnt/kv/");
  EXPECT_EQ(config.runtime_dir, "/run/x");
  EXPECT_TRUE(config.io_uring);
  EXPECT_TRUE(config.no_passthrough);
  EXPECT_TRUE(config.no_page_cache);
  EXPECT_TRUE(config.daemonize);
  EXPECT_TRUE(config.no_supervisor);
  EXPECT_EQ(config.hang_after_s, 5u);
  EXPECT_EQ(config.give_up_after_s, 7u);
  EXPECT_EQ(config.poll_us, 50u);
  EXPECT_EQ(config.threads, 3u);
  ASSERT_EQ(config.pools.size(), 2u);
  EXPECT_EQ(config.pools[0].name, "a");
  EXPECT_EQ(config.pools[1].size_bytes, 16 * kG);
}

TEST_F(CommandLineTest, IsAskedWhetherItCanGoOn) {
  Result<CommandLine> line = parse({"--can-succeed=1.2.3", "/mnt/kv"});
  ASSERT_TRUE(line) << line.error().message;
  EXPECT_EQ(line->action, Action::kCanSucceed);
  EXPECT_EQ(line->formats, "1.2.3");
  EXPECT_FALSE(parse({"--can-succeed=1.2.3", "--pool", "a:colour=red", "/mnt/kv"}));
}

TEST_F(CommandLineTest, ChecksTheSystemWithOrWithoutADisk) {
  Result<CommandLine> line = parse({"--check-system"});
  ASSERT_TRUE(line) << line.error().message;
  EXPECT_EQ(line->action, Action::kCheckSystem);
  EXPECT_FALSE(line->disk_path);
  EXPECT_EQ(parse({"--check-system=/data"})->disk_path, "/data");
  EXPECT_EQ(parse({"--check-system", "/data/llama.spill"})->disk_path, "/data/llama.spill");
  EXPECT_EQ(parse({"--check-system", "--version"})->action, Action::kVersion);
}

TEST_F(CommandLineTest, MakesPathsAbsolute) {
  Result<CommandLine> line = parse({"kv", "-o", "runtime_dir=run"});
  ASSERT_TRUE(line);
  EXPECT_EQ(line->config.mountpoint, std::filesystem::current_path() / "kv");
  EXPECT_EQ(line->config.runtime_dir, std::filesystem::current_path() / "run");
}

TEST_F(CommandLineTest, NamesTheOptionThatIsWrong) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{}, "MOUNTPOINT: is missing"},
      {{"/a", "/b"}, "/b"},
      {{"--colour", "/a"}, "--colour"},
      {{"/a", "--pool"}, "--pool"},
      {{"--pool", "a:size=1G", "--pool", "a:size=2G", "/a"}, "--pool: pool a is given twice"},
      {{"--pool", "a:size=x", "/a"}, "--pool: pool a: size: 'x'"},
      {{"--pool", "a:colour=red", "/a"}, "--pool: pool a: unknown pool option 'colour'"},
      {{"--pool", "a:policy=best", "/a"}, "--pool: pool a: policy: 'best'"},
      {{"--pool", "a/b", "/a"}, "--pool: 'a/b' is not a pool name"},
      {{"--pool", "a:size=40G", "--pool", "b:size=40G", "/a"},
       "--pool: pool b: size 40G is beyond the memory: 20.8G of 64G are left, without the memory_reserve of "
       "3.2G"},
      {{"-o", "memory_reserve=some", "/a"}, "-o memory_reserve: 'some' is not a size, nor a percentage"},
      {{"-o", "memory_reserve=101%", "/a"}, "-o memory_reserve: '101%' is not a size, nor a percentage"},
      {{"-o", "memory_reserve=-1", "/a"}, "-o memory_reserve: '-1' is not a size, nor a percentage"},
      {{"-o", "memory_reserve=5", "/a"}, "-o memory_reserve: '5' is less than 1M and not 0"},
      {{"-o", "shrink_floor=1G", "/a"}, "-o shrink_floor: '1G' is not a percentage from 0 to 100"},
      {{"-o", "shrink_floor", "/a"}, "-o shrink_floor: needs a value"},
      {{"--pool", "a:size=1G,entry_size=2G", "/a"}, "--pool: pool a: entry_size 2G is beyond"},
      {{"--pool", "a:spill=x", "/a"}, "--pool: pool a: spill: 'x' is not an absolute path"},
      {{"--pool", "a:size=1G,spill_size=2G", "/a"}, "--pool: pool a: spill_size=2G needs a disk tier"},
      {{"--pool", "a:size=1G,durability=sync", "/a"}, "--pool: pool a: durability=sync needs a disk tier"},
      {{"--pool", "a:size=1G,spill=/x", "--pool", "b:size=1G,spill=//x/", "/a"},
       "--pool: pool b: spill=/x is pool a's"},
      {{"--pool", "a:size=1G,spill=/x,catalog=/c", "--pool", "b:size=1G,spill=/y,catalog=/c", "/a"},
       "--pool: pool b: catalog=/c is pool a's"},
      {{"--pool", "a:size=1G,spill=/x", "--pool", "b:size=1G,spill=/y,catalog=/x.catalog", "/a"},
       "--pool: pool b: catalog=/x.catalog is pool a's"},
      {{"--pool", "a:size=1G,spill=/x", "--pool", "b:size=1G,spill=/y,catalog=/var/lib/kvcachefs/a", "/a"},
       "--pool: pool b: catalog=/var/lib/kvcachefs/a is pool a's"},
      {{"--pool", "a:size=1G,spill=/x", "--pool", "b:size=1G,spill=/x.catalog", "/a"},
       "--pool: pool b: spill=/x.catalog is pool a's catalog"},
      {{"--pool", "a:size=1G,spill=/x", "--pool", "b:size=1G,spill=/y,catalog=/x", "/a"},
       "--pool: pool b: catalog=/x is pool a's"},
      {{"-o", "io_uring", "--pool", "a:size=1G,spill=/x", "/a"},
       "--pool: pool a: spill=/x would block an open over io_uring"},
      {{"-o", "fast", "/a"}, "-o fast: unknown option"},
      {{"-o", "poll_us", "/a"}, "-o poll_us: needs a value"},
      {{"-o", "poll_us=1000001", "/a"}, "-o poll_us: '1000001' is not a number from 0 to 1000000"},
      {{"-o", "threads=-1", "/a"}, "-o threads: '-1'"},
      {{"-o", "io_uring=1", "/a"}, "-o io_uring: takes no value"},
      {{"-o", "runtime_dir=", "/a"}, "-o runtime_dir: ''"},
      {{"--config", "/nowhere/kvcachefs.toml", "/a"}, "--config: /nowhere/kvcachefs.toml cannot be read"},
      {{"--config", "/", "/a"}, "--config: / cannot be read"},
  };
  for (const auto& [arguments, reason] : cases) expect_error(parse(arguments), reason);
}

TEST_F(CommandLineTest, ReadsTheFile) {
  Result<CommandLine> line = parse_file(R"(mountpoint = "/mnt/file"
runtime_dir = "/run/file"
io_uring = true
no_passthrough = true
no_page_cache = true
no_supervisor = true
hang_after = 0
poll_us = 20
threads = 4

[pools.llama]
size = "16G"
policy = "lfu"
watermarks = "80:90"
entry_size = "2M"
pinned_max = "25%"
mode = 0o750
uid = 1000
gid = 100
[pools."qwen-2.5"]
size = 1073741824
mode = "0700"
)");
  ASSERT_TRUE(line) << line.error().message;
  const Config& config = line->config;
  EXPECT_EQ(config.mountpoint, "/mnt/kv");
  EXPECT_EQ(config.runtime_dir, "/run/file");
  EXPECT_TRUE(config.io_uring);
  EXPECT_TRUE(config.no_passthrough);
  EXPECT_TRUE(config.no_page_cache);
  EXPECT_TRUE(config.no_supervisor);
  EXPECT_EQ(config.hang_after_s, 0u);
  EXPECT_EQ(config.poll_us, 20u);
  EXPECT_EQ(config.threads, 4u);
  ASSERT_EQ(config.pools.size(), 2u);
  EXPECT_EQ(config.pools[0].name, "llama");
  EXPECT_EQ(config.pools[0].size_bytes, 16 * kG);
  EXPECT_EQ(config.pools[0].policy, "lfu");
  EXPECT_EQ(config.pools[0].entry_size_bytes, 2u << 20);
  EXPECT_EQ(config.pools[0].pinned_max_percent, 25u);
  EXPECT_EQ(config.pools[0].mode, 0750u);
  EXPECT_EQ(config.pools[0].uid, 1000u);
  EXPECT_EQ(config.pools[0].gid, 100u);
  EXPECT_EQ(config.pools[1].name, "qwen-2.5");
  EXPECT_EQ(config.pools[1].size_bytes, kG);
  EXPECT_EQ(config.pools[1].mode, 0700u);
}

TEST_F(CommandLineTest, NamesTheLineThatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"colour = 1\n", ":1: unknown key 'colour'"},
      {"\n\npoll_us = -1\n", ":3: poll_us is not a number from 0 to 1000000"},
      {"threads = \"4\"\n", ":1: threads is not a number"},
      {"io_uring = 1\n", ":1: io_uring is not true or false"},
      {"mountpoint = \"kv\"\n", ":1: mountpoint is not an absolute path"},
      {"mountpoint = \"/a\\u0000b\"\n", ":1: mountpoint is not an absolute path"},
      {"pools = 1\n", ":1: pools is not a table"},
      {"[pools]\na = 1\n", ":2: pools.a is not a pool"},
      {"[pools.\".a\"]\n", ":1: '.a' is not a pool name"},
      {"[pools.a]\nsize = \"1G\"\ncolour = \"red\"\n", ":3: unknown pool option 'colour'"},
      {"[pools.a]\nsize = \"lots\"\n", ":2: size: 'lots' is not a size"},
      {"[pools.a]\nsize = 1.5\n", ":2: size is neither text nor a number"},
      {"[pools.a]\nsize = true\n", ":2: size is neither"},
      {"[pools.a]\nwatermarks = \"98:95\"\n", ":2: watermarks: '98:95'"},
      {"[pools.a]\npolicy = \"best\"\n", ":2: policy: 'best'"},
      {"[pools.a]\n[pools.a]\n", ":2: "},
      {"[pools.a]\nsize = \"1G\"\nsize = \"2G\"\n", ":3: "},
      {"[pools.llama-3.1]\nsize = \"1G\"\n", "[pools.\"llama-3.1\"]"},
      {"[pools.a]\nsize = \"40G\"\n[pools.b]\nsize = \"40G\"\n", ":3: pool b: size 40G is beyond the memory"},
      {"[pools.a]\nsize = \"1G\"\nspill = \"x\"\n", ":3: spill: 'x' is not an absolute path"},
      {"[pools.a]\nsize = \"1G\"\nspill_size = \"1G\"\n", ":1: pool a: spill_size=1G needs a disk tier"},
      {"[pools.a]\nsize = true\n", ":2: size is neither"},
      {"io_uring = true\n[pools.a]\nspill = \"/x\"\n", ":2: pool a: spill=/x would block an open"},
      {"io_uring = \n", ":1: "},
      {"io_uring\n", ":1: "},
      {"a = \"\xff\"\n", ":1: "},
  };
  for (const auto& [text, reason] : cases) {
    Result<CommandLine> line = parse_file(text);
    expect_error(line, reason);
    EXPECT_TRUE(line.error().message.starts_with(file_.native() + ":")) << line.error().message;
  }
}

TEST_F(CommandLineTest, WinsOverTheFile) {
  write(
      "mountpoint = \"/mnt/file\"\nthreads = 4\npoll_us = 7\n[pools.a]\nsize = \"16G\"\npolicy = \"lfu\"\n");
  Result<CommandLine> line = parse(
      {"--config", file_, "--pool", "a:size=8G", "--pool", "b:size=1G", "-o", "threads=2", "/mnt/line"});
  ASSERT_TRUE(line) << line.error().message;
  EXPECT_EQ(line->config.mountpoint, "/mnt/line");
  EXPECT_EQ(line->config.threads, 2u);
  EXPECT_EQ(line->config.poll_us, 7u);
  ASSERT_EQ(line->config.pools.size(), 2u);
  EXPECT_EQ(line->config.pools[0].size_bytes, 8 * kG);
  EXPECT_EQ(line->config.pools[0].policy, "lfu");
  EXPECT_EQ(line->config.pools[1].name, "b");
  line = parse({"--config", file_});
  ASSERT_TRUE(line) << line.error().message;
  EXPECT_EQ(line->config.mountpoint, "/mnt/file");
}

// A daemon that goes on with what another has left serves that, though a cgroup has less memory by now.
TEST_F(CommandLineTest, WhatDoesNotFitIsRefusedToAFirstStartAlone) {
  const char* const checks[] = {"kvcachefsd", "--pool", "a:size=65G", "--check-config", "/a"};
  expect_error(parse_command_line(5, checks, kMemory), "size 65G is beyond the memory");
  const char* const succeeds[] = {"kvcachefsd", "--pool", "a:size=65G", "--can-succeed=x", "/a"};
  EXPECT_TRUE(parse_command_line(5, succeeds, kMemory));
  const char* const argv[] = {"kvcachefsd", "--pool", "a:size=65G", "/a"};
  const auto line = parse_command_line(4, argv, kMemory);
  ASSERT_TRUE(line) << line.error().message;
  EXPECT_FALSE(KeptSettings::served(line->config, line->origins, kMemory));
  EXPECT_EQ(line->config.pools[0].size_bytes, 65 * kG);
}

TEST_F(CommandLineTest, BlamesThePoolThatTheLineChanged) {
  write("[pools.a]\nsize = \"16G\"\n");
  expect_error(parse({"--config", file_, "--pool", "a:size=65G", "/a"}), "--pool: pool a: size 65G");
  expect_error(parse({"--config", file_, "--pool", "a:size=65Q", "/a"}), "--pool: pool a: size: '65Q'");
}

TEST_F(CommandLineTest, PrintsWhatItReads) {
  write("mountpoint = \"/mnt/\\\"odd\\\\ \\t \u00e4 name\"\n");
  Result<CommandLine> printed =
      parse({"--config", file_, "--print-config", "-o", "io_uring,poll_us=5,threads=2", "--pool",
             "a.b:size=10000M,policy=priority,watermarks=1:2,entry_size=4097,pinned_max=0,mode=0,uid=1,gid=2",
             "--pool", "c:mode=4755"});
  ASSERT_TRUE(printed) << printed.error().message;
  EXPECT_EQ(printed->action, Action::kPrintConfig);
  EXPECT_NE(printed->output.find("[pools.\"a.b\"]"), std::string::npos);
  EXPECT_TRUE(printed->output.starts_with("mountpoint = \"/mnt/\\\"odd\\\\ \\t \u00e4 name\"\n"))
      << printed->output;
  write(printed->output);
  Result<CommandLine> checked = parse({"--config", file_, "--check-config"});
  ASSERT_TRUE(checked) << checked.error().message;
  EXPECT_EQ(checked->action, Action::kCheckConfig);
  EXPECT_EQ(checked->config.mountpoint, "/mnt/\"odd\\ \t \u00e4 name");
  EXPECT_EQ(checked->config.poll_us, 5u);
  EXPECT_EQ(checked->config.pools[0].entry_size_bytes, 4097u);
  EXPECT_EQ(checked->config.pools[1].mode, 04755u);
  EXPECT_EQ(parse({"--config", file_, "--print-config"})->output, printed->output);
}

TEST_F(CommandLineTest, ReadsDiskTiers) {
  const std::string text = R"([pools."a"]
size = "1G"
spill = "/data/a, b"
spill_size = "200G"
catalog = "/data/c"
durability = "sync"
prefetch = false
spill_force = true
)";
  Result<CommandLine> line = parse_file(text);
  ASSERT_TRUE(line) << line.error().message;
  const PoolOptions& pool = line->config.pools[0];
  EXPECT_EQ(pool.spill_path, "/data/a, b");
  EXPECT_EQ(pool.spill_size_bytes, 200 * kG);
  EXPECT_EQ(pool.catalog_path, "/data/c");
  EXPECT_EQ(pool.durability, Durability::kSync);
  EXPECT_FALSE(pool.prefetch);
  EXPECT_TRUE(pool.spill_force);
  // A printed configuration is read back unchanged, with a disk tier and without.
  for (const std::string& spec : {std::string("a:policy=lfu"), std::string("a:spill=none")}) {
    write(text);
    const Result<CommandLine> printed = parse({"--config", file_, "--pool", spec, "--print-config"});
    ASSERT_TRUE(printed) << printed.error().message;
    write(printed->output);
    const Result<CommandLine> again = parse({"--config", file_, "--print-config"});
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(again->output, printed->output);
  }
}

TEST_F(CommandLineTest, ChecksWithoutAMountpoint) {
  ASSERT_TRUE(parse({"--check-config"}));
  Result<CommandLine> printed = parse({"--print-config"});
  ASSERT_TRUE(printed);
  EXPECT_EQ(printed->output.find("mountpoint"), std::string::npos);
}

TEST_F(CommandLineTest, TellsVersionAndHelp) {
  EXPECT_EQ(parse({"--version"})->output, "kvcachefs 0.1.0\n");
  Result<CommandLine> help = parse({"--help"});
  ASSERT_TRUE(help);
  EXPECT_EQ(help->action, Action::kHelp);
  for (const char* word :
       {"--config", "--pool", "-o", "--daemonize", "--check-config", "--print-config", "MOUNTPOINT"}) {
    EXPECT_NE(help->output.find(word), std::string::npos) << word;
  }
}

}  // namespace kvcachefs::command_line_test
