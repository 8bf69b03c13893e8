#include "daemon/mount_helper/arguments.h"

#include <fmt/format.h>
#include <getopt.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/key_value.h"
#include "base/mountinfo.h"
#include "daemon/command_line.h"
#include "tier/pool_options.h"

namespace kvcachefs {
namespace {

// Options of mount(8) and fstab that are passed over: those that mount(8) handles, those that the daemon's
// mount has in any case (nosuid, nodev), and those that a cache decides itself (times, locks, sync).
constexpr std::array kIgnoredMountOptions = std::to_array<std::string_view>(
    {"allow_other", "async",   "atime",    "auto",       "_netdev",       "defaults", "dev",
     "diratime",    "dirsync", "group",    "iversion",   "lazytime",      "loud",     "mand",
     "noatime",     "noauto",  "nodev",    "nodiratime", "nofail",        "nogroup",  "noiversion",
     "nolazytime",  "nomand",  "noowner",  "norelatime", "nostrictatime", "nosuid",   "nouser",
     "nousers",     "owner",   "relatime", "silent",     "strictatime",   "suid",     "sync",
     "user",        "users"});

bool is_ignored(std::string_view option, std::string_view key) {
  return std::ranges::find(kIgnoredMountOptions, option) != kIgnoredMountOptions.end() || key == "comment" ||
         key.starts_with("x-") || key.starts_with("X-") ||
         key == "user";  // user=NAME: who mounts what fstab lets users mount
}

bool has_remount(std::string_view list) {
  while (!list.empty())
    if (take_part(list, ',') == "remount") return true;
  return false;
}

struct Parser {
  MountArguments arguments;
  std::vector<std::string_view> positional;
  std::vector<std::string_view> lists;
  Config daemon;  // as the options for the daemon make it
  bool sloppy = false;

  Result<void> flags(int argc, const char* const* argv) {
    ::optind = 0;  // getopt begins anew
    // `-`: what is no flag comes in its turn, and argv keeps its order. `:`: the caller reports mistakes.
    for (int flag = 0; (flag = ::getopt(argc, const_cast<char* const*>(argv), "-:sfnvo:t:N:")) != -1;) {
      if (flag == '?') return fail(EINVAL, fmt::format("-{}: unknown option", static_cast<char>(::optopt)));
      if (flag == ':') return fail(EINVAL, fmt::format("-{}: needs a value", static_cast<char>(::optopt)));
      if (flag == 1) positional.push_back(::optarg);
      if (flag == 's') sloppy = true;
      if (flag == 'f') arguments.fake = true;
      if (flag == 'v') arguments.verbose = true;
      if (flag == 'o') lists.push_back(::optarg);
    }
    positional.insert(positional.end(), argv + ::optind, argv + argc);  // after `--`
    return {};
  }

  Result<void> option(std::string_view option, uint64_t memory_bytes) {
    const auto [key, given] = split_key_value(option);
    const std::string_view value = given.value_or("");
    if (find_pool_setting(key) != nullptr) {
      PoolOptions scratch;
      if (Result<void> good = set_pool_option(scratch, key, value, memory_bytes); !good) return good;
      arguments.settings.emplace_back(key, value);
    } else if (find_daemon_setting(key) != nullptr || key == "state_dir") {
      // A daemon that serves already is not asked, and would not say that the option is wrong.
      if (Result<void> good = set_daemon_option(daemon, option, memory_bytes); !good) return good;
      arguments.daemon_options.emplace_back(option);
    } else if (key == "mountpoint" || key == "runtime_dir" || key == "config") {
      if (!value.starts_with('/'))
        return fail(EINVAL, fmt::format("{}: '{}' is not an absolute path", key, value));
      if (key == "mountpoint") arguments.base = std::filesystem::path(value).lexically_normal();
      if (key == "runtime_dir") arguments.runtime_dir = std::filesystem::path(value).lexically_normal();
      if (key == "config") arguments.config_file = value;
    } else if (option == "remount") {
      arguments.remount = true;
    } else if (option == "ro" || option == "rw") {
      arguments.read_only = option == "ro";
    } else if (option == "noexec" || option == "exec") {
      arguments.no_exec = option == "noexec";
    } else if (option == "nosymfollow" || option == "symfollow") {
      arguments.no_symbolic_links = option == "nosymfollow";
    } else if (!sloppy && !is_ignored(option, key)) {
      return fail(EINVAL, fmt::format("{}: unknown option", option));
    }
    return {};
  }
};

}  // namespace

Result<MountArguments> parse_mount_arguments(int argc, const char* const* argv, uint64_t memory_bytes) {
  Parser parser;
  if (Result<void> done = parser.flags(argc, argv); !done) return pass(done);
  if (parser.positional.size() != 2)
    return fail(EINVAL, "usage: mount.kvcachefs POOL DIR [-sfnv] [-o OPTION,...]");
  // With `remount` mount(8) passes what the mount table has, of which some is no user's option.
  parser.sloppy |= std::ranges::any_of(parser.lists, has_remount);
  for (std::string_view list : parser.lists) {
    while (!list.empty()) {
      const std::string_view option = take_part(list, ',');
      if (option.empty()) continue;
      if (Result<void> done = parser.option(option, memory_bytes); !done) return pass(done);
    }
  }
  MountArguments& arguments = parser.arguments;
  arguments.pool = parser.positional[0];
  if (Result<void> good = check_pool_name(arguments.pool); !good) return pass(good);
  Result<std::filesystem::path> directory = resolve_mount_point(parser.positional[1]);
  if (!directory) return pass(directory);
  arguments.directory = std::move(*directory);
  // A base of the administrator's choice is one that servers may use, so that the daemon seals it, too.
  if (arguments.base.empty())
    arguments.base = arguments.runtime_dir / "mount";
  else if (!parser.daemon.seal)
    arguments.daemon_options.emplace_back("seal=on");
  // The base is named as the mount table names it, also where it does not exist yet.
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::weakly_canonical(arguments.base.parent_path(), error);
  if (!error) arguments.base = parent / arguments.base.filename();
  for (const std::filesystem::path& place : {arguments.directory, arguments.base})
    if (Result<void> good = check_mount_place(place); !good) return pass(good);
  arguments.seals = parser.daemon.seal.value_or(true);
  return std::move(arguments);
}

}  // namespace kvcachefs
