// foreign_content() tells what content a disk or file carries that is not kvcachefs', by libblkid
// (foreign_content.cc is its only includer). Any thread; blocks on reads. The path may be /proc/self/fd/N.
// Failure: EIO where the content cannot be read.
#pragma once

#include <string>

#include "base/result.h"

namespace kvcachefs {

// "a file system (ext4)", "a partition table (gpt)", …; empty if libblkid finds nothing.
Result<std::string> foreign_content(const std::string& path);

// wipe_foreign_content() removes the signatures, so that no other program takes the disk for its own.
Result<void> wipe_foreign_content(const std::string& path);

}  // namespace kvcachefs
