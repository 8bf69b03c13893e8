#include "fs/listed_names.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "base/checksum.h"
#include "base/directory_records.h"
#include "base/sys.h"

namespace kvcachefs {
namespace {

// The low bits of a place tell names with the same hash apart, in the order of the names.
constexpr uint64_t kRanks = 16;
// The names of a larger directory are read once for each such part: 350,000 names of 64 bytes.
constexpr size_t kPartBytes = 32 << 20;
// The kernel holds the directory's lock shared while it fills the buffer (docs/facts.md "Listing a
// directory").
constexpr size_t kLeastBufferBytes = 32 << 10;
constexpr size_t kMostBufferBytes = 16 << 20;
// A tmpfs counts this for each name in the size of a directory (mm/shmem.c, BOGO_DIRENT_SIZE).
constexpr size_t kBogoNameBytes = 20;
constexpr size_t kUsualRecordBytes = 112;

// The hash is XXH3 in every version of the daemon, because a successor of another version continues listings.
// With 62 bits every position is a `long` that is not negative.
uint64_t place_of(std::string_view name) {
  const uint64_t hash = checksum_of(std::as_bytes(std::span(name))).low;
  return std::max(hash >> 2 & ~(kRanks - 1), kRanks);
}

}  // namespace

std::vector<PlacedName>::const_iterator ListedNames::first_at(uint64_t place) const {
  return std::ranges::lower_bound(names, place, {}, &PlacedName::place);
}

void NameCollector::add(std::string_view name, uint64_t ino, uint8_t type) {
  const uint64_t place = place_of(name);
  if (place < (listed_.from & ~(kRanks - 1)) || place >= listed_.to) return;
  listed_.names.push_back({place, ino, static_cast<uint32_t>(listed_.text.size()), type});
  listed_.text.append(name).push_back('\0');
  if (listed_.bytes() / 2 > limit_bytes_) shed();
}

void NameCollector::sort() {
  const auto key = [this](const PlacedName& name) {
    return std::pair(name.place, std::string_view(listed_.text_of(name)));
  };
  std::ranges::sort(listed_.names, {}, key);
  const auto repeated = std::ranges::unique(listed_.names, {}, key);
  listed_.names.erase(repeated.begin(), repeated.end());
}

void NameCollector::shed() {
  sort();
  ListedNames kept;
  for (const PlacedName& name : listed_.names) {
    const std::string_view text = listed_.text_of(name);
    kept.names.push_back(name);
    kept.names.back().text_at = static_cast<uint32_t>(kept.text.size());
    kept.text.append(text).push_back('\0');
    if (kept.bytes() <= limit_bytes_) continue;
    listed_.to = name.place;
    break;
  }
  // All names of one place stay together.
  while (!kept.names.empty() && kept.names.back().place >= listed_.to) kept.names.pop_back();
  listed_.names = std::move(kept.names);
  listed_.text = std::move(kept.text);
}

ListedNames NameCollector::take() {
  if (listed_.bytes() > limit_bytes_)
    shed();
  else
    sort();
  uint64_t hash = 0, rank = 0;
  for (PlacedName& each : listed_.names) {
    rank = each.place == hash ? std::min(rank + 1, kRanks - 1) : 0;
    hash = each.place;
    each.place += rank;
  }
  return std::move(listed_);
}

Result<ListedNames> read_names(int directory, uint64_t from) {
  const auto attributes = sys::stat_of(directory);
  if (!attributes) return std::unexpected(attributes.error());
  const size_t names = static_cast<size_t>(attributes->st_size) / kBogoNameBytes + 16;
  const size_t buffer_bytes = std::clamp(names * kUsualRecordBytes, kLeastBufferBytes, kMostBufferBytes);
  const auto buffer = std::make_unique_for_overwrite<char[]>(buffer_bytes);
  NameCollector collector(from, kPartBytes);
  uint64_t parent_ino = 0;
  for (;;) {
    auto bytes = sys::read_directory(directory, {buffer.get(), buffer_bytes});
    if (!bytes) return pass(bytes);
    if (*bytes == 0) break;
    DirectoryRecords records({buffer.get(), *bytes});
    while (const auto record = records.next()) {
      if (std::strcmp(record->name, "..") == 0)
        parent_ino = record->ino;
      else if (std::strcmp(record->name, ".") != 0)
        collector.add(record->name, record->ino, record->type);
    }
  }
  ListedNames listed = collector.take();
  listed.parent_ino = parent_ino;
  listed.changed = attributes->st_ctim;
  return listed;
}

}  // namespace kvcachefs
