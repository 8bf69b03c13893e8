// Places on a real disk for the tests of the disk tier: a directory that is no tmpfs, loop devices, aligned
// memory. One thread each. Throws std::runtime_error or std::system_error where one cannot be made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "tier/block_io.h"

namespace kvcachefs::test {

// /var/tmp/kv-test-XXXXXX, gone at the end with what is in it.
class DiskDirectory {
 public:
  DiskDirectory();
  ~DiskDirectory();
  DiskDirectory(const DiskDirectory&) = delete;
  DiskDirectory& operator=(const DiskDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  // A file of that many bytes, allocated.
  std::string make_file(const std::string& name, uint64_t size_bytes) const;

 private:
  std::string path_;
};

// A block device over a file. available() is false where not root or where the kernel offers none: skip.
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

// Page-aligned memory, zeroed at first.
class AlignedMemory {
 public:
  explicit AlignedMemory(size_t bytes);
  std::span<std::byte> all() { return {memory_.get(), bytes_}; }
  std::span<std::byte> part(size_t offset, size_t bytes) { return all().subspan(offset, bytes); }
  void fill(uint64_t seed);  // with bytes that depend on the seed and on their position
  bool holds(uint64_t seed) const;

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  size_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

// One request, waited for: its error.
int read_blocks(BlockDevice& device, uint64_t offset, std::span<std::byte> memory);
int write_blocks(BlockDevice& device, uint64_t offset, std::span<std::byte> memory);
int read_blocks(BlockChannel& channel, uint64_t offset, std::span<std::byte> memory);
int write_blocks(BlockChannel& channel, uint64_t offset, std::span<std::byte> memory);

}  // namespace kvcachefs::test
