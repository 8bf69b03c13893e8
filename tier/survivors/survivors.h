// Survivors keeps what outlives a serving process that dies, in one piece of shared memory that the
// supervisor made and every serving child maps. A child writes down here what the kernel holds for it and
// what cannot be found out again from the pools' memory: the connection with its INIT request, the pools,
// which request opened which handle, backing ids, and the numbers of the descriptors that keep nameless
// inodes alive. The descriptors themselves lie in the table that child and supervisor share
// (daemon/supervisor.h).
//
// Because a process may be killed between any two instructions, each fact is one record, which a single store
// makes true or false. A change of a struct here that is not one more field at its end needs another tag for
// its section (layout.h); tests/unit/tier/survivors_layout_test.cc has the fields and the tags.
//
// Any thread. Failure: ENFILE when a table is full. Without a supervisor nothing is kept and nothing fails.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "tier/descriptor_budget.h"
#include "tier/survivors/backing_ids.h"
#include "tier/survivors/children.h"
#include "tier/survivors/connection.h"
#include "tier/survivors/kept_inodes.h"
#include "tier/survivors/open_handles.h"
#include "tier/survivors/requests.h"

namespace kvcachefs {

struct LayoutHeader;
struct Section;

class Survivors {
 public:
  static constexpr size_t kMostPoolsBytes = size_t{16} << 20;
  struct PoolsText {
    std::atomic<uint32_t> which;  // of the two texts is valid
    std::array<uint64_t, 2> bytes;
  };

  Survivors();  // without a supervisor
  static Result<std::unique_ptr<Survivors>> create();
  // open() maps the memory that another program, of an older or newer version, has created. If that program
  // laid the memory out in another way, the object has a copy in memory of its own (layout.h says what such a
  // copy has), and nothing is written to the old memory. EPROTONOSUPPORT: this program cannot go on with what
  // is there.
  static Result<std::unique_ptr<Survivors>> open(UniqueFd memory);
  // The same, for one that only reads: what it writes is seen by no other process.
  static Result<std::unique_ptr<Survivors>> look_at(UniqueFd memory);
  static std::span<const Section> sections();  // as this program lays the memory out
  static uint32_t format();                    // the number of the header's version
  static uint32_t oldest_format();             // the oldest that open() takes
  ~Survivors();

  bool supervised() const { return layout_ != nullptr; }
  bool copied() const { return copied_; }  // from memory that another program has laid out
  int memory_fd() const { return memory_.get(); }
  // Each child calls this first of all; the answer is how many children came before it.
  uint32_t begin_generation();
  // The device has another descriptor, and the descriptors that kept nameless inodes are gone: the supervisor
  // that held them died.
  void moved(int device_fd);
  // Another connection takes the place of one that has ended. What the kernel held for the old one is
  // forgotten, but for writers, which go on past the daemon. The supervisor calls this while no child serves.
  void reconnected(int device_fd);

  // The pools' numbers and options, as text that the caller understands. ENOSPC above kMostPoolsBytes.
  Result<void> set_pools(std::string_view text) EXCLUDES(mutex_);
  std::string pools() const;

  Connection& connection() { return connection_; }
  const Connection& connection() const { return connection_; }
  Children& children() { return children_; }
  Requests& requests() { return requests_; }
  OpenHandles& handles() { return handles_; }
  BackingIds& backing_ids() { return backing_ids_; }
  KeptInodes& kept_inodes() { return kept_inodes_; }
  // The budget of this process; a successor charges the descriptors that it takes over anew.
  DescriptorBudget& descriptors() { return descriptors_; }

 private:
  struct Layout;
  Survivors(UniqueFd memory, Layout* layout, bool copied = false);
  static Result<Layout*> map(int memory, int sharing);
  static Result<std::unique_ptr<Survivors>> open(UniqueFd memory, int sharing);
  static Result<std::unique_ptr<Survivors>> copy(int memory, const LayoutHeader& header);

  UniqueFd memory_;
  Layout* const layout_;
  bool copied_;
  Connection connection_;
  Children children_;
  Requests requests_;
  OpenHandles handles_;
  BackingIds backing_ids_;
  KeptInodes kept_inodes_;
  DescriptorBudget descriptors_;
  Mutex mutex_;  // orders writers of the pools' text
};

}  // namespace kvcachefs
