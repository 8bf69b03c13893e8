// Settings of the daemon as the command line and configuration files have them.
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/daemon/command_line_fixture.h"

namespace kvcachefs::daemon_settings_test {

using command_line_test::kG;
using command_line_test::kMemory;

class DaemonSettings : public command_line_test::CommandLineTest {};

TEST_F(DaemonSettings, ReadsWhatIsLeftToTheHost) {
  Result<CommandLine> line = parse({"/a"});
  EXPECT_FALSE(line->config.memory_reserve_bytes);
  EXPECT_EQ(line->config.shrink_floor.value, 10u);
  line = parse({"-o", "memory_reserve=2%,shrink_floor=0%", "/a"});
  ASSERT_TRUE(line) << line.error().message;
  EXPECT_EQ(line->config.memory_reserve_bytes, kMemory / 100 * 2);
  EXPECT_EQ(line->config.shrink_floor.value, 0u);
  write("memory_reserve = \"2G\"\nshrink_floor = 30\n");
  line = parse({"--config", file_, "/a"});
  ASSERT_TRUE(line) << line.error().message;
  EXPECT_EQ(line->config.memory_reserve_bytes, 2 * kG);
  EXPECT_EQ(line->config.shrink_floor.value, 30u);
  const std::string printed = parse({"--config", file_, "--print-config"})->output;
  EXPECT_NE(printed.find("memory_reserve = \"2G\"\nshrink_floor = \"30%\"\n"), std::string::npos) << printed;
  write(printed);
  EXPECT_EQ(parse({"--config", file_, "--print-config"})->output, printed);
  expect_error(parse_file("memory_reserve = true\n"), ":1: memory_reserve is not a size, nor a percentage");
  expect_error(parse_file("shrink_floor = \"x\"\n"), ":1: shrink_floor is not a percentage from 0 to 100");
}

TEST_F(DaemonSettings, ReadsPoolsOfFurtherFiles) {
  const std::string further = std::filesystem::path(file_).replace_extension(".d").native() + "/";
  std::filesystem::create_directory(further);
  write("threads = 2\n[pools.a]\nsize = \"1G\"\n");
  std::ofstream(further + "20-c.toml") << "[pools.c]\nsize = \"3G\"\n";
  std::ofstream(further + "10-b.toml") << "[pools.b]\nsize = \"2G\"\n";
  std::ofstream(further + "10-b.toml.old") << "no configuration";
  const Result<CommandLine> line = parse({"--config", file_, "/a"});
  ASSERT_TRUE(line) << line.error().message;
  ASSERT_EQ(line->config.pools.size(), 3u);
  EXPECT_EQ(line->config.pools[1].name, "b");
  EXPECT_EQ(line->config.pools[2].size_bytes, 3 * kG);
  std::ofstream(further + "30.toml") << "\n[pools.b]\n";
  expect_error(parse({"--config", file_, "/a"}),
               further + "30.toml:2: pool b is defined in " + further + "10-b.toml:1 already");
  std::ofstream(further + "30.toml") << "[pools.d]\nsize = \"80G\"\n";
  expect_error(parse({"--config", file_, "/a"}), further + "30.toml:1: pool d: size");
  std::ofstream(further + "30.toml") << "threads = 3\n";
  expect_error(parse({"--config", file_, "/a"}),
               further + "30.toml:1: 'threads': this file has pools alone: [pools.NAME]");
  std::ofstream(further + "30.toml") << "[pools.d\n";
  expect_error(parse({"--config", file_, "/a"}), further + "30.toml:1: ");
  std::filesystem::remove_all(further);
}

TEST_F(DaemonSettings, ReadsAGroup) {
  EXPECT_FALSE(parse({"/a"})->config.control_group);
  EXPECT_EQ(parse({"-o", "control_group=4321", "/a"})->config.control_group, 4321u);
  EXPECT_EQ(parse({"-o", "control_group=root", "/a"})->config.control_group, 0u);
  write("control_group = \"root\"\n");
  const std::string printed = parse({"--config", file_, "--print-config"})->output;
  EXPECT_NE(printed.find("control_group = 0\n"), std::string::npos) << printed;
  EXPECT_EQ(parse_file("control_group = 17\n")->config.control_group, 17u);
  expect_error(parse({"-o", "control_group=no one's", "/a"}), "-o control_group: 'no one's' is no group");
  expect_error(parse_file("control_group = 4294967295\n"), ":1: control_group is no group");
}

TEST_F(DaemonSettings, ReadsWhetherTheMountPointIsSealed) {
  EXPECT_FALSE(parse({"/a"})->config.seal);
  EXPECT_EQ(parse({"-o", "seal=on", "/a"})->config.seal, true);
  write("seal = \"off\"\n");
  EXPECT_EQ(parse({"--config", file_, "/a"})->config.seal, false);
  const std::string printed = parse({"--config", file_, "--print-config"})->output;
  EXPECT_NE(printed.find("seal = \"off\"\n"), std::string::npos) << printed;
  expect_error(parse_file("seal = 1\n"), ":1: seal is not on or off");
}

TEST_F(DaemonSettings, WaitsForNoWriterOfItsFile) {
  const std::string fifo = file_.native() + ".fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  expect_error(parse({"--config", fifo, "/a"}), fifo + " cannot be read: it is no regular file");
  ::unlink(fifo.c_str());
}

TEST_F(DaemonSettings, ReadsHowReadilyTheKernelKillsIt) {
  EXPECT_FALSE(parse({"/a"})->config.oom_score_adj);
  EXPECT_EQ(parse({"-o", "oom_score_adj=-900", "/a"})->config.oom_score_adj, -900);
  write("oom_score_adj = -1000\n");
  const std::string printed = parse({"--config", file_, "--print-config"})->output;
  EXPECT_NE(printed.find("oom_score_adj = -1000\n"), std::string::npos) << printed;
  expect_error(parse({"-o", "oom_score_adj=-1001", "/a"}),
               "-o oom_score_adj: '-1001' is not a number from -1000 to 1000");
  expect_error(parse_file("oom_score_adj = 1001\n"), ":1: oom_score_adj is not a number from -1000 to 1000");
}

}  // namespace kvcachefs::daemon_settings_test
