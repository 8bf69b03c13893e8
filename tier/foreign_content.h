// Tells what a disk or file carries that is not ours, by libblkid (foreign_content.cc is its only includer).
// Any thread; blocks on reads. The path may be /proc/self/fd/N. Fails with EIO where the content cannot be
// read.
#pragma once

#include <string>

#include "base/result.h"

namespace kvcachefs {

// "a file system (ext4)", "a partition table (gpt)", …; empty if nothing is known of it.
Result<std::string> foreign_content(const std::string& path);

// Removes the signatures, so that no other program takes the disk for its own any more.
Result<void> wipe_foreign_content(const std::string& path);

}  // namespace kvcachefs
