#include "tests/support/disks.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/program.h"

namespace kvcachefs::test {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr auto kDeadline = std::chrono::seconds(30);

uint64_t word_of(uint64_t seed, size_t index) {
  uint64_t word = (seed + 1) * 0x9e3779b97f4a7c15u + index * 0xbf58476d1ce4e5b9u;
  word ^= word >> 29;
  return word * 0x94d049bb133111ebu;
}

int one(BlockChannel& channel, BlockRequest request) {
  channel.submit({&request, 1});
  std::vector<BlockCompletion> completions;
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while (completions.empty()) {
    if (std::chrono::steady_clock::now() > deadline)
      throw std::runtime_error("a block request does not complete");
    channel.reap(completions, std::chrono::milliseconds(100));
  }
  return completions.front().error;
}

int one(BlockDevice& device, BlockRequest request) {
  auto channel = device.channel(1);
  if (!channel) throw std::runtime_error(channel.error().message);
  return one(**channel, request);
}

}  // namespace

DiskDirectory::DiskDirectory() : path_("/var/tmp/kv-test-XXXXXX") {
  if (::mkdtemp(path_.data()) == nullptr) throw std::system_error(errno, std::generic_category(), path_);
}

DiskDirectory::~DiskDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string DiskDirectory::make_file(const std::string& name, uint64_t size_bytes) const {
  const std::string path = *this / name;
  const File file(path, O_CREAT | O_RDWR | O_CLOEXEC);
  const int error = ::posix_fallocate(file.fd(), 0, static_cast<off_t>(size_bytes));
  if (error != 0) throw std::system_error(error, std::generic_category(), path);
  return path;
}

bool LoopDevice::available() {
  return ::geteuid() == 0 && ::access("/dev/loop-control", R_OK | W_OK) == 0;
}

LoopDevice::LoopDevice(const std::string& file, uint32_t block_bytes) {
  const Outcome outcome =
      run({"/usr/sbin/losetup", "--find", "--show", "--sector-size", std::to_string(block_bytes), file});
  if (outcome.exit_code != 0) throw std::runtime_error("losetup: " + outcome.error);
  path_ = outcome.out.substr(0, outcome.out.find('\n'));
}

LoopDevice::~LoopDevice() {
  try {
    run({"/usr/sbin/losetup", "--detach", path_});
  } catch (const std::exception&) {  // the next losetup --find takes another one
  }
}

AlignedMemory::AlignedMemory(size_t bytes)
    : bytes_(bytes),
      memory_(static_cast<std::byte*>(
          std::aligned_alloc(kPageBytes, (bytes + kPageBytes - 1) / kPageBytes * kPageBytes))) {
  if (!memory_) throw std::bad_alloc();
  std::memset(memory_.get(), 0, bytes_);
}

void AlignedMemory::Free::operator()(std::byte* memory) const {
  std::free(memory);
}

void AlignedMemory::fill(uint64_t seed) {
  for (size_t at = 0; at < bytes_; at += sizeof(uint64_t)) {
    const uint64_t word = word_of(seed, at);
    std::memcpy(memory_.get() + at, &word, std::min(sizeof word, bytes_ - at));
  }
}

bool AlignedMemory::holds(uint64_t seed) const {
  for (size_t at = 0; at < bytes_; at += sizeof(uint64_t)) {
    const uint64_t word = word_of(seed, at);
    if (std::memcmp(memory_.get() + at, &word, std::min(sizeof word, bytes_ - at)) != 0) return false;
  }
  return true;
}

int read_blocks(BlockDevice& device, uint64_t offset, std::span<std::byte> memory) {
  return one(device, {BlockRequest::Kind::kRead, offset, memory, 0});
}

int write_blocks(BlockDevice& device, uint64_t offset, std::span<std::byte> memory) {
  return one(device, {BlockRequest::Kind::kWrite, offset, memory, 0});
}

int read_blocks(BlockChannel& channel, uint64_t offset, std::span<std::byte> memory) {
  return one(channel, {BlockRequest::Kind::kRead, offset, memory, 0});
}

int write_blocks(BlockChannel& channel, uint64_t offset, std::span<std::byte> memory) {
  return one(channel, {BlockRequest::Kind::kWrite, offset, memory, 0});
}

}  // namespace kvcachefs::test
