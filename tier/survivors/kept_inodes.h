// The inodes without a name that a descriptor of the serving process keeps alive, for its successor, which
// has the descriptors too. An inode is kept before its last name goes. Any thread. Failure: ENFILE when the
// table is full. Without a supervisor nothing is kept and nothing fails.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
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

  explicit KeptInodes(Shared* shared) : records_(shared) {}  // none: without a supervisor
  void begin_generation() { records_.find_free(); }

  Result<uint32_t> keep(const KeptInode& kept);
  void let_go(uint32_t place);
  std::vector<std::pair<uint32_t, KeptInode>> list() const;

 private:
  SurvivorTable<Record> records_;
};

// A descriptor that keeps an inode without a name alive, for a successor too.
class KeptByDescriptor {
 public:
  KeptByDescriptor() = default;
  // `inodes`: has the record at `place`; none: there is no record.
  KeptByDescriptor(UniqueFd fd, KeptInodes* inodes, uint32_t place, DescriptorBudget::Charge charge)
      : charge_(std::move(charge)), fd_(std::move(fd)), record_(inodes, LetGo{place}) {}
  KeptByDescriptor(KeptByDescriptor&&) = default;
  KeptByDescriptor& operator=(KeptByDescriptor&& other) noexcept {
    std::swap(charge_, other.charge_);
    std::swap(fd_, other.fd_);
    std::swap(record_, other.record_);
    return *this;
  }
  explicit operator bool() const { return static_cast<bool>(fd_); }

 private:
  struct LetGo {
    void operator()(KeptInodes* inodes) const { inodes->let_go(place); }
    uint32_t place;
  };
  // The order matters, because the last member is destroyed first: the record for a successor must go before
  // the descriptor is closed, or it could name a number that another file's descriptor has got.
  DescriptorBudget::Charge charge_;
  UniqueFd fd_;
  std::unique_ptr<KeptInodes, LetGo> record_;
};

}  // namespace kvcachefs
