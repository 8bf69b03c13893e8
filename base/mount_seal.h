// The directory below a mount, sealed: it takes no writes while nothing is mounted there. Otherwise programs
// that go on after the end of a mount fill the disk below, and the next mount hides what they have written.
// The seal is the immutable flag (chattr(1)), which stops root, too, and where the file system has no such
// flag, mode 0000. A mount over a sealed directory works. Any thread. Failure: errno and a sentence; the
// directory is as it was.
#pragma once

#include <string>

#include "base/result.h"

namespace kvcachefs {

// Whatever is mounted on the directory is left alone. Returns false if the directory is left as it is because
// it has content.
Result<bool> seal_mount_point(const std::string& directory);

}  // namespace kvcachefs
