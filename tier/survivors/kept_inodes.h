// The inodes without a name that a descriptor of the serving process keeps alive, for its successor, which
// has the descriptors too. An inode is kept before its last name goes. Any thread. Failure: ENFILE when the
// table is full. Without a supervisor nothing is kept and nothing fails.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "tier/descriptor_budget.h"
#include "tier/survivors/survivor_table.h"

namespace kvcachefs {

struct KeptInode {
  PoolInode inode;
  uint32_t generation = 0;
  int fd = -1;
};

class KeptInodes {
 public:
  struct Record {
    std::atomic<uint64_t> key;
    uint32_t generation;
    int32_t fd;
  };
  using Shared = SurvivorTable<Record>::Shared;

  explicit KeptInodes(Shared* shared);  // none: without a supervisor
  void begin_generation();

  Result<uint32_t> keep(const KeptInode& kept);
  void let_go(uint32_t place);
  std::vector<std::pair<uint32_t, KeptInode>> list();

 private:
  std::optional<SurvivorTable<Record>> records_;
};

// A descriptor that keeps an inode without a name alive, for a successor too.
class KeptByDescriptor {
 public:
  KeptByDescriptor() = default;
  // `inodes`: has the record at `place`; none: there is no record.
  KeptByDescriptor(UniqueFd fd, KeptInodes* inodes, uint32_t place, DescriptorBudget::Charge charge)
      : charge_(std::move(charge)), fd_(std::move(fd)), inodes_(inodes), place_(place) {}
  KeptByDescriptor(KeptByDescriptor&& other) noexcept
      : charge_(std::move(other.charge_)),
        fd_(std::move(other.fd_)),
        inodes_(std::exchange(other.inodes_, nullptr)),
        place_(other.place_) {}
  KeptByDescriptor& operator=(KeptByDescriptor&& other) noexcept {
    std::swap(charge_, other.charge_);
    std::swap(fd_, other.fd_);
    std::swap(inodes_, other.inodes_);
    std::swap(place_, other.place_);
    return *this;
  }
  // The record for a successor goes before the descriptor is closed: it must never name a number that another
  // file's descriptor has got.
  ~KeptByDescriptor() {
    if (inodes_ != nullptr) inodes_->let_go(place_);
  }
  explicit operator bool() const { return static_cast<bool>(fd_); }

 private:
  DescriptorBudget::Charge charge_;  // given back when the descriptor is closed
  UniqueFd fd_;                      // closed after the destructor's body
  KeptInodes* inodes_ = nullptr;
  uint32_t place_ = 0;
};

}  // namespace kvcachefs
