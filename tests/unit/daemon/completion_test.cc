#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "daemon/cli/completion.h"
#include "tests/unit/daemon/cli_fixture.h"

namespace kvcachefs::completion_test {

using CompletionTest = CliTest;

std::vector<std::string> commands_in(const std::string& help) {
  std::vector<std::string> commands;
  std::istringstream lines(help.substr(help.find("Subcommands:")));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line))
    if (line.starts_with("  ") && line[2] != ' ') commands.push_back(line.substr(2, line.find(' ', 2) - 2));
  return commands;
}

TEST_F(CompletionTest, NamesEachCommandOfTheHelp) {
  const std::vector<std::string> commands = commands_in(run_alone({"--help"}).out);
  ASSERT_GT(commands.size(), 20u);
  for (const std::string_view shell : kShells) {
    const Outcome script = run_alone({"completion", std::string(shell)});
    ASSERT_EQ(script.exit_code, 0) << script.error;
    for (const std::string& command : commands) {
      const std::string its = shell == "fish" ? fmt::format("-n __fish_use_subcommand -a {} -d ", command)
                                              : fmt::format("\n    {})\n", command);
      EXPECT_TRUE(script.out.contains(its)) << shell << ": " << command;
      if (shell != "fish") {
        const size_t first = script.out.find("    '') ");
        const std::string offered = script.out.substr(first, script.out.find('\n', first) - first);
        EXPECT_TRUE(offered.contains(" " + command + " ") || offered.contains("'" + command + " "))
            << shell << ": " << command;
      }
    }
  }
}

// A daemon that hangs does not hold up the shell for long.
TEST_F(CompletionTest, LooksForPoolsForAMomentAlone) {
  for (const std::string_view shell : kShells) {
    const std::string script = run_alone({"completion", std::string(shell)}).out;
    EXPECT_TRUE(script.contains("timeout -s KILL 2 ls ")) << shell;
    EXPECT_FALSE(script.contains("; ls ") || script.contains("$(ls ")) << shell;
  }
}

}  // namespace kvcachefs::completion_test
