// Removes all that is in a directory, in time and memory that do not depend on how deep it goes: what lies in
// a directory there is first moved up. Any thread, with the caller's rights. Failure: errno of what cannot be
// removed, after all else is; it goes on as long as somebody else goes on making directories in it.
#pragma once

#include "base/result.h"

namespace kvcachefs {

Result<void> empty_directory(int directory);

}  // namespace kvcachefs
