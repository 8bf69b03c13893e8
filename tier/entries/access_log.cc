#include "tier/entries/access_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace kvcachefs {

void AccessLog::add(AccessRecord record) {
  MutexLock lock(mutex_);
  if (!is_read()) return;  // the last reader has just gone
  record.at_ns = wall_clock_ns();
  name_bytes_ += record.name.size();
  records_.push_back(std::move(record));
  while (records_.size() > kMostRecords || name_bytes_ > kMostNameBytes) {
    name_bytes_ -= records_.front().name.size();
    records_.pop_front();
    ++first_;
  }
}

Result<AccessLog::Reader> AccessLog::Reader::begin(AccessLog& log) {
  MutexLock lock(log.mutex_);
  if (log.readers_ == kMostReaders)
    return fail(EMFILE, fmt::format("access_log: {} are open already", kMostReaders));
  ++log.readers_;
  return Reader(&log, log.first_ + log.records_.size());
}

AccessLog::Reader::~Reader() {
  if (log_ == nullptr) return;
  std::deque<AccessRecord> freed;
  MutexLock lock(log_->mutex_);
  if (--log_->readers_ > 0) return;
  log_->first_ += log_->records_.size();
  log_->name_bytes_ = 0;
  freed.swap(log_->records_);
}

AccessLog::Reader::Taken AccessLog::Reader::take(size_t most) {
  MutexLock lock(log_->mutex_);
  Taken taken;
  taken.lost = log_->first_ - std::min(next_, log_->first_);
  next_ += taken.lost;
  const auto from = log_->records_.begin() + static_cast<ptrdiff_t>(next_ - log_->first_);
  const auto count = std::min(most, static_cast<size_t>(log_->records_.end() - from));
  taken.records.assign(from, from + static_cast<ptrdiff_t>(count));
  next_ += count;
  return taken;
}

}  // namespace kvcachefs
