// The call removes everything in a directory, in time and memory that do not depend on how deep the tree is:
// a directory two levels down that is not empty is first moved up into the top directory. Any thread, with
// the caller's rights. Failure: the errno of something that cannot be removed, after everything else is
// removed. The call goes on for as long as another process goes on making directories in the tree.
#pragma once

#include "base/result.h"

namespace kvcachefs {

Result<void> empty_directory(int directory);

}  // namespace kvcachefs
