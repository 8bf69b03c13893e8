// The places where the threads of a serving process are, for the log of one that hangs. That process calls
// let_stacks_be_printed() before it has threads. Another process calls log_stacks(), and must be allowed to
// signal the first and to look at it. Never fails: what cannot be found out is left out.
#pragma once

#include <sys/types.h>

#include <csignal>

namespace kvcachefs {

// Threads must not block this signal.
inline constexpr int kStackSignal = SIGUSR2;

void let_stacks_be_printed();
// The log gets each thread's name and what the thread waits for in the kernel. Each thread also prints its
// own calls, unless it waits in the kernel where signals do not reach it. The call takes 20 ms a thread. With
// `reads_are_deadly`, what each thread was reading (base/risky_read.h) is noted as what ended the process.
void log_stacks(pid_t process, bool reads_are_deadly = false);

}  // namespace kvcachefs
