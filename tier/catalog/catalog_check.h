// The check finds out whether a pool's catalog is whole and fits its disk, and mends it by discarding what
// does not. The pool must not be served meanwhile. One thread, which waits for the disks. Failure: the
// catalog's (EUCLEAN: damaged as a whole) or the device's, where nothing can be read at all; every other
// problem is in the report.
//
// The check covers:
//   - the records can be read, every node can be reached from the root, counts of names are right, every
//     regular file has a content and no other node has one;
//   - a content's extents lie on the disk, past the superblock, are as long as its size requires, and no unit
//     is in two of them;
//   - with a device: the bytes can be read and have the checksum they were stored with. Contents that cannot
//     be read are named in the report, and kept.
//
// Of contents that share units, the one with the lowest id stays, as at a start of the pool; with a device,
// the one whose bytes are right.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tier/block_io.h"
#include "tier/catalog/catalog.h"

namespace kvcachefs {

struct CheckOptions {
  uint64_t unit_bytes = uint64_t{64} << 10;
  uint64_t size_units = 0;        // of the disk, including the superblock's unit
  BlockDevice* device = nullptr;  // null: no bytes are read
  bool repair = false;
  // The callback gets the bytes of contents read so far, and of all contents to be read.
  std::function<void(uint64_t done_bytes, uint64_t all_bytes)> progress = {};
};

struct CheckProblem {
  uint64_t id = 0;   // 0: not known
  std::string path;  // relative to the pool; empty: not known
  std::string what;
};

struct CheckReport {
  static constexpr size_t kListed = 1000;

  uint64_t nodes = 0;  // whole nodes, directories and links too
  uint64_t files = 0;  // whole nodes that are regular files
  uint64_t content_bytes = 0;
  uint64_t used_units = 0;
  uint64_t free_units = 0;
  uint64_t problem_count = 0;
  std::vector<CheckProblem> problems;  // the first kListed
  // The problems for which the disk gave no bytes, which it may give later. Their entries are not discarded.
  uint64_t unreadable = 0;
  bool repaired = false;  // all problems except the unreadable contents have been mended

  bool whole() const { return problem_count == 0; }
};

Result<CheckReport> check_catalog(Catalog& catalog, const CheckOptions& options);

}  // namespace kvcachefs
