// A serving child, as the supervisor sees it: a process that shares the supervisor's table of descriptors.
// Main thread. Failure: a child of which something cannot be found out counts as alive, never as dead.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>

namespace kvcachefs {

// The descriptors that a process may have. `raise` makes them as many as the system allows: each removed
// directory and each O_TMPFILE that the kernel still knows holds one, and in daemon I/O so does each open
// entry.
void raise_descriptor_limit();
uint64_t descriptor_limit();

// A fork(2) that shares the table of descriptors; glibc's fork() cannot be asked for that. The child has one
// thread, as this process has. The table is shared, but each process has its own limit, and the child's is
// lower: even if the child reaches its limit, some descriptors are left for the supervisor.
pid_t fork_sharing_descriptors();

// A process that fork_sharing_descriptors() has made lets go of the shared table: it has only the standard
// descriptors from here on, and never had copies of the others. In a plain fork, an entry that is being
// evicted at that moment would keep the evictor's lease and could not be opened (fcntl(2), EWOULDBLOCK).
void leave_shared_descriptors();

// If the kernel has to kill the supervisor or its child for memory, it takes the child, which calls this and
// which another follows: with the supervisor the mount ends. One more is a thousandth of the memory
// (proc(5), oom_score_adj).
void go_before_the_supervisor();

// True if a child that was killed has ended except for threads that tell the kernel of discarded names. Such
// a thread may wait, and cannot be killed, for the lock of a directory that a client's call holds while the
// call waits for an answer, and only the next child gives that answer. Neither a pidfd nor waitpid(2) reports
// this state (Linux 6.15, fs/pidfs.c). Any other thread may be in the midst of a write to the disk or to an
// entry, and that write must have ended before another process decides where an entry's bytes are. The result
// is true only if every thread's state could be read, and no thread can come back to what it was doing.
bool has_ended_but_for_notifiers(pid_t child);

// True if the child has ended, by the kernel's report or but for such threads. The child is not reaped.
bool child_has_ended(pid_t child);

// True if any of the child's threads waits where signals do not reach it, for example for a disk.
bool waits_in_kernel(pid_t child);

// The name of a thread of the child that is in one such wait all the time, for `bound`: the child could not
// be made to end now. The call returns at once where no thread waits, and as soon as none is in the wait that
// it was in at first. A thread that tells the kernel of discarded names does not count: the next child ends
// its wait.
std::optional<std::string> hung_thread(pid_t child, std::chrono::milliseconds bound);

// The call closes all descriptors except 0 to 2 and the given ones.
void close_all_but(const std::set<int>& kept);

}  // namespace kvcachefs
