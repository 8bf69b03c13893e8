#include "fs/control/answer_text.h"

#include <algorithm>

namespace kvcachefs {

bool AnswerText::add(std::string_view text) {
  while (!text.empty() && !is_refused_) {
    if (pieces_.empty() || pieces_.back().size() == kPieceBytes) {
      is_refused_ = !memory_.set(memory_.bytes() + kPieceBytes);
      if (is_refused_) break;
      pieces_.emplace_back().reserve(kPieceBytes);
    }
    const auto fitting = text.substr(0, kPieceBytes - pieces_.back().size());
    pieces_.back() += fitting;
    text.remove_prefix(fitting.size());
  }
  return !is_refused_;
}

bool AnswerText::take(uint64_t bytes) {
  is_refused_ = is_refused_ || !memory_.set(memory_.bytes() + bytes);
  return !is_refused_;
}

bool AnswerText::finish() {
  if (!pieces_.empty()) pieces_.back().shrink_to_fit();
  uint64_t bytes = 0;
  for (const std::string& piece : pieces_) bytes += piece.size();
  is_refused_ = is_refused_ || !memory_.set(bytes);
  return !is_refused_;
}

std::string AnswerText::part(uint64_t offset, size_t size) const {
  std::string result;
  for (const std::string& piece : pieces_) {
    if (result.size() == size) break;
    if (offset < piece.size()) result.append(piece, offset, size - result.size());
    offset -= std::min<uint64_t>(offset, piece.size());
  }
  return result;
}

}  // namespace kvcachefs
