// What is in a directory. Any thread. A directory that cannot be read to its end gives what was read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvcachefs {

struct Child {
  uint64_t ino = 0;
  bool is_regular = false;
  std::string name;
};

std::vector<Child> children_of(int directory);  // but for `.` and `..`

}  // namespace kvcachefs
