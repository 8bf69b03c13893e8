// Common parts of the replayed engines: system calls with their error as a value, the helpers of Python's and
// C++'s standard libraries that engines use, and aligned buffers. Any thread.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/clients/client.h"

namespace kvcachefs::clients {

// The value of a system call, or its negated errno.
inline long result_of(long value) {
  return value < 0 ? -static_cast<long>(errno) : value;
}

// "open /mnt/x: No such file or directory" for a negative errno, "write /mnt/x: 4096" for a short count.
Outcome failed(const char* call, const std::string& path, long result);
// The outcome of a call that looks for a file: ENOENT is a miss.
Outcome missed_or_failed(const char* call, const std::string& path, long result);

// Python's os.makedirs(path, exist_ok=True): looks upwards for a directory that exists, then makes one mkdir
// for each level.
Outcome make_directories(const std::string& path);
// os.path.exists and std::filesystem::exists: one stat. Returns 1, 0 or a negated errno.
long exists(const std::string& path);
// os.listdir, and the names of os.scandir: adds all but the dot entries to `names`.
Outcome list_names(const std::string& directory, std::vector<std::string>& names);
// write_all() and read_all() go on until everything is done, as C++ connectors and Python's buffered files
// do; a 0 before the end is a failure.
long write_all(int fd, std::span<const std::byte> bytes);
long read_all(int fd, std::span<std::byte> bytes);
// close_fd() closes the descriptor and returns the error, which the destructor of UniqueFd cannot.
long close_fd(int fd);

// 64 hexadecimal digits, as the SHA-256 of a block's tokens would be.
std::string hash_name(uint64_t key);
// A number that no other call in any process returns (for temporary names).
uint64_t random_number();

// Page-aligned memory, as pinned host buffers are.
class Buffer {
 public:
  explicit Buffer(size_t size_bytes)
      : memory_(static_cast<std::byte*>(std::aligned_alloc(4096, (size_bytes + 4095) / 4096 * 4096))),
        size_bytes_(size_bytes) {}
  std::span<std::byte> span() const { return {memory_.get(), size_bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t size_bytes_;
};

}  // namespace kvcachefs::clients
