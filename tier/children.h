// What is in a directory, or in all of a tree. Any thread. A directory that cannot be read to its end gives
// what was read; one of a tree that cannot be opened is said in the log.
#pragma once

#include <fcntl.h>

#include <cstdint>
#include <functional>
#include <string>

#include "alloc/memory_arena.h"

namespace kvcachefs {

struct Child {
  uint64_t ino = 0;
  bool is_regular = false;
  std::string name;
};

// But for `.` and `..`, and a piece at a time: a directory of a million is not held in memory. The child is
// the same object each time.
void for_each_child(int directory, const std::function<void(const Child& child)>& visit);

// Each name of the tree, a directory before what is in it. One descriptor at a time is open and no stack
// grows, however wide or deep the tree; a directory that waits for its turn takes 16 bytes.
void walk_tree(const MemoryArena& arena,
               const std::function<void(int directory, uint64_t directory_ino, const Child& child)>& visit);

// To ask a regular file for what is known of it. Of a million each call counts: with such a descriptor five
// take 5 us; by name, and by O_PATH, they are seven and take 14 us.
inline constexpr int kReadForFacts = O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_NOATIME;

}  // namespace kvcachefs
