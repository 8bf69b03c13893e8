#include "fs/control/entries_reader.h"

#include <fmt/format.h>

#include <utility>

#include "base/escape.h"

namespace kvcachefs {
std::string entries_header() {
  return "name size tier node hits age_s priority pinned\n";
}

std::string render_entry(const EntryListing& entry) {
  return fmt::format("{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\n", escaped(entry.name, "\\"), entry.size_bytes,
                     tier_name(entry.tier), entry.node, entry.hits, entry.age_s, entry.priority,
                     entry.pinned ? 1 : 0);
}

EntriesReader::EntriesReader(size_t shards, ListShard list_shard, Describe describe)
    : shards_(shards),
      list_shard_(std::move(list_shard)),
      describe_(std::move(describe)),
      chunk_(entries_header()) {}

bool EntriesReader::next_chunk() {
  if (shard_.empty() && next_shard_ == shards_) return false;
  chunk_offset_ += chunk_.size();
  chunk_.clear();
  if (shard_.empty()) shard_ = list_shard_(next_shard_++);
  for (size_t i = 0; i < kPieceEntries && !shard_.empty(); ++i) {
    if (const auto entry = describe_(shard_.back())) chunk_ += render_entry(*entry);
    shard_.pop_back();
  }
  return true;
}

std::string EntriesReader::read(uint64_t offset, size_t size) {
  MutexLock lock(mutex_);
  if (offset < chunk_offset_) {
    chunk_ = entries_header();
    chunk_offset_ = next_shard_ = 0;
    shard_.clear();
  }
  std::string result;
  while (result.size() < size) {
    const uint64_t from = offset + result.size() - chunk_offset_;
    if (from < chunk_.size()) {
      result.append(chunk_, from, size - result.size());
    } else if (!next_chunk()) {
      break;
    }
  }
  return result;
}

}  // namespace kvcachefs
