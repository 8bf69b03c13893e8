// The files of the mount's `.kvcachefs` directory, which concern the whole daemon. All but one are read-only.
// That one and access_log are the administrator's. Thread safety: any thread. Failure: none.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "fs/control/control_file.h"
#include "fs/control/stats.h"

namespace kvcachefs {

struct ControlledServer {
  ServerInfo info;
  std::function<Children::Upgrades()> upgrades;
  std::function<size_t()> pool_count;
  std::function<std::vector<PoolReport>()> pool_reports;
  // Makes a pool that counts as one of the configuration: NAME:key=value,...
  std::function<Result<void>(std::string_view spec)> configure;
  std::function<Result<std::unique_ptr<ControlReader>>()> access_log;
};

using ServerFile = ControlFile<const ControlledServer>;

std::span<const ServerFile> server_files();

}  // namespace kvcachefs
