// The log of a daemon that runs in the background: the file that stderr leads to, one for each mount point,
// because daemons that share a runtime directory would rename each other's. When the file has grown to
// its limit, it is renamed to NAME.1, which replaces the earlier NAME.1, and a new one is begun. Supervisor
// and child share their table of descriptors, so either of them does this for both. One thread at a time.
// Failure: the log goes on where it goes.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace kvcachefs {

inline constexpr uint64_t kMostLogBytes = uint64_t{16} << 20;

std::string log_path(const std::string& runtime_dir, const std::string& mountpoint);
// ENAMETOOLONG if a name of the log is longer than a file system has them.
Result<void> check_log_path(const std::string& path);
// The call makes stderr lead to the file.
void log_to(const std::string& path);
// The caller calls this several times a second. Nothing happens if stderr leads elsewhere.
void keep_log_bounded(const std::string& path, uint64_t most_bytes = kMostLogBytes);

}  // namespace kvcachefs
