// The file systems that are to be mounted here (fstab(5)). Any thread. Failure: ENODEV and a sentence.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/mountinfo.h"
#include "base/result.h"

namespace kvcachefs {

// Fails if fstab has a file system for the directory of this path that is not mounted: a file made there
// would be made on the disk below it, and be hidden later. An fstab that cannot be read has none; an empty
// path lies nowhere.
Result<void> check_is_mounted(const std::filesystem::path& path);
// Checks the spill path and the catalog path of a pool. The sentence of the error names the pool.
Result<void> check_disks_are_mounted(std::string_view pool, const std::filesystem::path& spill,
                                     const std::filesystem::path& catalog);
// For a test: another fstab, and other mounts.
Result<void> check_is_mounted(const std::filesystem::path& path, const std::string& fstab,
                              const std::vector<MountPoint>& mounts);

}  // namespace kvcachefs
