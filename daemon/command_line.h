// The command line of kvcachefsd. Any thread. Fails with EINVAL and one line that names the option, or
// `FILE:LINE:` where the configuration file is at fault; the caller prints that line and exits with 2.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "daemon/config.h"

namespace kvcachefs {

struct CommandLine {
  enum class Action { kServe, kCheckConfig, kPrintConfig, kVersion, kHelp, kCanSucceed, kCheckSystem };
  Action action = Action::kServe;
  Config config;
  std::optional<std::string> disk_path;  // for kCheckSystem: the place of a disk tier
  std::string formats;  // for kCanSucceed: what the asking daemon leaves (daemon/succession.h)
  PoolOrigins origins;
  std::string output;  // what kPrintConfig, kVersion and kHelp print; ends with a newline
};

// `memory_bytes` is what sizes in percent refer to. Whether what is to be served is good
// KeptSettings::served() says, for the actions that print or check here; a daemon that goes on with what
// another has left does not ask.
Result<CommandLine> parse_command_line(int argc, const char* const* argv, uint64_t memory_bytes);

// One OPTION of `-o OPTION,...`: a setting of the daemon, runtime_dir= or state_dir=.
Result<void> set_daemon_option(Config& config, std::string_view option, uint64_t memory_bytes);

}  // namespace kvcachefs
