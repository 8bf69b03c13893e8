// Which entries an lru cache of entries of one size must and must not hold, when evictions run in the
// background and stop anywhere between two fillings. Because lru holds the most recently used entries
// whatever its size, an entry's rank in the order of use decides. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace kvcachefs::clients {

class LruBounds {
 public:
  // `uses_max`: the most calls of touch().
  explicit LruBounds(size_t uses_max) : tree_(uses_max + 1) {}

  void touch(uint64_t key) {
    const auto [place, fresh] = last_use_.try_emplace(key, 0);
    if (!fresh) add(place->second, -1);
    place->second = ++uses_;
    add(uses_, 1);
  }

  // 1 for the key used last, 2 for the key used before it; 0 for a key never used.
  size_t rank(uint64_t key) const {
    const auto place = last_use_.find(key);
    if (place == last_use_.end()) return 0;
    return last_use_.size() - static_cast<size_t>(sum(place->second)) + 1;
  }

 private:
  // The tree is a Fenwick tree over the times of use, with a 1 at the last use of each key.
  void add(size_t time, int64_t value) {
    for (; time < tree_.size(); time += time & -time) tree_[time] += value;
  }
  int64_t sum(size_t time) const {
    int64_t total = 0;
    for (; time > 0; time -= time & -time) total += tree_[time];
    return total;
  }

  std::vector<int64_t> tree_;
  std::unordered_map<uint64_t, size_t> last_use_;
  size_t uses_ = 0;
};

}  // namespace kvcachefs::clients
