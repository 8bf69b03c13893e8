// The command line of mount.kvcachefs, as mount(8) gives it. One thread, because getopt(3) has global
// state. Fails with EINVAL and one line.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "daemon/cli/mount_tree.h"

namespace kvcachefs {

struct MountArguments {
  std::string pool;
  std::filesystem::path directory;  // where the pool is to be mounted
  std::filesystem::path base;       // where the daemon mounts all pools
  std::filesystem::path runtime_dir = "/run/kvcachefs";
  std::string config_file;                  // for a daemon that is started; empty: none
  GivenSettings settings;                   // of the pool
  std::vector<std::string> daemon_options;  // for a daemon that is started
  bool seals = true;                        // `directory`, while it is not mounted (base/mount_seal.h)
  bool remount = false;                     // change the flags of the mount that is there, and nothing else
  bool read_only = false;
  bool no_exec = false;
  bool no_symbolic_links = false;  // nosymfollow: no symbolic link is followed below the directory
  bool fake = false;               // check the arguments, mount nothing
  bool verbose = false;
};

// `memory_bytes` is what a size in percent refers to.
Result<MountArguments> parse_mount_arguments(int argc, const char* const* argv, uint64_t memory_bytes);

}  // namespace kvcachefs
