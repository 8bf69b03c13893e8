// The AnswerText of a query while it is made and read (fs/control/queries.h): it counts against the memory of
// the user who asks before it takes that memory. One thread at a time. Failure: a text for which the user has
// no room is refused, and takes no more.
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
  // What is made of so many bytes for the text counts too, until finish(). Returns false once the text is
  // refused.
  bool take(uint64_t bytes);
  // Called once, when what the first line says of the rest is known.
  void begin_with(std::string head) { pieces_.insert(pieces_.begin(), std::move(head)); }
  // The text is whole, and takes its size alone. Returns false if it is refused.
  bool finish();
  std::string part(uint64_t offset, size_t size) const;

 private:
  // The text grows by such pieces, because a string would be copied and take three times its size meanwhile.
  static constexpr size_t kPieceBytes = 64 << 10;

  QueryBudget::Part memory_;
  std::vector<std::string> pieces_;
  bool is_refused_ = false;
};

}  // namespace kvcachefs
