// Proves that a pool's catalog is whole and fits its disk, and mends it by discarding what does not. For a
// pool that nobody serves: one thread, which waits for the disks. Failure: the catalog's (EUCLEAN: damaged as
// a whole) or the device's, where nothing can be read at all; all else is in the report.
//
// What is looked at:
//   - the records can be read, every node can be reached from the root, counts of names are right, every
//     regular file has a content and nothing else has;
//   - a content's extents lie on the disk, past the superblock, are as long as its size asks for, and no unit
//     is in two of them;
//   - with a device: the bytes can be read and have the checksum they were stored with. Those that cannot be
//   read are
//     named, and kept.
// Of contents that share units the one that was stored first stays, as at a start of the pool; with a device,
// the one whose bytes are right.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tier/block_io.h"
#include "tier/catalog.h"

namespace kvcachefs {

struct CheckOptions {
  uint64_t unit_bytes = uint64_t{64} << 10;
  uint64_t size_units = 0;        // of the disk, the superblock's unit too
  BlockDevice* device = nullptr;  // null: the bytes are not read
  bool repair = false;
  // Bytes of contents that were read, and of all to be read.
  std::function<void(uint64_t done_bytes, uint64_t all_bytes)> progress = {};
};

struct CheckProblem {
  uint64_t id = 0;   // 0: not known
  std::string path;  // relative to the pool; empty: not known
  std::string what;
};

struct CheckReport {
  static constexpr size_t kListed = 1000;

  uint64_t nodes = 0;  // that are whole, directories and links too
  uint64_t files = 0;  // of these
  uint64_t content_bytes = 0;
  uint64_t used_units = 0;
  uint64_t free_units = 0;
  uint64_t problem_count = 0;
  std::vector<CheckProblem> problems;  // the first kListed
  // Of the problems: those that the disk gave no bytes of, which it may do again. They are not discarded.
  uint64_t unreadable = 0;
  bool repaired = false;  // what else was wrong is not in the catalog any more

  bool whole() const { return problem_count == 0; }
};

Result<CheckReport> check_catalog(Catalog& catalog, const CheckOptions& options);

}  // namespace kvcachefs
