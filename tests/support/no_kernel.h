// What a pool is given in place of the layer that speaks to the kernel, when a unit test has it alone.
// Backing ids are all the same, and nothing is told of changes. Any thread; never fails.
#pragma once

#include <chrono>
#include <string>

#include "tier/pool/kernel_side.h"

namespace kvcachefs::test {

struct NoBacking final : BackingStore {
  int error = 0;           // an errno: no open gets a backing
  bool daemon_io = false;  // else as with passthrough
  Result<int32_t> acquire(int, PoolInode) override { return error == 0 ? Result<int32_t>(1) : fail(error); }
  void give_back(int32_t) override {}
  bool needs_write_access() const override { return daemon_io; }
};

struct NoListener final : DiscardListener {
  void changed(uint16_t, uint64_t) override {}
  void discarded(uint16_t, uint64_t, uint64_t, std::string) override {}
  void appeared(uint16_t, uint64_t, std::string) override {}
  void wait_until_told(std::chrono::milliseconds) override {}
};

}  // namespace kvcachefs::test
