// What a shell completes of the kvcachefs tool's command line: scripts for bash, zsh and fish, made from the
// tool's own commands and the table of settings, so that they cannot fall behind. Pure functions, any thread;
// never fails.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvcachefs {

struct CompletedCommand {
  std::string name;
  std::string help;
  std::vector<std::string> options;  // `--force`
  // What its arguments are, one after the other; of the last there may be several.
  enum class Argument { kPool, kKey, kSetting, kFile };
  std::vector<Argument> arguments;
};

inline constexpr std::string_view kShells[] = {"bash", "zsh", "fish"};

// `keys` are those of all settings, and `live` those that can be set.
std::string completion_of(std::string_view shell, const std::vector<CompletedCommand>& commands,
                          const std::vector<std::string>& keys, const std::vector<std::string>& live);

}  // namespace kvcachefs
