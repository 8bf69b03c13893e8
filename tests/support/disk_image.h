// The bytes of a disk that was never written to but here and there: zeros elsewhere, and only pages that were
// written take memory. Not thread-safe. Fails only where memory runs out (std::bad_alloc).
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
  // Made as a copy of `from`, or of zeros, if it is not there.
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
  // As write and read of a disk whose other pages are those of `base`.
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

  // action(page number, first byte within the page, count, bytes before it)
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
