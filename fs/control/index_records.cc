#include "fs/control/index_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>

#include "base/escape.h"
#include "base/key_value.h"
#include "tier/index/metadata.h"

namespace kvcachefs {
namespace {

constexpr std::string_view kRecordMagic = "KVI1";  // of a record in binary form
constexpr std::string_view kForm = "a record is `index NAME KEY=VALUE...` on a line of its own";

struct RecordHead {
  char magic[4];
  uint32_t name_bytes, model_bytes, parent_bytes, agent_bytes, tokens;
};

Result<IndexRecord> checked(IndexRecord record) {
  const auto& name = record.name;
  // No call can name what is longer.
  if (name.empty() || name.size() >= PATH_MAX || name.starts_with('/') || name.ends_with('/') ||
      name.contains('\0'))
    return fail(EINVAL, "a record begins with the name of an entry, relative to the pool");
  if (record.values.empty()) return fail(EINVAL, "a record says nothing of its entry");
  return record;
}

Result<void> add_value(IndexRecord& record, std::string_view key, Result<std::string> value) {
  if (!value) return pass(value);
  if (std::ranges::any_of(record.values, [key](const auto& known) { return known.first == key; }))
    return fail(EINVAL, fmt::format("{} is there twice", key));
  record.values.emplace_back(key, std::move(*value));
  return {};
}

Result<IndexRecord> text_record(std::string_view line) {
  if (take_field(line) != "index") return fail(EINVAL, std::string(kForm));
  IndexRecord record{.name = take_field(line), .values = {}};
  for (std::string field = take_field(line); !field.empty(); field = take_field(line)) {
    const KeyValue pair = split_key_value(field);
    if (!pair.value) return fail(EINVAL, fmt::format("'{}' is not KEY=VALUE", field.substr(0, 64)));
    if (auto added = add_value(record, pair.key, metadata_value(pair.key, *pair.value)); !added)
      return pass(added);
  }
  return checked(std::move(record));
}

Result<IndexRecord> binary_record(const RecordHead& head, std::string_view bytes) {
  const auto take = [&bytes](size_t size) {
    const std::string_view part = bytes.substr(0, size);
    bytes.remove_prefix(size);
    return part;
  };
  IndexRecord record{.name = std::string(take(head.name_bytes)), .values = {}};
  for (const auto& [key, size] :
       {std::pair("model", head.model_bytes), std::pair("parent", head.parent_bytes),
        std::pair("agent", head.agent_bytes)}) {
    if (size == 0) continue;
    if (auto added = add_value(record, key, metadata_value(key, take(size))); !added) return pass(added);
  }
  if (!bytes.empty()) record.values.emplace_back("tokens", bytes);
  return checked(std::move(record));
}

Result<std::optional<IndexRecord>> take_binary(std::string_view& text) {
  if (!kRecordMagic.starts_with(text.substr(0, kRecordMagic.size())))
    return fail(EINVAL,
                fmt::format("a record begins with `index` or, in binary form, with {}", kRecordMagic));
  RecordHead head{};
  if (text.size() < sizeof(head)) return std::nullopt;
  std::memcpy(&head, text.data(), sizeof(head));
  const uint64_t size = sizeof(head) + uint64_t{head.name_bytes} + head.model_bytes + head.parent_bytes +
                        head.agent_bytes + uint64_t{head.tokens} * sizeof(uint32_t);
  if (size > kMostRecordBytes) return fail(EMSGSIZE);
  if (text.size() < size) return std::nullopt;
  const std::string_view bytes = text.substr(sizeof(head), size - sizeof(head));
  text.remove_prefix(size);
  return binary_record(head, bytes);
}

}  // namespace

Result<std::optional<IndexRecord>> take_record(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  if (text.empty()) return std::nullopt;
  if (text[0] == kRecordMagic[0]) return take_binary(text);
  const size_t end = text.find('\n');
  if (std::min(end, text.size()) > kMostRecordBytes) return fail(EMSGSIZE);
  if (end == std::string_view::npos) return std::nullopt;
  return text_record(take_part(text, '\n'));
}

Error in_record(size_t index, std::string_view name, const Error& why) {
  return {why.code, fmt::format("record {}{}{}: {}", index + 1, name.empty() ? "" : ", ", name.substr(0, 255),
                                why.message)};
}

void OpenRecords::follows_another() {
  MutexLock lock(mutex_);
  is_lost_ = true;
}

Result<size_t> OpenRecords::write(std::string_view piece, bool is_first, const Apply& apply) {
  std::string text;
  {
    MutexLock lock(mutex_);
    if (is_lost_ && !is_first) return fail(ESTALE, "half a record is lost: the file is to be opened anew");
    is_lost_ = true;  // until it is known what is left
    text = std::exchange(rest_, {});
  }
  text += piece;
  std::string_view left = text;
  std::vector<IndexRecord> records;
  Result<void> outcome;
  bool ends = false;
  for (size_t index = 0; !ends && index < kMostAtOnce; ++index) {
    const size_t before = left.size();
    auto record = take_record(left);
    if (record && *record)
      records.push_back(std::move(**record));
    else if (!record && outcome)
      outcome = std::unexpected(in_record(index, {}, record.error()));
    ends = (record && !*record) || left.size() == before;
  }
  // What is not looked at the client writes again.
  const size_t taken = ends || !outcome ? piece.size() : piece.size() - left.size();
  if (ends && outcome && !set_rest_bytes(left.size())) outcome = fail(EDQUOT);
  if (outcome) outcome = apply(records);
  MutexLock lock(mutex_);
  if (!outcome || !ends) (void)memory_.set(0);
  if (outcome && ends) rest_ = left;
  is_lost_ = !outcome && !left.empty();
  return outcome ? Result<size_t>(taken) : pass(outcome);
}

bool OpenRecords::set_rest_bytes(size_t bytes) {
  MutexLock lock(mutex_);
  return memory_.set(bytes);
}

bool OpenRecords::is_unfinished() {
  MutexLock lock(mutex_);
  return !rest_.empty();
}

}  // namespace kvcachefs
