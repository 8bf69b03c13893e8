// Memory that a tmpfs file was given and that no process has written: reserved memory that became a hole
// within the file's size. The kernel tells of a hole by SEEK_DATA, except for a part of a large page that
// also has written bytes: that part is zeros, and is found by reading.
//
// Any thread; no state. Failure: memory that cannot be looked at or given back stays as it is.
#pragma once

#include <cstdint>

namespace kvcachefs {

// may_have_unwritten() guesses whether a file has such memory; a process may still be writing it. The call
// takes a few microseconds. `reserved_end`: memory was reserved up to this offset; allocated and unwritten
// memory beyond it was allocated by the file's owner.
bool may_have_unwritten(int fd, uint64_t reserved_end, uint64_t size);
enum class GivenBack { kNothing, kSome, kMoreToCome };
// The caller makes sure that no process can write the file: a page written between the look and the punch
// would be lost. The file's times change. kMoreToCome: the call has used up its time and is to be made again.
GivenBack give_back_unwritten(int fd, uint64_t reserved_end, uint64_t size);
// The caller has allocated memory in a file with holes. Large pages may have filled parts of this hole, from
// `begin` on and up to `end`; they are given back.
void keep_hole(int fd, uint64_t begin, uint64_t end);

}  // namespace kvcachefs
