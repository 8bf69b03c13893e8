#include "daemon/mount_helper/scope.h"

#include <fmt/format.h>
#include <systemd/sd-daemon.h>
#include <systemd/sd-login.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iomanip>
#include <sstream>

namespace kvcachefs {
namespace {

// systemd takes a list of paths here, so a path with blanks is quoted.
void add_disks(std::vector<std::string>& words, const MountArguments& arguments) {
  for (const auto& [key, value] : arguments.settings) {
    if ((key != "spill" && key != "catalog") || !value.starts_with('/')) continue;
    std::ostringstream needed;
    needed << "--property=RequiresMountsFor=" << std::quoted(value);
    words.push_back(needed.str());
  }
}

std::string name_of(pid_t process, int (*get)(pid_t, char**)) {
  char* name = nullptr;
  if (get(process, &name) < 0) return "";
  std::string text = name;
  std::free(name);
  return text;
}

}  // namespace

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
  add_disks(words, arguments);
  words.emplace_back("--");
  return words;
}

std::string unit_of(pid_t daemon) {
  std::string unit = name_of(daemon, sd_pid_get_unit);
  return unit == "kvcachefs.service" || name_of(daemon, sd_pid_get_slice) == kSlice ? unit : "";
}

std::vector<std::string> disk_unit_command(const MountArguments& arguments, const std::string& daemon_unit,
                                           const std::string& disk_unit) {
  std::vector<std::string> disks;
  add_disks(disks, arguments);
  if (disks.empty()) return {};
  // systemd stops units in the reverse of the order in which it starts them: first the daemon, then this
  // unit, then the disks' mounts. The unit has no default dependencies, because a pool of /etc/fstab may be
  // mounted before basic.target.
  std::vector<std::string> words{"systemd-run",
                                 "--no-block",
                                 "--quiet",
                                 "--collect",
                                 "--unit=" + disk_unit,
                                 fmt::format("--slice={}", kSlice),
                                 "--description=disks of kvcachefs pool " + arguments.pool,
                                 "--property=Type=oneshot",
                                 "--property=RemainAfterExit=yes",
                                 "--property=StandardOutput=null",
                                 "--property=StandardError=null",
                                 "--property=DefaultDependencies=no",
                                 "--property=Conflicts=shutdown.target",
                                 "--property=Before=shutdown.target",
                                 "--property=IgnoreOnIsolate=yes",
                                 "--property=Before=" + daemon_unit,
                                 "--property=PropagatesStopTo=" + daemon_unit};
  // A scope ends with its daemon, and this unit with the scope. A service whose daemon has died is started
  // again with the same pools, so this unit must not end then: its end would stop the service for good.
  const bool is_scope = daemon_unit.ends_with(".scope");
  words.push_back(fmt::format("--property={}={}", is_scope ? "BindsTo" : "PartOf", daemon_unit));
  words.insert(words.end(), disks.begin(), disks.end());
  words.insert(words.end(), {"--", "true"});
  return words;
}

bool has_scopes() {
  std::error_code error;
  return sd_booted() > 0 && std::filesystem::exists("/run/systemd/private", error);
}

}  // namespace kvcachefs
