#include "daemon/mount_helper/scope.h"

#include <fmt/format.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <filesystem>
#include <iomanip>
#include <sstream>

namespace kvcachefs {

std::vector<std::string> scope_words(const MountArguments& arguments) {
  // Delegate: the death of one process for memory does not have systemd end the others, as in the unit of the
  // service (OOMPolicy=, which a scope has only since systemd 253).
  std::vector<std::string> words{"systemd-run",
                                 "--scope",
                                 "--quiet",
                                 "--collect",
                                 fmt::format("--unit=kvcachefs-mount-{}.scope", ::getpid()),
                                 fmt::format("--slice={}", kSlice),
                                 "--description=kvcachefs at " + arguments.base.native(),
                                 "--property=TimeoutStopSec=120",
                                 "--property=Delegate=yes"};
  for (const auto& [key, value] : arguments.settings) {
    if ((key != "spill" && key != "catalog") || !value.starts_with('/')) continue;
    // systemd takes several paths here: each is a word, in quotes if it has blanks.
    std::ostringstream needed;
    needed << "--property=RequiresMountsFor=" << std::quoted(value);
    words.push_back(needed.str());
  }
  words.emplace_back("--");
  return words;
}

bool has_scopes() {
  std::error_code error;
  return sd_booted() > 0 && std::filesystem::exists("/run/systemd/private", error);
}

}  // namespace kvcachefs
