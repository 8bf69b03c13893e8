#include "fs/control/access_log_reader.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/escape.h"
#include "fs/caller.h"

namespace kvcachefs {
namespace {

// A read formats so many at most, which takes a few milliseconds and 32 KiB, more only for long names.
constexpr size_t kRecordsAtOnce = 256;

std::string_view event_name(AccessRecord::Event event) {
  switch (event) {
    case AccessRecord::Event::kCreate:
      return "create";
    case AccessRecord::Event::kOpen:
      return "open";
    case AccessRecord::Event::kStore:
      return "store";
    case AccessRecord::Event::kRename:
      return "rename";
    case AccessRecord::Event::kSpill:
      return "spill";
    case AccessRecord::Event::kEvict:
      return "evict";
    case AccessRecord::Event::kPromote:
      return "promote";
    case AccessRecord::Event::kDiscard:
      return "discard";
    case AccessRecord::Event::kRemove:
      return "remove";
  }
  return "-";
}

std::string or_none(uint64_t number, bool is_known) {
  return is_known ? std::to_string(number) : "-";
}

}  // namespace

std::string access_log_header() {
  return "time event pool name inode bytes tier latency_us uid thread\n";
}

std::string render_access(const AccessRecord& record, std::string_view pool, std::string_view name) {
  constexpr uint64_t kNsPerSecond = 1'000'000'000;
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:06}Z\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\n",
                     fmt::gmtime(static_cast<time_t>(record.at_ns / kNsPerSecond)),
                     record.at_ns % kNsPerSecond / 1000, event_name(record.event), pool.empty() ? "-" : pool,
                     name.empty() ? "-" : escaped(name, "\\"), record.ino, record.bytes,
                     tier_name(record.tier),
                     or_none(record.took_ns / 1000, record.took_ns != AccessRecord::kNotMeasured),
                     or_none(record.uid, record.uid != AccessRecord::kNobody),
                     or_none(static_cast<uint64_t>(record.thread), record.thread > 0));
}

Result<std::unique_ptr<ControlReader>> AccessLogReader::open(Pools& pools) {
  auto reader = AccessLog::Reader::begin(pools.access_log());
  if (!reader) return pass(reader);
  return std::make_unique<AccessLogReader>(pools, std::move(*reader));
}

AccessLogReader::AccessLogReader(Pools& pools, AccessLog::Reader reader)
    : pools_(pools), reader_(std::move(reader)), lines_(access_log_header()) {}

void AccessLogReader::follows_another() {
  MutexLock lock(mutex_);
  lines_ = "# another process serves now: what happened meanwhile is not known\n";
}

std::string AccessLogReader::line_of(AccessRecord record, Users& users) const {
  const auto pool = pools_.find(record.pool);
  if (record.thread > 0 && record.uid == AccessRecord::kNobody) {
    const auto [known, is_new] = users.try_emplace(record.thread, AccessRecord::kNobody);
    if (const auto caller = is_new ? Caller::of(record.thread) : fail(ESRCH)) known->second = caller->user();
    record.uid = known->second;
  }
  std::string name = record.name;
  if (name.empty() && pool != nullptr) name = pool->insight().path_of(record.ino).value_or("");
  return render_access(record, pool != nullptr ? pool->name() : "", name);
}

std::string AccessLogReader::read(uint64_t, size_t size) {
  MutexLock lock(mutex_);
  if (lines_.empty()) {
    const AccessLog::Reader::Taken taken = reader_.take(kRecordsAtOnce);
    if (taken.lost > 0)
      lines_ = fmt::format("# {} events are lost: they came faster than they were read\n", taken.lost);
    Users users;
    for (const AccessRecord& record : taken.records) lines_ += line_of(record, users);
  }
  size_t bytes = std::min(size, lines_.size());
  if (bytes < lines_.size())
    if (const size_t end = lines_.rfind('\n', bytes - 1); end != std::string::npos && bytes > 0)
      bytes = end + 1;
  std::string result = lines_.substr(0, bytes);
  lines_.erase(0, bytes);
  return result;
}

}  // namespace kvcachefs
