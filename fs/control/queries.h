// Queries that a client writes to a pool's control file and reads the answer of. Their forms are in
// kvcachefs(7), "Finding entries". An answer names only what the caller may read. Any thread. Failure: EINVAL
// with a sentence that says what is wrong with the query; EMSGSIZE beyond kMostQueryBytes or kMostNames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "base/result.h"
#include "fs/control/answer_text.h"
#include "fs/control/controlled_pool.h"
#include "fs/control/query_budget.h"
#include "fs/control/readable_tree.h"

namespace kvcachefs {

// A million token ids, or kMostNames names of 63 characters.
inline constexpr size_t kMostQueryBytes = 4 << 20;

// `match`: the longest prefix of token ids, the run of names that are there, entries by attributes.
Result<void> answer_match(ControlledPool& target, const Rights& rights, std::string_view query,
                          AnswerText& text);

// `similar`: blocks of token ids that are nearly those of the query.
Result<void> answer_similar(ControlledPool& target, const Rights& rights, std::string_view query,
                            AnswerText& text);

// An OpenQuery is one open of such a file: the writes make up the query, and the first read after them makes
// the answer. A write after that begins the next query. While the answer is made, any other call fails with
// EBUSY.
class OpenQuery {
 public:
  OpenQuery(QueryBudget& budget, QueryBudget::Payer user)
      : budget_(budget), user_(user), memory_(budget, user) {}

  // Called if a process that died had the file open. Its query is lost, and so is the offset of its answer:
  // reads fail with ESTALE until the next write.
  void follows_another() EXCLUDES(mutex_);
  // The caller's rights are those of the open (fs/control_handles.h). EDQUOT: with this text the user's open
  // queries would take more than the user's share. EBUSY: a read is making the answer; no call waits for
  // that.
  Result<void> add(std::string_view text) EXCLUDES(mutex_);
  // Returns the part of the answer at the offset. A client may also read on at the offset where its write
  // ended: it gets the answer from the beginning.
  using Answer = std::function<Result<void>(std::string_view query, AnswerText& text)>;
  Result<std::string> read(uint64_t offset, size_t size, const Answer& answer) EXCLUDES(mutex_);

 private:
  Result<std::string> part(uint64_t offset, size_t size) REQUIRES(mutex_);  // of the answer

  QueryBudget& budget_;
  const QueryBudget::Payer user_;
  Mutex mutex_;
  std::string query_ GUARDED_BY(mutex_);
  bool is_lost_ GUARDED_BY(mutex_) = false;
  int error_ GUARDED_BY(mutex_) = 0;  // of the query, until the next begins
  bool is_being_answered_ GUARDED_BY(mutex_) = false;
  bool answered_ GUARDED_BY(mutex_) = false;  // or about to be
  std::unique_ptr<AnswerText> answer_ GUARDED_BY(mutex_);
  QueryBudget::Part memory_ GUARDED_BY(mutex_);  // of the query, until it is answered
  uint64_t begin_ GUARDED_BY(mutex_) = 0;        // the offset of the answer
};

}  // namespace kvcachefs
