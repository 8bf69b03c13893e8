#include "fs/control/entries_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "fs/control/orders.h"

namespace kvcachefs {
namespace {

// Control characters are escaped. So any name is one field of one line, also for a reader that takes a
// carriage return for the end of a line, and no name has an effect on a terminal.
std::string escaped(std::string_view name) {
  std::string result;
  result.reserve(name.size());
  for (const char character : name) {
    switch (character) {
      case '\n':
        result += "\\n";
        break;
      case '\t':
        result += "\\t";
        break;
      case '\\':
        result += "\\\\";
        break;
      default:
        if (is_control(character))
          fmt::format_to(std::back_inserter(result), "\\x{:02x}", static_cast<unsigned char>(character));
        else
          result += character;
    }
  }
  return result;
}

}  // namespace

std::string entries_header() {
  return "name size tier node hits age_s priority pinned\n";
}

std::string render_entry(const EntryListing& entry) {
  return fmt::format("{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\n", escaped(entry.name), entry.size_bytes,
                     tier_name(entry.tier), entry.node, entry.hits, entry.age_s, entry.priority,
                     entry.pinned ? 1 : 0);
}

EntriesReader::EntriesReader(size_t shards, ListShard list_shard)
    : shards_(shards), list_shard_(std::move(list_shard)), chunk_(entries_header()) {}

void EntriesReader::restart() {
  chunk_ = entries_header();
  chunk_offset_ = 0;
  next_shard_ = 0;
}

bool EntriesReader::next_chunk() {
  if (next_shard_ == shards_) return false;
  chunk_offset_ += chunk_.size();
  chunk_.clear();
  for (const EntryListing& entry : list_shard_(next_shard_++)) chunk_ += render_entry(entry);
  return true;
}

std::string EntriesReader::read(uint64_t offset, size_t size) {
  MutexLock lock(mutex_);
  if (offset < chunk_offset_) restart();
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
