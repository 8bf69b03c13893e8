// Steps of work whose length is not known beforehand are counted. The count lies in memory that the process
// shares with the process that forked it; that process tells by the count a slow process from one that hangs
// (daemon/takeover_watch.h). A step takes milliseconds at most unless the kernel waits for a disk: an entry,
// a record. Any thread. Never fails: if the shared memory cannot be had, no other process sees the steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

namespace kvcachefs {

// The steps since the program began, of this process and all that were forked from it.
extern std::atomic<uint64_t>* const counted_steps;

inline void count_step() {
  counted_steps->fetch_add(1, std::memory_order_relaxed);
}

std::optional<uint64_t> steps_of_all_processes();  // none: the count is not shared

}  // namespace kvcachefs
