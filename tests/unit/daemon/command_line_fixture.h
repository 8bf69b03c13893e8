// The command line of a daemon and a configuration file of a test's own.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "daemon/command_line.h"
#include "daemon/kept_settings.h"

namespace kvcachefs::command_line_test {

inline constexpr uint64_t kG = uint64_t{1} << 30;
inline constexpr uint64_t kMemory = 64 * kG;
using Action = CommandLine::Action;

class CommandLineTest : public ::testing::Test {
 protected:
  CommandLineTest() {
    std::string path = std::filesystem::temp_directory_path() / "kv-config-XXXXXX";
    directory_ = ::mkdtemp(path.data());
    file_ = directory_ / "kvcachefs.toml";
  }
  ~CommandLineTest() override { std::filesystem::remove_all(directory_); }

  void write(std::string_view text) { std::ofstream(file_) << text; }

  Result<CommandLine> parse(std::vector<std::string> arguments) {
    std::vector<const char*> argv{"kvcachefsd"};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    auto line = parse_command_line(static_cast<int>(argv.size()), argv.data(), kMemory);
    if (!line || line->action != CommandLine::Action::kServe) return line;
    auto served = KeptSettings::served(line->config, line->origins, kMemory);  // of a first start
    return served ? std::move(line) : pass(served);
  }
  Result<CommandLine> parse_file(std::string_view text) {
    write(text);
    return parse({"--config", file_, "/mnt/kv"});
  }
  void expect_error(const Result<CommandLine>& result, const std::string& reason) {
    ASSERT_FALSE(result) << reason;
    EXPECT_EQ(result.error().code, EINVAL);
    EXPECT_NE(result.error().message.find(reason), std::string::npos) << result.error().message << "\n"
                                                                      << reason;
    EXPECT_EQ(result.error().message.find('\n'), std::string::npos) << result.error().message;
  }

  std::filesystem::path directory_;
  std::filesystem::path file_;
};

}  // namespace kvcachefs::command_line_test
