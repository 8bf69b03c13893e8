// Places on a real disk for the tests of the disk tier: a directory that is not on a tmpfs, loop devices,
// aligned memory. Each object belongs to one thread. Constructors throw std::runtime_error, std::system_error
// or std::bad_alloc if they fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "tier/block_io.h"

namespace kvcachefs::test {

// A directory /var/tmp/kv-test-XXXXXX, which the destructor removes with its content.
class DiskDirectory {
 public:
  DiskDirectory();
  ~DiskDirectory();
  DiskDirectory(const DiskDirectory&) = delete;
  DiskDirectory& operator=(const DiskDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  // make_file() makes a file of `size_bytes` allocated bytes, and returns its path.
  std::string make_file(const std::string& name, uint64_t size_bytes) const;

 private:
  std::string path_;
};

// A block device over a file. available() is false if the process is not root or the kernel offers no loop
// devices; such a test is skipped.
class LoopDevice {
 public:
  static bool available();
  explicit LoopDevice(const std::string& file, uint32_t block_bytes = 512);
  ~LoopDevice();
  LoopDevice(const LoopDevice&) = delete;
  LoopDevice& operator=(const LoopDevice&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Page-aligned memory, initially zero.
class AlignedMemory {
 public:
  explicit AlignedMemory(size_t bytes);
  std::span<std::byte> all() { return {memory_.get(), bytes_}; }
  std::span<std::byte> part(size_t offset, size_t bytes) { return all().subspan(offset, bytes); }
  void fill(uint64_t seed);  // the bytes depend on the seed and on their position
  bool holds(uint64_t seed) const;

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  size_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

// Each call submits one request, waits for it and returns its errno, or 0.
int read_blocks(BlockDevice& device, uint64_t offset, std::span<std::byte> memory);
int write_blocks(BlockDevice& device, uint64_t offset, std::span<std::byte> memory);
int read_blocks(BlockChannel& channel, uint64_t offset, std::span<std::byte> memory);
int write_blocks(BlockChannel& channel, uint64_t offset, std::span<std::byte> memory);

}  // namespace kvcachefs::test
