// The inodes that a restore has made, which take_back() removes again after a failure. One thread. Never
// fails: what a client has put into a directory meanwhile stays, and so does the directory.
#pragma once

#include <vector>

#include "tier/pool/pool_disk.h"
#include "tier/pool/tree.h"

namespace kvcachefs {

class MadeInodes : DiskPart {
 public:
  MadeInodes(const DiskPart& part, Tree& tree) : DiskPart(part), tree_(tree) {}

  void add(sys::Handle handle, bool is_directory) { made_.push_back({handle, is_directory}); }
  void take_back();

 private:
  struct Made {
    sys::Handle handle;
    bool is_directory = false;
  };
  bool remove_directory(int fd);

  Tree& tree_;
  std::vector<Made> made_;  // in the order in which they were made
};

}  // namespace kvcachefs
