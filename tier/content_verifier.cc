#include "tier/content_verifier.h"

#include <algorithm>
#include <cerrno>

namespace kvcachefs {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr std::chrono::milliseconds kWait{1000};

}  // namespace

Result<void> ContentVerifier::run(std::span<const Content> contents, const Verdict& verdict) {
  auto channel = device_.channel(kDepth);
  if (!channel) return pass(channel);
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, kDepth * kPieceBytes)));
  if (!memory_) return fail(ENOMEM, "no memory to read into");
  channel_ = std::move(*channel);
  std::vector<BlockCompletion> completions;
  for (;;) {
    while (sent_ - consumed_ < kDepth && send_next(contents)) {
    }
    if (sent_ == consumed_) break;
    completions.clear();
    (void)channel_->reap(completions, kWait);
    for (const BlockCompletion& completion : completions) {
      Piece& piece = pieces_[completion.tag % kDepth];
      piece.done = true;
      piece.error = completion.error;
    }
    while (consumed_ < sent_ && pieces_[consumed_ % kDepth].done) consume(contents, verdict);
  }
  channel_.reset();
  return {};
}

// False: all is sent.
bool ContentVerifier::send_next(std::span<const Content> contents) {
  if (content_ == contents.size()) return false;
  const Content& content = contents[content_];
  Piece& piece = pieces_[sent_ % kDepth];
  const uint64_t left = content.size_bytes - within_content_;
  piece = {.content = content_, .used_bytes = left, .last = true, .done = true, .error = 0};
  const uint64_t number = sent_++;
  if (left > 0) {
    const Extent extent = content.extents[extent_];
    const uint64_t room = std::min(extent.count * unit_bytes_ - within_extent_, kPieceBytes);
    piece.used_bytes = std::min(left, room);
    piece.last = piece.used_bytes == left;
    piece.done = false;
    const uint64_t alignment = device_.alignment_bytes();
    const uint64_t size = (piece.used_bytes + alignment - 1) / alignment * alignment;
    const BlockRequest request{.kind = BlockRequest::Kind::kRead,
                               .offset = extent.start * unit_bytes_ + within_extent_,
                               .memory = buffer(number).first(size),
                               .tag = number};
    channel_->submit({&request, 1});
    within_content_ += piece.used_bytes;
    within_extent_ += piece.used_bytes;
    if (within_extent_ == extent.count * unit_bytes_) {
      ++extent_;
      within_extent_ = 0;
    }
  }
  if (piece.last) {
    ++content_;
    extent_ = 0;
    within_extent_ = 0;
    within_content_ = 0;
  }
  return true;
}

void ContentVerifier::consume(std::span<const Content> contents, const Verdict& verdict) {
  const Piece& piece = pieces_[consumed_ % kDepth];
  if (error_ == 0) error_ = piece.error;
  if (error_ == 0) hasher_.update(buffer(consumed_).first(piece.used_bytes));
  ++consumed_;
  if (!piece.last) return;
  const Content& content = contents[piece.content];
  if (error_ == 0 && hasher_.digest() != content.checksum) error_ = EILSEQ;
  verdict(content, error_);
  hasher_.reset();
  error_ = 0;
}

}  // namespace kvcachefs
