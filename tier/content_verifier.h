// Reads contents from a disk in pieces, several in flight, and compares their checksums in the order in which
// they were begun. What is begun when, and how fast it is read, is the caller's. One thread, which waits for
// the disk in collect() and at the end: what has no verdict by then is dropped. Failure: an error only where
// there is no memory to read into; what is wrong with one content is told of that one.
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
#include "tier/catalog.h"

namespace kvcachefs {

class ContentVerifier {
 public:
  struct Options {
    uint64_t unit_bytes = 0;       // of the extents
    uint64_t alignment_bytes = 0;  // the device's
    uint64_t piece_bytes = 0;      // a multiple of that
    unsigned depth = 0;            // pieces in flight
  };
  struct Content {
    uint64_t id = 0;
    uint64_t size_bytes = 0;
    Checksum checksum;
    std::span<const Extent> extents;  // within the device; there until the verdict
  };
  struct Verdict {
    Content content;
    uint64_t read_bytes = 0;
    // 0, EILSEQ for bytes that are not those of its checksum, EUCLEAN for extents that are too few, or the
    // errno that the disk gave; what follows is not read then.
    int error = 0;
  };

  // The channel is used by nobody else meanwhile, and outlives it.
  static Result<std::unique_ptr<ContentVerifier>> make(BlockChannel& channel, const Options& options);
  ~ContentVerifier();
  ContentVerifier(const ContentVerifier&) = delete;
  ContentVerifier& operator=(const ContentVerifier&) = delete;

  // The next one, while none is being sent.
  void begin(const Content& content);
  bool sending() const { return sending_; }
  bool has_room() const { return sent_ - consumed_ < options_.depth; }
  // Of what is being sent, while there is room. Returns how much the disk has to read for it.
  uint64_t send_piece();
  // Waits at most so long for the disk, or for the channel's wake(), unless there is something to judge.
  void collect(std::chrono::milliseconds at_most);
  // Until there is none: what has been collected makes room only in here.
  std::optional<Verdict> next_verdict();
  bool in_flight() const { return sent_ > consumed_; }
  bool idle() const { return contents_.empty(); }

 private:
  struct Piece {
    uint64_t used_bytes = 0;  // the rest fills the last block up
    bool last = false;
    bool done = false;
    int error = 0;
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
  std::vector<Piece> pieces_;  // number modulo the depth
  uint64_t sent_ = 0;          // pieces, all in all
  uint64_t consumed_ = 0;
  std::vector<BlockCompletion> completions_;
  std::deque<Content> contents_;  // the first is being hashed

  // Of the last one: where the next piece begins.
  bool sending_ = false;
  size_t extent_ = 0;
  uint64_t within_extent_ = 0;
  uint64_t sent_bytes_ = 0;

  // Of the first one.
  Hasher hasher_;
  uint64_t read_bytes_ = 0;
  int error_ = 0;
};

}  // namespace kvcachefs
