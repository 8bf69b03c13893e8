// An AnswerText is the answer of a query while it is made and read (fs/control/queries.h). Its memory counts
// against the user's before it is allocated. One thread at a time. Failure: a text for which the user has no
// memory left is refused, and takes no more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fs/control/query_budget.h"

namespace kvcachefs {

class AnswerText {
 public:
  AnswerText(QueryBudget& budget, QueryBudget::Payer user) : memory_(budget, user) {}

  // Returns false once the text is refused: the rest of the answer need not be made.
  bool add(std::string_view text);
  // Memory of this many bytes that is taken to make the text counts, too, until finish(). Returns false once
  // the text is refused.
  bool take(uint64_t bytes);
  // Adds the first line. Called once, when its numbers are known.
  void begin_with(std::string head) { pieces_.insert(pieces_.begin(), std::move(head)); }
  // Called when the text is complete: from then on it takes just its size. Returns false if the text is
  // refused.
  bool finish();
  std::string part(uint64_t offset, size_t size) const;

 private:
  // The text grows by pieces of this size, because a string would be copied, and take three times its size
  // while it is.
  static constexpr size_t kPieceBytes = 64 << 10;

  QueryBudget::Part memory_;
  std::vector<std::string> pieces_;
  bool is_refused_ = false;
};

}  // namespace kvcachefs
