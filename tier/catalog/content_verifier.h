// A ContentVerifier reads contents from a disk in pieces, several in flight, and compares their checksums in
// the order in which the caller began them. The caller decides when a content begins and how fast it is read.
// One thread, which waits for the disk in collect() and in the destructor; the destructor drops contents
// without a verdict. Failure: make() fails if there is no memory to read into; problems of a content are in
// its verdict.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/checksum.h"
#include "base/mapping.h"
#include "tier/block_io.h"
#include "tier/catalog/catalog.h"
#include "tier/catalog/finding.h"

namespace kvcachefs {

class ContentVerifier {
 public:
  struct Options {
    uint64_t unit_bytes = 0;       // of the extents
    uint64_t alignment_bytes = 0;  // the device's
    uint64_t piece_bytes = 0;      // a multiple of alignment_bytes
    unsigned depth = 0;            // pieces in flight
  };
  struct Content {
    uint64_t id = 0;
    uint64_t size_bytes = 0;
    Checksum checksum;
    std::span<const Extent> extents;  // within the device; the caller keeps them until the verdict
  };
  struct Verdict {
    Content content;
    uint64_t read_bytes = 0;
    Finding finding;  // the rest of a content is not read once something is wrong with it
  };

  // The verifier is the channel's only user meanwhile, and the channel outlives it.
  static Result<std::unique_ptr<ContentVerifier>> make(BlockChannel& channel, const Options& options);
  ~ContentVerifier();

  // begin() takes the next content; no other content may be in the middle of being sent.
  void begin(const Content& content);
  bool sending() const { return sending_; }
  bool has_room() const { return sent_ - consumed_ < options_.depth; }
  // send_piece() sends the next piece of that content; the caller checks has_room() first. Answers how many
  // bytes the disk has to read.
  uint64_t send_piece();
  // collect() waits at most `at_most` for the disk, or for the channel's wake(), unless a piece is ready to
  // be judged.
  void collect(std::chrono::milliseconds at_most);
  // The caller takes verdicts until there is none: only this call makes room for further pieces.
  std::optional<Verdict> next_verdict();
  bool in_flight() const { return sent_ > consumed_; }
  bool idle() const { return contents_.empty(); }

 private:
  struct Piece {
    uint64_t used_bytes = 0;  // the rest pads the last block
    uint64_t hole_units = 0;  // a hole of this many units, for which nothing is read
    bool last = false;
    bool done = false;
    Finding finding = {};
  };

  ContentVerifier(BlockChannel& channel, const Options& options, Mapping memory)
      : options_(options), channel_(channel), memory_(std::move(memory)), pieces_(options.depth) {}
  Piece& piece(uint64_t number) { return pieces_[number % options_.depth]; }
  std::span<std::byte> buffer(uint64_t number, uint64_t size) const {
    return memory_.bytes().subspan(number % options_.depth * options_.piece_bytes, size);
  }

  const Options options_;
  BlockChannel& channel_;
  const Mapping memory_;
  std::vector<Piece> pieces_;  // by number modulo the depth
  uint64_t sent_ = 0;          // count of pieces since the start
  uint64_t consumed_ = 0;
  std::vector<BlockCompletion> completions_;
  std::deque<Content> contents_;  // the first one is being hashed

  // The content being sent: where its next piece begins.
  bool sending_ = false;
  size_t extent_ = 0;
  uint64_t within_extent_ = 0;
  uint64_t sent_bytes_ = 0;

  // The content being hashed.
  Hasher hasher_;
  uint64_t read_bytes_ = 0;
  Finding finding_;
};

}  // namespace kvcachefs
