#include "tier/catalog/content_verifier.h"

#include <algorithm>
#include <utility>

#include "tier/blocks.h"
#include "tier/catalog/content_layout.h"

namespace kvcachefs {

Result<std::unique_ptr<ContentVerifier>> ContentVerifier::make(BlockChannel& channel,
                                                               const Options& options) {
  auto memory = Mapping::of_memory(options.depth * options.piece_bytes);
  if (!memory) return pass(memory);
  return std::unique_ptr<ContentVerifier>(new ContentVerifier(channel, options, std::move(*memory)));
}

// The destructor waits for the disk, which reads into memory that is freed next.
ContentVerifier::~ContentVerifier() {
  while (channel_.in_flight() > 0) (void)channel_.reap(completions_, std::chrono::milliseconds(100));
}

void ContentVerifier::begin(const Content& content) {
  contents_.push_back(content);
  sending_ = true;
  extent_ = 0;
  within_extent_ = 0;
  sent_bytes_ = 0;
}

uint64_t ContentVerifier::send_piece() {
  const Content& content = contents_.back();
  const uint64_t number = sent_++;
  const uint64_t left = content.size_bytes - sent_bytes_;
  if (left == 0 || extent_ == content.extents.size()) {
    // The content is empty, or the catalog names too few extents: there is nothing to read.
    piece(number) = {.last = true, .done = true};
    if (left > 0) piece(number).finding.kind = Finding::Kind::kTooFewExtents;
    sending_ = false;
    return 0;
  }
  const Extent extent = content.extents[extent_];
  if (is_hole(extent)) {
    const uint64_t passed =
        extent.count > left / options_.unit_bytes ? left : extent.count * options_.unit_bytes;
    piece(number) = {.hole_units = extent.count, .last = passed == left, .done = true};
    sending_ = passed < left;
    sent_bytes_ += passed;
    ++extent_;
    return 0;
  }
  const uint64_t room = extent.count * options_.unit_bytes - within_extent_;
  const uint64_t used = std::min({left, room, options_.piece_bytes});
  const uint64_t size = rounded_up(used, options_.alignment_bytes);
  piece(number) = {.used_bytes = used, .last = used == left};
  const BlockRequest request{.kind = BlockRequest::Kind::kRead,
                             .offset = extent.start * options_.unit_bytes + within_extent_,
                             .memory = buffer(number, size),
                             .tag = number};
  channel_.submit({&request, 1});
  sending_ = used < left;
  sent_bytes_ += used;
  within_extent_ += used;
  if (used == room) {
    ++extent_;
    within_extent_ = 0;
  }
  return size;
}

void ContentVerifier::collect(std::chrono::milliseconds at_most) {
  if (in_flight() && piece(consumed_).done) return;
  completions_.clear();
  (void)channel_.reap(completions_, at_most);
  for (const BlockCompletion& completion : completions_) {
    piece(completion.tag).done = true;
    if (completion.error != 0) piece(completion.tag).finding = {Finding::Kind::kUnreadable, completion.error};
  }
}

std::optional<ContentVerifier::Verdict> ContentVerifier::next_verdict() {
  bool last = false;
  while (!last) {
    if (!in_flight() || !piece(consumed_).done) return std::nullopt;
    const Piece& next = piece(consumed_);
    if (finding_.is_whole()) finding_ = next.finding;
    if (finding_.is_whole() && next.hole_units > 0)
      hash_hole(hasher_, next.hole_units);
    else if (finding_.is_whole())
      hasher_.update(buffer(consumed_, next.used_bytes));
    read_bytes_ += next.used_bytes;
    // The rest of a bad content need not be read.
    if (!finding_.is_whole() && sending_ && contents_.size() == 1) {
      piece(sent_ - 1).last = true;
      sending_ = false;
    }
    last = next.last;
    ++consumed_;
  }
  if (finding_.is_whole() && hasher_.digest() != contents_.front().checksum)
    finding_.kind = Finding::Kind::kWrongBytes;
  const Verdict verdict{contents_.front(), std::exchange(read_bytes_, 0), std::exchange(finding_, {})};
  contents_.pop_front();
  hasher_.reset();
  return verdict;
}

}  // namespace kvcachefs
