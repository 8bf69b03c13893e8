// The children of one directory, or of all directories of a tree. Any thread. If a directory cannot be read
// to its end, the caller gets the children read so far; a directory of a tree that cannot be opened is
// logged.
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
  bool is_directory = false;
  std::string name;
};

// The children of `directory` except `.` and `..`. The directory is read piece by piece, so a million names
// are not held in memory. `visit` gets the same Child object each time, and may use the descriptor's number.
// ENOMEM: nothing was read. Other errors: not all was read.
Result<void> for_each_child(UniqueFd directory, const std::function<void(const Child& child)>& visit);

// Each name of the tree, a directory before its children. However wide or deep the tree is, the walk has one
// descriptor open at a time and does not recurse; a directory that waits for its turn takes 16 bytes.
// After an error, which is the answer, it goes on with what it can read. What users remove meanwhile is none.
// kNotFiles: only what is no regular file, and nothing in a directory without others in it, which is not
// read.
enum class Walk { kAll, kNotFiles };
Result<void> walk_tree(
    const MemoryArena& arena,
    const std::function<void(int directory, uint64_t directory_ino, const Child& child)>& visit,
    Walk walk = Walk::kAll);

// Calls the work on several threads at once, the caller's among them, and returns when all have ended it.
using OnSeveralThreads = std::function<void(const std::function<void()>& work)>;

// As walk_tree(), for a tree of a million files: `visit_file` is called on all threads at once, `visit_other`
// on one of them at a time.
Result<void> walk_tree(
    const MemoryArena& arena, const OnSeveralThreads& on_several_threads,
    const std::function<void(int directory, uint64_t directory_ino, const Child& child)>& visit_other,
    const std::function<void(int directory, uint64_t directory_ino, const Child& child)>& visit_file);

// Flags to open a regular file with, in order to ask for its facts. Because a takeover may ask a million
// files, each call counts: five calls on such a descriptor take 5 us; by name or by O_PATH they are seven
// calls and take 14 us.
inline constexpr int kReadForFacts = O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_NOATIME;

}  // namespace kvcachefs
