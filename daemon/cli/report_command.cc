// `report`: all that a ticket asks for, as one text. A part that cannot be read is replaced by the reason.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cerrno>
#include <ostream>

#include "base/escape.h"
#include "base/key_value.h"
#include "base/size.h"
#include "base/sys.h"
#include "base/sys_disk.h"
#include "daemon/cli/commands.h"
#include "daemon/cli/daemon_process.h"
#include "daemon/cli/masked_names.h"
#include "daemon/log_file.h"
#include "daemon/running_daemon.h"
#include "daemon/system_check/gather.h"
#include "daemon/system_check/judge.h"
#include "daemon/system_check/table.h"

namespace kvcachefs {
namespace {

constexpr size_t kLogLines = 200;
constexpr const char* kService = "kvcachefs.service";  // as the packages have it

std::string or_why(Result<std::string> text) {
  if (!text) return fmt::format("cannot be had: {}\n", text.error().message);
  return text->empty() || text->ends_with('\n') ? *text : *text + '\n';
}

// The lines may contain control characters that other users wrote, and a terminal would obey those.
std::string without_effect(std::string_view text) {
  std::string out;
  for (const char character : text) {
    if (is_control(character) && character != '\n' && character != '\t')
      out += escaped({&character, 1});
    else
      out += character;
  }
  return out;
}

void section(const CliEnvironment& environment, std::string_view title, std::string_view text) {
  environment.out << "== " << title << '\n'
                  << without_effect(text) << (text.empty() ? "none\n" : "") << '\n'
                  << std::flush;
}

std::string lines_with(const Result<std::string>& text, std::initializer_list<std::string_view> starts) {
  if (!text) return or_why(text);
  std::string out;
  for (std::string_view rest = *text; !rest.empty();) {
    const std::string_view line = take_part(rest, '\n');
    for (const std::string_view start : starts)
      if (line.starts_with(start)) out += std::string(line) + '\n';
  }
  return out;
}

std::string versions(const MountTree* tree) {
  utsname kernel{};
  (void)::uname(&kernel);
  return fmt::format("tool: {}\ndaemon: {}kernel: {} {} {}\n{}", KVCACHEFS_VERSION,
                     tree == nullptr ? "cannot be had\n" : or_why(tree->read_daemon_file("version")),
                     kernel.release, kernel.version, kernel.machine,
                     lines_with(sys::read_text("/etc/os-release"), {"PRETTY_NAME="}));
}

std::string configuration(const MountTree& tree, const std::vector<std::string>& pools) {
  std::string out;
  for (const std::string& pool : pools)
    out += fmt::format("pool {}\n{}", pool, or_why(tree.read_control(pool, "settings")));
  return out;
}

std::string statistics(const MountTree& tree, const std::vector<std::string>& pools) {
  std::string out = or_why(tree.read_daemon_file("stats"));
  for (const std::string& pool : pools)
    out += fmt::format("\npool {}\n{}", pool, or_why(tree.read_control(pool, "stats")));
  return out;
}

std::string mount_lines(const CliEnvironment& environment, const std::string& runtime_dir) {
  const auto mounts = read_mounts(environment.mountinfo);
  if (!mounts) return fmt::format("cannot be had: {}\n", mounts.error().message);
  std::string out;
  for (const MountPoint& mount : *mounts)
    if (mount.type == kFileSystemType || mount.directory.starts_with(runtime_dir))
      out += fmt::format("{} {} root={} {} {}\n", mount.directory, mount.type, mount.root, mount.device,
                         mount.options);
  return out;
}

// The host's memory, and the limits of the daemon's cgroups, or of this process's if there is no daemon.
std::string memory(pid_t process) {
  std::string out =
      lines_with(sys::read_text("/proc/meminfo"), {"MemTotal", "MemFree", "MemAvailable", "Cached", "Shmem",
                                                   "Swap", "Huge", "AnonHuge", "Mlocked", "Commit"});
  const std::string of = process > 0 ? std::to_string(process) : "self";
  const auto groups = sys::read_text(fmt::format("/proc/{}/cgroup", of).c_str());
  if (!groups) return out + or_why(groups);
  for (std::string_view rest = *groups; !rest.empty();) {
    const std::string_view line = take_part(rest, '\n');
    if (!line.starts_with("0::")) continue;
    std::string group(line.substr(3));
    out += fmt::format("cgroup {}\n", group);
    for (;;) {
      for (const char* const file : {"memory.max", "memory.high", "memory.swap.max", "memory.current"}) {
        const auto value =
            sys::read_text(fmt::format("/sys/fs/cgroup{}/{}", group == "/" ? "" : group, file).c_str());
        if (value) out += fmt::format("{} {} {}", group, file, *value);  // the root has none
      }
      if (group.size() <= 1) break;
      group.resize(std::max<size_t>(group.rfind('/'), 1));
    }
  }
  return out;
}

std::string disks(const MountTree& tree, const CliEnvironment& environment,
                  const std::vector<std::string>& pools) {
  const auto mounts = read_mounts(environment.mountinfo);
  std::string out;
  for (const std::string& pool : pools) {
    const std::string spill = tree.read_setting(pool, "spill").value_or("");
    if (!spill.starts_with('/')) continue;
    out += fmt::format("pool {}: {}: ", pool, spill);
    const Result<UniqueFd> file = sys::open_at(AT_FDCWD, spill.c_str(), O_PATH);
    const auto status = file ? sys::stat_of(file->get()) : Result<struct stat>(std::unexpected(file.error()));
    if (!status) {
      out += fmt::format("cannot be had: {}\n", sys::error_text(status.error().code));
      continue;
    }
    if (S_ISBLK(status->st_mode)) {
      out += "a block device\n";
      continue;
    }
    const auto space = sys::statfs_of(file->get());
    const MountPoint* where = nullptr;
    for (size_t at = 0; mounts && at < mounts->size(); ++at) {
      const MountPoint& mount = (*mounts)[at];
      const bool is_above = mount.directory == "/" || spill.starts_with(mount.directory + '/');
      if (is_above && (where == nullptr || mount.directory.size() >= where->directory.size())) where = &mount;
    }
    out += fmt::format("{}, on {} at {}", format_size(static_cast<uint64_t>(status->st_size)),
                       where == nullptr ? "?" : where->type, where == nullptr ? "?" : where->directory);
    if (space)
      out +=
          fmt::format(", {} of {} free", format_size(space->f_bavail * static_cast<uint64_t>(space->f_bsize)),
                      format_size(space->f_blocks * static_cast<uint64_t>(space->f_bsize)));
    out += '\n';
  }
  return out;
}

// Without a running daemon, the log is found by the mount's name. The service's journal may be of another
// mount, so it is taken only if the daemon is gone.
std::vector<DaemonLog> logs(pid_t process, const std::string& file, bool is_gone) {
  if (process > 0) return {log_of(process, file)};
  std::vector<DaemonLog> all;
  if (!file.empty()) all.push_back(log_in(file));
  if (file.empty()) all.push_back({"of a daemon in the background", fail(ENOENT, "--mount says of which")});
  if (is_gone) all.push_back(journal_of(kService));
  return all;
}

std::string last_lines(const DaemonLog& log, bool with_names, const std::vector<std::string>& directories) {
  std::string out = log.place + '\n';
  if (!log.end) return out + or_why(log.end);
  std::vector<std::string_view> lines;
  for (std::string_view rest = *log.end; !rest.empty();) lines.push_back(take_part(rest, '\n'));
  for (size_t at = lines.size() - std::min(lines.size(), kLogLines); at < lines.size(); ++at)
    out += (with_names ? std::string(lines[at]) : masked_names(lines[at], directories)) + '\n';
  return out;
}

}  // namespace

CliResult<void> report(const CliArguments& arguments, const CliEnvironment& environment) {
  const CliResult<MountTree> found = find_tree(arguments, environment);
  const MountTree* const tree = found ? &*found : nullptr;
  const std::vector<std::string> pools =
      tree == nullptr ? std::vector<std::string>() : tree->pools().value_or(std::vector<std::string>());
  const std::string gone = found ? std::string() : fmt::format("cannot be had: {}\n", found.error().message);
  section(environment, "versions", versions(tree));
  const SystemFacts facts = gather_system_facts(std::nullopt);
  section(environment, "system", format_system(judge_system(facts), facts.release));
  const auto number =
      tree == nullptr ? 0 : static_cast<pid_t>(tree->daemon_stats().value_or(StatsReading()).number("pid"));
  const pid_t process = is_daemon(number) ? number : 0;
  const std::string unseen = gone.empty() ? "cannot be had: its process is not seen from here\n" : gone;
  section(environment, "command line", process > 0 ? or_why(command_line_of(process)) : unseen);
  section(environment, "configuration file", process > 0 ? or_why(configuration_files_of(process)) : unseen);
  section(environment, "configuration", tree == nullptr ? gone : configuration(*tree, pools));
  section(environment, "statistics", tree == nullptr ? gone : statistics(*tree, pools));
  section(environment, "upgrades", tree == nullptr ? gone : or_why(tree->read_daemon_file("upgrades")));
  section(environment, "mounts", mount_lines(environment, arguments.runtime_dir));
  section(environment,
          process > 0 ? "memory of the daemon" : "memory, of this process: the daemon cannot be asked",
          memory(process));
  section(environment, "disks", tree == nullptr ? gone : disks(*tree, environment, pools));
  std::vector<std::string> directories;
  for (const std::string& pool : pools) {
    directories.push_back(tree->pool_path(pool));
    directories.push_back(RuntimeDir::directory_of(arguments.runtime_dir, tree->root()) + '/' + pool);
  }
  if (tree == nullptr) {  // which pools there were is not known
    directories =
        find_kvcachefs_roots(read_mounts(environment.mountinfo).value_or(std::vector<MountPoint>()));
    directories.push_back(arguments.runtime_dir);
    if (!arguments.mount.empty()) directories.push_back(arguments.mount);
  }
  const std::string mount = mount_point_of(arguments, environment, "").value_or(arguments.mount);
  const std::string file = mount.empty() ? "" : log_path(arguments.runtime_dir, mount);
  for (const DaemonLog& log : logs(process, file, tree == nullptr))
    section(environment, "log", last_lines(log, arguments.names, directories));
  return {};
}

}  // namespace kvcachefs
