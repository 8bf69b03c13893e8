// Records say of entries what they hold, for `.pool/index`. Their forms are in kvcachefs(7), "Finding
// entries". Any thread. Failure: EINVAL with a sentence that says what is wrong with the record; EMSGSIZE for
// one of more than kMostRecordBytes.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "fs/control/query_budget.h"

namespace kvcachefs {

// Several times what the tokens take that an entry may have.
inline constexpr size_t kMostRecordBytes = 4 << 20;

struct IndexRecord {
  std::string name;                                         // in the pool
  std::vector<std::pair<std::string, std::string>> values;  // of user.kv.KEY, each key once
};

// The record that the text begins with, which leaves it; none: its end is not there yet. A record that is
// wrong leaves the text too, unless nothing tells where it ends.
Result<std::optional<IndexRecord>> take_record(std::string_view& text);

// Names the record in an error of it.
Error in_record(size_t index, std::string_view name, const Error& why);

// OpenRecords are the records of one open. A write may end anywhere in one: the next write goes on with it.
class OpenRecords {
 public:
  OpenRecords(QueryBudget& budget, QueryBudget::Payer user) : memory_(budget, user) {}

  // A process that died had the file open, and may have taken half a record with it: see write().
  void follows_another() EXCLUDES(mutex_);
  // Has the records carried out that end in this piece, kMostAtOnce at most, and says how many bytes of it
  // are taken; what an error is of was not carried out (fs/control/index_file.h). ESTALE: half a record is
  // lost, here or with a process that died, and what comes now would be taken for its beginning, unless the
  // piece is the first of the open (its offset is 0). EDQUOT: what is not whole would take more than the
  // user's share. So many take 25 ms, in which others' wait: the kernel has one write to the file at a time.
  static constexpr size_t kMostAtOnce = 256;
  using Apply = std::function<Result<void>(std::span<const IndexRecord>)>;
  Result<size_t> write(std::string_view piece, bool is_first, const Apply& apply) EXCLUDES(mutex_);
  bool is_unfinished() EXCLUDES(mutex_);

 private:
  bool set_rest_bytes(size_t bytes) EXCLUDES(mutex_);  // false: EDQUOT

  Mutex mutex_;
  std::string rest_ GUARDED_BY(mutex_);
  bool is_lost_ GUARDED_BY(mutex_) = false;
  QueryBudget::Part memory_ GUARDED_BY(mutex_);
};

}  // namespace kvcachefs
