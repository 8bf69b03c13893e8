// A serving child, as the supervisor sees it: a process that shares its table of descriptors. Main thread.
// Failure: what cannot be found out is taken for life, never for death.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <set>

namespace kvcachefs {

// Descriptors a process may have. As many as there can be (`raise`): each removed directory or O_TMPFILE that
// the kernel still knows holds one, and in daemon I/O each open entry.
void raise_descriptor_limit();
uint64_t descriptor_limit();

// fork(2) that shares the table of descriptors; glibc's has no way to ask for it. The child has one thread,
// as this process has. The table is one but its limit is each process' own, and the child's is lower: however
// many it has, there are some left for the supervisor.
pid_t fork_sharing_descriptors();

// Whether a child that was killed has ended but for the one thread that tells the kernel of discarded names:
// that may wait, and cannot be killed, for a directory that a client holds who waits for an answer, which
// only the next child gives. No pidfd and no waitpid(2) tells of that (Linux 6.15, fs/pidfs.c). Any other
// thread may be in the midst of a write, to the disk or to an entry, which has to have ended before somebody
// else decides what is where. True only if every thread's state could be read, and each is such that it never
// comes back to what it was doing.
bool has_ended_but_for_notifier(pid_t child);

// Closes all descriptors but the standard ones and these.
void close_all_but(const std::set<int>& kept);

}  // namespace kvcachefs
