// The entries that an index has no room for now. Of more than kMost it is known only that there are some,
// until all entries have been sought again. Who owns the index calls it under its lock, but for count().
// Never fails.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <unordered_set>

namespace kvcachefs {

class MissingEntries {
 public:
  static constexpr size_t kMost = 16'384;

  void add(uint64_t ino) {
    if (inodes_.size() < kMost)
      inodes_.insert(ino);
    else
      more_ |= !inodes_.contains(ino);
    recount();
  }
  void remove(uint64_t ino) {
    if (inodes_.erase(ino) > 0) recount();
  }
  // All entries that the index has not are added again, if they have no room, by the time that the seeking
  // has ended and what it found was read.
  void seeking_begins() {
    sought_ |= more_;
    more_ = false;
  }
  void seeking_ended() {
    sought_ = false;
    recount();
  }
  uint64_t count() const { return count_; }  // any thread; kMost + 1: or more

 private:
  void recount() { count_ = inodes_.size() + (more_ || sought_ ? 1 : 0); }

  std::unordered_set<uint64_t> inodes_;
  bool more_ = false;    // and more
  bool sought_ = false;  // there were more when the seeking began
  std::atomic<uint64_t> count_{0};
};

}  // namespace kvcachefs
