#include "bench/entries.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "bench/timing.h"

namespace kvcachefs::bench {

std::span<std::byte> payload(uint64_t size_bytes) {
  // The memory is as large as the largest entry of all rows, and is kept, so that no row pays for its first
  // touch.
  constexpr uint64_t kLargest = uint64_t{32} << 20;
  static std::byte* const memory = [] {
    auto* const bytes = static_cast<std::byte*>(std::aligned_alloc(uint64_t{2} << 20, kLargest));
    ::madvise(bytes, kLargest, MADV_HUGEPAGE);
    for (uint64_t word = 0; word < kLargest / 8; ++word) {
      const uint64_t value = (word + 1) * 0x9e3779b97f4a7c15u;
      std::memcpy(bytes + word * 8, &value, 8);
    }
    return bytes;
  }();
  return {memory, size_bytes};
}

void store_entry(const std::string& directory, const std::string& name, std::span<const std::byte> bytes) {
  const std::string path = directory + "/" + name;
  const std::string temporary = path + ".tmp";
  UniqueFd fd(static_cast<int>(
      must(::open(temporary.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_TRUNC | O_CLOEXEC, 0644), "open",
           temporary)));
  const long written = must(::write(fd.get(), bytes.data(), bytes.size()), "write", temporary);
  if (written != static_cast<long>(bytes.size())) throw BenchError("short write " + temporary);
  must(::close(fd.release()), "close", temporary);
  must(::rename(temporary.c_str(), path.c_str()), "rename", temporary);
}

void store_entries(const std::string& directory, const std::string& prefix, uint64_t count,
                   std::span<const std::byte> bytes) {
  for (uint64_t number = 0; number < count; ++number)
    store_entry(directory, prefix + std::to_string(number), bytes);
}

void remove_entries(const std::string& directory, const std::string& prefix, uint64_t count) {
  for (uint64_t number = 0; number < count; ++number) {
    const std::string path = directory + "/" + prefix + std::to_string(number);
    must(::unlink(path.c_str()), "unlink", path);
  }
}

std::vector<UniqueFd> open_entries(const std::string& directory, const std::string& prefix, uint64_t count) {
  std::vector<UniqueFd> fds;
  for (uint64_t number = 0; number < count; ++number) {
    const std::string path = directory + "/" + prefix + std::to_string(number);
    fds.emplace_back(static_cast<int>(must(::open(path.c_str(), O_RDONLY | O_CLOEXEC), "open", path)));
  }
  return fds;
}

void read_entry(int fd, uint64_t size_bytes, std::span<std::byte> piece) {
  for (uint64_t offset = 0; offset < size_bytes; offset += piece.size()) {
    const long got =
        must(::pread(fd, piece.data(), piece.size(), static_cast<off_t>(offset)), "pread", "an entry");
    if (got != static_cast<long>(piece.size())) throw BenchError("short read");
  }
}

uint64_t scan_entry(int fd, uint64_t size_bytes) {
  void* const map = ::mmap(nullptr, size_bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) must(-1, "mmap", "an entry");
  const auto* const words = static_cast<const uint64_t*>(map);
  uint64_t sum = 0;
  for (uint64_t word = 0; word < size_bytes / 8; ++word) sum += words[word];
  ::munmap(map, size_bytes);
  return sum;
}

}  // namespace kvcachefs::bench
