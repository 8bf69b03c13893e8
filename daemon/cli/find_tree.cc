// Finds the mount that a command is for, and checks that its daemon answers.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "daemon/cli/commands.h"
#include "daemon/running_daemon.h"

namespace kvcachefs {
namespace {

// Among several mounts, only the one that the process serves is looked at, because another's daemon may hang.
CliResult<std::string> mount_of_process(const std::vector<MountPoint>& mounts, pid_t process) {
  const std::string device = device_served_by(process);
  for (const std::string& root : find_kvcachefs_roots(mounts))
    if (const MountPoint* mount = find_mount(mounts, root); mount != nullptr && mount->device == device)
      return root;
  return stop(kNotMounted, fmt::format("process {} serves no kvcachefs that is mounted here", process));
}

CliResult<std::string> find_root(const CliArguments& arguments, const CliEnvironment& environment) {
  if (!arguments.mount.empty()) return arguments.mount;
  auto mounts = read_mounts(environment.mountinfo);
  if (!mounts) return pass(mounts);
  return arguments.pid > 0 ? mount_of_process(*mounts, arguments.pid)
                           : only_root(*mounts, "no kvcachefs is mounted");
}

}  // namespace

CliResult<std::string> mount_point_of(const CliArguments& arguments, const CliEnvironment& environment,
                                      std::string none) {
  auto mounts = read_mounts(environment.mountinfo);
  if (!mounts) return pass(mounts);
  if (arguments.mount.empty()) return only_root(*mounts, std::move(none));
  const MountPoint* const mount = find_mount(*mounts, arguments.mount);
  if (mount != nullptr && mount->type == kFileSystemType) return arguments.mount;
  Result<std::filesystem::path> path = resolve_mount_point(arguments.mount);
  if (!path) return pass(path);
  return path->native();
}

CliResult<std::string> only_root(const std::vector<MountPoint>& mounts, std::string none) {
  const std::vector<std::string> roots = find_kvcachefs_roots(mounts);
  if (roots.empty()) return stop(kNotMounted, std::move(none));
  if (roots.size() == 1) return roots.front();
  return stop(kUsage,
              fmt::format("several are mounted ({}): say which with --mount", fmt::join(roots, ", ")));
}

std::string daemon_is_gone(const std::filesystem::path& root) {
  return fmt::format("the daemon of {} is gone", root.native());
}

CliResult<void> await_answer(const MountTree& tree, Asker& asker) {
  const auto answered = asker.ask(tree.root(), [&tree]() -> Result<std::string> {
    if (auto good = tree.check(); !good) return pass(good);
    return std::string();
  });
  if (answered) return {};
  const Error& why = answered.error();
  if (why.code == ETIMEDOUT) return stop(kFailure, why.message);
  return stop(kNotMounted, is_daemon_gone(why.code) ? daemon_is_gone(tree.root()) : why.message);
}

CliResult<void> await_answer(const MountTree& tree, const CliEnvironment& environment) {
  Asker asker(environment.patience);
  return await_answer(tree, asker);
}

CliResult<MountTree> find_tree(const CliArguments& arguments, const CliEnvironment& environment,
                               Asker& asker) {
  CliResult<std::string> root = find_root(arguments, environment);
  if (!root) return std::unexpected(root.error());
  MountTree tree(std::move(*root));
  if (CliResult<void> answers = await_answer(tree, asker); !answers) return std::unexpected(answers.error());
  return tree;
}

CliResult<MountTree> find_tree(const CliArguments& arguments, const CliEnvironment& environment) {
  Asker asker(environment.patience);
  return find_tree(arguments, environment, asker);
}

}  // namespace kvcachefs
