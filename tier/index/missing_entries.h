// The entries that an index has no room for now. Of entries beyond kMost only the existence is known, until
// all entries have been sought again. The owner of the index calls all functions but count() under the
// index's lock. Never fails.
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
  // Once the seek has ended and the entries that it found were read, each entry without room has been added
  // again.
  void seeking_begins() {
    sought_ |= more_;
    more_ = false;
  }
  void seeking_ended() {
    sought_ = false;
    recount();
  }
  uint64_t count() const { return count_; }  // any thread; kMost + 1 means that many or more

 private:
  void recount() { count_ = inodes_.size() + (more_ || sought_ ? 1 : 0); }

  std::unordered_set<uint64_t> inodes_;
  bool more_ = false;    // there are entries beyond kMost
  bool sought_ = false;  // there were entries beyond kMost when the seek began
  std::atomic<uint64_t> count_{0};
};

}  // namespace kvcachefs
