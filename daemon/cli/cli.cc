#include "daemon/cli/cli.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>

#include <array>
#include <cctype>
#include <cerrno>
#include <map>
#include <ostream>

#include "base/clock.h"
#include "base/mountinfo.h"
#include "base/sys.h"
#include "base/sys_disk.h"
#include "base/sys_process.h"
#include "daemon/cli/arguments.h"
#include "daemon/cli/commands.h"
#include "daemon/cli/mount_tree.h"
#include "daemon/cli/table.h"
#include "daemon/cli/views.h"
#include "daemon/config.h"
#include "daemon/running_daemon.h"
#include "fs/virtual_xattrs.h"
#include "tier/policies/policy.h"
#include "tier/pool_options.h"

namespace kvcachefs {
namespace {

constexpr std::string_view kSupervisorName = "kvcachefs-super\n";  // daemon/supervisor.cc
constexpr double kUpgradePatienceS = 30;
constexpr double kUpgradeLookS = 0.1;

constexpr size_t kMostFactBytes = 256;

std::string upper_case(std::string_view text) {
  std::string result(text);
  for (char& letter : result) letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  return result;
}

bool is_read_only(const MountTree& tree, const CliEnvironment& environment) {
  const auto mounts = read_mounts(environment.mountinfo);
  const MountPoint* const mount = mounts ? find_mount(*mounts, tree.root().native()) : nullptr;
  return mount != nullptr && is_read_only_everywhere(*mount);
}

CliResult<void> status(const MountTree& tree, const CliArguments& arguments,
                       const CliEnvironment& environment) {
  if (arguments.json) {
    Result<std::string> json = arguments.pool.empty() ? tree.read_daemon_file("stats.json")
                                                      : tree.read_control(arguments.pool, "stats.json");
    if (!json) return pass(json);
    environment.out << *json << '\n';
    return {};
  }
  if (arguments.pool.empty()) {
    CliResult<Sample> sample = take_sample(tree, environment);
    if (!sample) return std::unexpected(sample.error());
    environment.out << status_view(*sample);
    if (is_read_only(tree, environment))
      environment.out << fmt::format("\nall pools are read-only: `mount -o remount,rw {}` takes it back\n",
                                     tree.root().native());
    return {};
  }
  Result<StatsReading> stats = tree.pool_stats(arguments.pool);
  if (!stats) return pass(stats);
  PoolDetails details;
  for (const PoolSetting& setting : pool_settings())
    if (setting.is_shown())
      details[setting.file] = tree.read_control(arguments.pool, setting.file).value_or("");
  details["users"] = tree.read_control(arguments.pool, "users").value_or("");  // an older daemon has none
  environment.out << pool_view({arguments.pool, std::move(*stats)}, details);
  return {};
}

CliResult<void> evict(const MountTree& tree, const CliArguments& arguments,
                      const CliEnvironment& environment) {
  if (Result<void> done = tree.write_control(arguments.pool, "evict", arguments.order); !done)
    return pass(done);
  Result<std::string> report = tree.read_control(arguments.pool, "evict");
  if (!report) return pass(report);
  environment.out << *report << '\n';
  return {};
}

CliResult<void> remove(const MountTree& tree, const CliArguments& arguments, const CliEnvironment&) {
  return tree.delete_pool(arguments.pool, arguments.force);
}

// Each path is tried; the first failure decides the exit code.
CliResult<void> for_each_path(const CliArguments& arguments, const CliEnvironment& environment,
                              const std::function<Result<void>(int file, const std::string& path)>& act) {
  CliResult<void> first;
  for (const std::string& path : arguments.paths) {
    Result<UniqueFd> file = sys::open_at(AT_FDCWD, path.c_str(), O_PATH);
    const Result<void> done = file ? act(file->get(), path) : Result<void>(std::unexpected(file.error()));
    if (done) continue;
    const int code = done.error().code;
    std::string message = fmt::format("{}: {}", path, sys::error_text(code));
    if (code == ENOSPC) message += " (the pool's pinned_max is reached)";
    if (code == EOPNOTSUPP) message = fmt::format("{}: not on a kvcachefs", path);
    if (code == ENODATA) message = fmt::format("{}: no entry of a kvcachefs", path);
    if (first) {
      first = stop(is_daemon_gone(code) ? kNotMounted : kFailure, std::move(message));
    } else {
      environment.error << "kvcachefs: " << message << '\n';
    }
  }
  return first;
}

CliResult<void> pin(const CliArguments& arguments, const CliEnvironment& environment) {
  const char* const wanted = arguments.command == "pin" ? "1" : "0";
  return for_each_path(arguments, environment, [wanted](int file, const std::string&) {
    return sys::set_xattr(file, "user.kvcachefs.pinned", wanted, 0);
  });
}

CliResult<void> show_entries(const CliArguments& arguments, const CliEnvironment& environment) {
  std::vector<Table::Column> columns;
  for (const std::string_view name : kVirtualXattrs) columns.push_back({upper_case(name), Align::kLeft});
  columns.push_back({"PATH", Align::kLeft});
  Table table(std::move(columns));
  bool any = false;
  auto outcome =
      for_each_path(arguments, environment, [&](int file, const std::string& path) -> Result<void> {
        std::vector<std::string> cells;
        for (const std::string_view name : kVirtualXattrs) {
          std::array<char, kMostFactBytes> value{};
          const auto size =
              sys::get_xattr(file, (std::string(kVirtualPrefix) + std::string(name)).c_str(), value);
          const bool absent = !size && size.error().code == ENODATA;
          if (!size && (!absent || cells.empty())) return fail(size.error().code);
          cells.push_back(absent ? "-" : std::string(value.data(), *size));
        }
        cells.push_back(path);
        table.add(std::move(cells));
        any = true;
        return {};
      });
  if (any) environment.out << table.text();
  return outcome;
}

CliResult<void> show_policies(const CliArguments&, const CliEnvironment& environment) {
  Table table({{"POLICY", Align::kLeft}, {"WHAT LEAVES FIRST", Align::kLeft}});
  for (const PolicyInfo& info : policies())
    table.add({std::string(info.name), std::string(info.description)});
  environment.out << table.text();
  return {};
}

CliResult<void> print_version(const MountTree& tree, const CliEnvironment& environment) {
  Result<std::string> version = tree.read_daemon_file("version");
  if (!version) return pass(version);
  environment.out << tree.root().native() << ": " << *version << '\n';
  return {};
}

// The supervisor takes the signal, asks the installed program whether it could go on, and becomes that
// program.
CliResult<void> upgrade(const MountTree& tree, const CliArguments&, const CliEnvironment& environment) {
  Result<StatsReading> daemon = tree.daemon_stats();
  if (!daemon) return pass(daemon);
  const auto supervisor = static_cast<pid_t>(daemon->number("supervisor_pid"));
  constexpr std::string_view kNoSupervisor =
      "the daemon has no supervisor (no_supervisor, io_uring, or the supervisor has died): stop and start it "
      "instead";
  if (supervisor == 0) return stop(kFailure, std::string(kNoSupervisor));
  // The supervisor's number is valid in the daemon's PID namespace only, and the supervisor may have died
  // since it was read.
  const auto process = sys::open_process(supervisor);
  const auto name = sys::read_text(fmt::format("/proc/{}/comm", supervisor).c_str());
  if (!process || !name || *name != kSupervisorName)
    return stop(kFailure, fmt::format("process {} is not the daemon's supervisor here", supervisor));
  Result<StatsReading> before = tree.daemon_stats("upgrades");
  if (!before) return pass(before);
  auto sent = sys::has_ended(process->get()) ? fail(ESRCH) : sys::send_signal_to(process->get(), SIGHUP);
  if (!sent && sent.error().code == ESRCH) return stop(kFailure, std::string(kNoSupervisor));
  if (!sent)
    return stop(kFailure, fmt::format("process {}: {}", supervisor, sys::error_text(sent.error().code)));
  for (double waited_s = 0; waited_s < kUpgradePatienceS; waited_s += kUpgradeLookS) {
    if (!environment.wait(kUpgradeLookS)) break;
    Result<StatsReading> after = tree.daemon_stats("upgrades");
    // As long as there is a supervisor, it replaces an aborted connection.
    const bool is_gone = !after && is_daemon_gone(after.error().code);
    if (is_gone && sys::has_ended(process->get())) return pass(after);
    if (!after) continue;
    if (after->number("refused") != before->number("refused")) return stop(kFailure, after->text("reason"));
    if (after->number("done") != before->number("done")) return print_version(tree, environment);
    // If the new program ends before it serves, the previous program goes on as another process.
    if (!sys::has_ended(process->get())) continue;
    daemon = tree.daemon_stats();
    if (daemon && daemon->number("supervisor_pid") == 0) return stop(kFailure, std::string(kNoSupervisor));
  }
  return stop(kNotKnownYet, fmt::format("process {} has neither become another nor refused to, in {} s: its "
                                        "log and .kvcachefs/upgrades will say",
                                        supervisor, kUpgradePatienceS));
}

CliResult<void> show_help(const CliArguments& arguments, const CliEnvironment& environment) {
  environment.out << arguments.help;
  return {};
}

CliResult<void> show_version(const CliArguments& arguments, const CliEnvironment& environment) {
  environment.out << "kvcachefs " KVCACHEFS_VERSION "\n";
  CliResult<MountTree> tree = find_tree(arguments, environment);
  if (!tree) {
    // A daemon that is missing is a failure only if its mount was named.
    if (arguments.mount.empty()) return {};
    return std::unexpected(tree.error());
  }
  return print_version(*tree, environment);
}

CliResult<void> execute(const CliArguments& arguments, const CliEnvironment& environment) {
  using Alone = CliResult<void> (*)(const CliArguments&, const CliEnvironment&);
  using OnMount = CliResult<void> (*)(const MountTree&, const CliArguments&, const CliEnvironment&);
  static const std::map<std::string_view, Alone> alone{
      {"check", check},   {"help", show_help},         {"metrics", metrics},
      {"pin", pin},       {"policies", show_policies}, {"prefix-hash", prefix_hash},
      {"report", report}, {"stat", show_entries},      {"stop", stop_daemon},
      {"unpin", pin},     {"version", show_version}};
  static const std::map<std::string_view, OnMount> on_mount{
      {"create", create},     {"delete", remove},         {"evict", evict}, {"forget-agent", forget_agent},
      {"get", get},           {"index", index_records},   {"list", list},   {"match", match},
      {"prefetch", prefetch}, {"remove", remove_entries}, {"reset", reset}, {"scrub", scrub},
      {"set", set},           {"similar", similar},       {"stats", stats}, {"status", status},
      {"top", top},           {"upgrade", upgrade}};
  if (const auto command = alone.find(arguments.command); command != alone.end())
    return command->second(arguments, environment);
  CliResult<MountTree> tree = find_tree(arguments, environment);
  if (!tree) return std::unexpected(tree.error());
  return on_mount.at(arguments.command)(*tree, arguments, environment);
}

}  // namespace

CliResult<Sample> take_sample(const MountTree& tree, const CliEnvironment& environment) {
  if (auto answers = await_answer(tree, environment); !answers) return std::unexpected(answers.error());
  Sample sample;
  sample.time_s = static_cast<double>(now_ns()) / 1e9;
  sample.mount = tree.root().native();
  Result<StatsReading> daemon = tree.daemon_stats();
  if (!daemon) return pass(daemon);
  sample.daemon = std::move(*daemon);
  Result<std::vector<std::string>> pools = tree.pools();
  if (!pools) return pass(pools);
  for (const std::string& pool : *pools) {
    Result<StatsReading> stats = tree.pool_stats(pool);
    if (stats) {
      sample.pools.push_back({pool, std::move(*stats)});
    } else if (stats.error().code != ENOENT) {  // ENOENT: the pool was deleted meanwhile
      return pass(stats);
    }
  }
  return sample;
}

int run_cli(int argc, const char* const* argv, const CliEnvironment& environment) {
  Result<CliArguments> arguments = parse_cli_arguments(argc, argv);
  if (!arguments) {
    environment.error << "kvcachefs: " << arguments.error().message << '\n';
    return kUsage;
  }
  CliResult<void> done = execute(*arguments, environment);
  environment.out.flush();
  if (!done) {
    environment.error << "kvcachefs: " << done.error().message << '\n';
    return done.error().exit_code;
  }
  if (!environment.out) {
    environment.error << "kvcachefs: the output could not be written\n";
    return kFailure;
  }
  return kOk;
}

}  // namespace kvcachefs
