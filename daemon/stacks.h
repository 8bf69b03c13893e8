// Where the threads of a serving process are, for the log of one that hangs. let_stacks_be_printed() is
// called in that process before it has threads; log_stacks() in another, which must be allowed to signal and
// to look at it. Never fails: what cannot be found out is left out.
#pragma once

#include <sys/types.h>

#include <csignal>

namespace kvcachefs {

// Threads must not block it.
inline constexpr int kStackSignal = SIGUSR2;

void let_stacks_be_printed();
// Each thread's name and what it waits for in the kernel, and then, printed by the thread itself unless it
// waits there without minding signals, its calls. Takes some milliseconds a thread.
void log_stacks(pid_t process);

}  // namespace kvcachefs
