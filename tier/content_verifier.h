// Reads contents from a disk, many pieces in flight, and compares their checksums. One thread, which waits
// for the disk. Failure: an error only where nothing can be read at all (no channel, no memory); what is
// wrong with one content is told of that one.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/checksum.h"
#include "tier/block_io.h"
#include "tier/catalog.h"

namespace kvcachefs {

class ContentVerifier {
 public:
  static constexpr unsigned kDepth = 32;
  static constexpr uint64_t kPieceBytes = 1 << 20;

  ContentVerifier(BlockDevice& device, uint64_t unit_bytes) : device_(device), unit_bytes_(unit_bytes) {}

  struct Content {
    uint64_t id = 0;
    uint64_t size_bytes = 0;
    Checksum checksum;
    std::span<const Extent> extents;  // within the device, and enough for the size
  };
  // Of one content, in the order given: 0, EILSEQ for bytes that are not those of its checksum, or the errno
  // that the disk gave.
  using Verdict = std::function<void(const Content& content, int error)>;
  Result<void> run(std::span<const Content> contents, const Verdict& verdict);

 private:
  struct Piece {
    size_t content = 0;
    uint64_t used_bytes = 0;  // the rest fills the last block up
    bool last = false;
    bool done = false;
    int error = 0;
  };
  struct FreeMemory {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  bool send_next(std::span<const Content> contents);
  void consume(std::span<const Content> contents, const Verdict& verdict);
  std::span<std::byte> buffer(uint64_t number) const {
    return {memory_.get() + number % kDepth * kPieceBytes, kPieceBytes};
  }

  BlockDevice& device_;
  const uint64_t unit_bytes_;
  std::unique_ptr<BlockChannel> channel_;
  std::unique_ptr<std::byte, FreeMemory> memory_;
  std::vector<Piece> pieces_{kDepth};  // number modulo kDepth
  uint64_t sent_ = 0;                  // pieces, all in all
  uint64_t consumed_ = 0;

  // Where the next piece begins.
  size_t content_ = 0;
  size_t extent_ = 0;
  uint64_t within_extent_ = 0;
  uint64_t within_content_ = 0;

  Hasher hasher_;
  int error_ = 0;  // of the content that is being hashed
};

}  // namespace kvcachefs
