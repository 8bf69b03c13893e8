#include "base/progress.h"

#include <sys/mman.h>

#include <new>

namespace kvcachefs {
namespace {

std::atomic<uint64_t> steps_of_this_process{0};

std::atomic<uint64_t>* share_steps() {
  void* const page =
      mmap(nullptr, sizeof(std::atomic<uint64_t>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return page == MAP_FAILED ? &steps_of_this_process : new (page) std::atomic<uint64_t>(0);
}

}  // namespace

// Because this runs before main(), it runs before any fork.
std::atomic<uint64_t>* const counted_steps = share_steps();

std::optional<uint64_t> steps_of_all_processes() {
  if (counted_steps == &steps_of_this_process) return std::nullopt;
  return counted_steps->load(std::memory_order_relaxed);
}

}  // namespace kvcachefs
