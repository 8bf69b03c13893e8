// The bytes of a disk of which only some places were written: all other bytes are zeros, and only written
// pages take memory. Not thread-safe. Throws std::bad_alloc if memory runs out.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <unordered_map>

namespace kvcachefs::test {

class DiskImage {
 public:
  static constexpr uint64_t kPageBytes = 4096;
  using Page = std::array<std::byte, kPageBytes>;

  const Page* page(uint64_t number) const {
    const auto found = pages_.find(number);
    return found == pages_.end() ? nullptr : found->second.get();
  }
  // own_page() makes a missing page as a copy of `from`, or of zeros if `from` is nullptr.
  Page& own_page(uint64_t number, const Page* from) {
    std::unique_ptr<Page>& page = pages_[number];
    if (!page) page = from != nullptr ? std::make_unique<Page>(*from) : std::make_unique<Page>();
    return *page;
  }
  void write(uint64_t offset, std::span<const std::byte> bytes) {
    each_page(offset, bytes.size(), [&](uint64_t number, uint64_t begin, uint64_t count, uint64_t done) {
      std::memcpy(own_page(number, nullptr).data() + begin, bytes.data() + done, count);
    });
  }
  // write_over() and read_over() act on a disk that has its other pages in `base`.
  void write_over(const DiskImage& base, uint64_t offset, std::span<const std::byte> bytes) {
    each_page(offset, bytes.size(), [&](uint64_t number, uint64_t begin, uint64_t count, uint64_t done) {
      std::memcpy(own_page(number, base.page(number)).data() + begin, bytes.data() + done, count);
    });
  }
  void read_over(const DiskImage& base, uint64_t offset, std::span<std::byte> bytes) const {
    each_page(offset, bytes.size(), [&](uint64_t number, uint64_t begin, uint64_t count, uint64_t done) {
      const Page* const own = page(number);
      const Page* const found = own != nullptr ? own : base.page(number);
      if (found != nullptr) {
        std::memcpy(bytes.data() + done, found->data() + begin, count);
      } else {
        std::memset(bytes.data() + done, 0, count);
      }
    });
  }
  void clear() { pages_.clear(); }
  size_t pages() const { return pages_.size(); }

  // each_page() calls action(page number, first byte within the page, count, bytes done before).
  template <class Action>
  static void each_page(uint64_t offset, uint64_t bytes, Action action) {
    for (uint64_t done = 0; done < bytes;) {
      const uint64_t begin = (offset + done) % kPageBytes;
      const uint64_t count = std::min(kPageBytes - begin, bytes - done);
      action((offset + done) / kPageBytes, begin, count, done);
      done += count;
    }
  }

 private:
  std::unordered_map<uint64_t, std::unique_ptr<Page>> pages_;
};

}  // namespace kvcachefs::test
